"""Why a node or the whole cluster ended."""

from __future__ import annotations

import operator
import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Optional

PERMANENT = ("setup", "preflight", "data", "model", "service", "agent")
"""Kinds that come back on every retry: the machine, the image, the request or this agent is wrong."""

_WITH_DIGIT = re.compile(r"\S*\d\S*")
_HTTP_STATUS = re.compile(r"[1-5]\d\d")


@dataclass(frozen=True)
class Failure:
    """What failed, on which rank, and whether a retry could help.

    Attributes:
        kind: one of `PERMANENT`, or "ray", "lost", "join", "pull": those may pass with a retry.
        rank: the node on which it happened.
        reason: one line for a person; two failures are equal when kind and reason are, but for numbers.
        tail: the last lines of the log that explains it.
        final: no retry shall follow: every rank says so and exits 0.
        transient: a download for which the network is to blame; it may pass with a retry although its kind is
            permanent.
    """

    kind: str
    rank: int
    reason: str
    tail: str = ""
    final: bool = False
    transient: bool = False

    @property
    def permanent(self) -> bool:
        """Whether the same failure is to be expected from a retry."""
        return self.kind in PERMANENT and not self.transient

    @property
    def signature(self) -> str:
        """What two equal failures have in common.

        Not the rank: where all nodes fail alike, another one is the first each time. Not the words with digits:
        request ids, free space and temporary names change from attempt to attempt. But of a network's failure the
        HTTP status: 502 and 503 are two of them.
        """
        return f"{self.kind}|{_WITH_DIGIT.sub(self._without_number, self.reason)}"

    def _without_number(self, word: re.Match[str]) -> str:
        bare = word[0].strip("'\"(),.:;")
        return bare if self.transient and _HTTP_STATUS.fullmatch(bare) else "#"

    def to_json(self) -> dict[str, Any]:
        """The form in which it travels between agents and to the client."""
        return {**asdict(self), "permanent": self.permanent}

    @classmethod
    def from_json(cls, data: Optional[Mapping[str, Any]]) -> Optional[Failure]:
        """Read what `to_json` wrote; None stays None.

        Raises:
            KeyError, TypeError: this is no failure.
        """
        if data is None:
            return None
        return cls(
            kind=str(data["kind"]),
            rank=operator.index(data["rank"]),
            reason=str(data["reason"]),
            tail=str(data.get("tail", "")),
            final=bool(data.get("final", False)),
            transient=bool(data.get("transient", False)),
        )


def unforeseen(kind: str, rank: int, error: BaseException) -> Failure:
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
