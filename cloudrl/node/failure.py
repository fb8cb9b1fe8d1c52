"""A failure of this agent, as an exception that leaves the phases."""

from __future__ import annotations

import traceback

from cloudrl.protocol.failures import Failure, FailureKind


def unforeseen(kind: FailureKind, rank: int, error: BaseException) -> Failure:
    """An error that nobody has foreseen, as a failure; its traceback goes to the log."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    text = " ".join(str(error).split())[:400]
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Failure(kind, rank, reason, "".join(lines).rstrip()[-16_384:])


class NodeFailed(Exception):
    """Raised inside the agent to leave the phases; carries the `Failure`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure
