"""What errors mean to the agent: the `Failure` that one is, its code, and whether the network is to blame.

Judged by names and numbers: requests, httpx, huggingface_hub and datasets are not always there to be asked.
"""

import errno
import re
import socket
import traceback
from typing import Iterator, List, Optional, Set

from cloudrl.errors import CloudrlError
from cloudrl.protocol.failures import Failure, FailureKind

# huggingface_hub 0.34 to 1.33 and datasets 4 to 5: errors.py, exceptions.py. A gated repository is a
# RepositoryNotFoundError too; to be offline by HF_HUB_OFFLINE is a ConnectionError.
_LASTING = {
    "DatasetNotFoundError", "DisabledRepoError", "LocalTokenNotFoundError", "OfflineModeIsEnabled",
    "RepositoryNotFoundError", "RevisionNotFoundError",
}  # fmt: skip
# Python's own, of requests ("Timeout", "ChunkedEncodingError"), httpx ("TransportError"), urllib3 and aiohttp
_PASSING = {
    "ChunkedEncodingError", "ClientConnectionError", "ClientPayloadError", "ConnectionError", "HTTPException",
    "ProtocolError", "TimeoutError", "Timeout", "TransportError",
}  # fmt: skip
_PASSING_STATUSES = {408, 425, 429}
# hf_xet raises RuntimeError for everything, with the words of its Rust libraries
_PASSING_WORDS = re.compile(
    r"timed? ?out|connection (?:reset|refused|closed|aborted|error)|error sending request|network is unreachable",
    re.IGNORECASE,
)


class NodeFailed(Exception):
    """Raised inside the agent to leave the phases; carries the `Failure`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def unforeseen(kind: FailureKind, rank: int, error: BaseException) -> Failure:
    """An unexpected error, as a failure; its traceback goes to the log."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return Failure(kind, rank, describe(error), "".join(lines).rstrip()[-16_384:], code=error_code(error))


def describe(error: BaseException) -> str:
    """An error in one line, with its name unless it is one of ours."""
    text = str(error)
    if isinstance(error, CloudrlError) and error.hint:
        text = f"{error.message} {'; '.join(error.hint.splitlines())}"
    text = " ".join(text.split())[:400]
    return text if text and isinstance(error, CloudrlError) else f"{type(error).__name__}: {text}".rstrip(": ")


def error_code(error: BaseException) -> str:
    """An error without its words: its name, and its HTTP status or the system's own name for it.

    Of a RuntimeError about the network what it names: hf_xet has no other class.
    """
    chain = list(_causes(error))
    first = next((cause for cause in chain if not isinstance(cause, CloudrlError)), error)
    status = next((code for code in map(_http_status, chain) if code is not None), None)
    number = first.errno if isinstance(first, OSError) else None
    more = status if status is not None else errno.errorcode.get(number) if number is not None else None
    more = next((words for words in map(_passing_words, chain) if words), None) if more is None else more
    return type(first).__name__ if more is None else f"{type(first).__name__} {more}"


def is_transient(error: BaseException) -> bool:
    """Whether another try may go better. What lasts counts for more than what passes, wherever it stands."""
    chain = list(_causes(error))
    names = {kind.__name__ for raised in chain for kind in type(raised).__mro__}
    statuses = {status for status in map(_http_status, chain) if status is not None}
    if names & _LASTING or any(400 <= status < 500 for status in statuses - _PASSING_STATUSES):
        return False
    return bool(
        names & _PASSING
        or any(status >= 500 or status in _PASSING_STATUSES for status in statuses)
        or any(isinstance(cause, (socket.timeout, socket.gaierror)) for cause in chain)  # Python 3.9: no TimeoutError
        or any(map(_passing_words, chain))
    )


def _passing_words(error: BaseException) -> Optional[str]:
    """What a RuntimeError says of a network, in lower case; None where it speaks of something else."""
    match = _PASSING_WORDS.search(str(error)) if isinstance(error, RuntimeError) else None
    return match.group().lower() if match else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it came from."""
    seen: Set[int] = set()
    left: List[Optional[BaseException]] = [error]
    while left:
        raised = left.pop()
        if raised is not None and id(raised) not in seen:
            seen.add(id(raised))
            yield raised
            left += [raised.__cause__, None if raised.__suppress_context__ else raised.__context__]


def _http_status(error: BaseException) -> Optional[int]:
    """The HTTP status of an error that carries its response, as those of requests and httpx do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
