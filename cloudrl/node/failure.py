"""A failure of this agent, as an exception that leaves the phases; the code of an error that caused it."""

from __future__ import annotations

import errno
import traceback

from cloudrl.errors import CloudrlError
from cloudrl.node.transient import causes, http_status, passing_words
from cloudrl.protocol.failures import Failure, FailureKind


def unforeseen(kind: FailureKind, rank: int, error: BaseException) -> Failure:
    """An error that nobody has foreseen, as a failure; its traceback goes to the log."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return Failure(kind, rank, describe(error), "".join(lines).rstrip()[-16_384:], code=error_code(error))


def describe(error: BaseException) -> str:
    """An error in one line, with its name unless it is one of ours."""
    text = " ".join(str(error).split())[:400]
    return (
        text if text and isinstance(error, CloudrlError) else f"{type(error).__name__}: {text}".rstrip(": ")
    )


def error_code(error: BaseException) -> str:
    """An error without its words: its name, and its HTTP status or the system's own name for it.

    Of a RuntimeError about the network what it names: hf_xet has no other class.
    """
    chain = list(causes(error))
    first = next((each for each in chain if not isinstance(each, CloudrlError)), error)
    status = next((found for found in map(http_status, chain) if found is not None), None)
    number = first.errno if isinstance(first, OSError) else None
    more = status if status is not None else errno.errorcode.get(number) if number is not None else None
    more = next((words for words in map(passing_words, chain) if words), None) if more is None else more
    return type(first).__name__ if more is None else f"{type(first).__name__} {more}"


class NodeFailed(Exception):
    """Raised inside the agent to leave the phases; carries the `Failure`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure
