"""Which failures of a download may pass by themselves: a network that hangs or breaks, a server that is overloaded.

Judged by names and numbers: requests, httpx, huggingface_hub and datasets are not always there to be asked.
"""

from __future__ import annotations

import re
import socket
from typing import Iterator, List, Optional, Set

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


def is_transient(error: BaseException) -> bool:
    """Whether another try may go better. What lasts counts for more than what passes, wherever it stands."""
    chain = list(causes(error))
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    statuses = {status for status in map(http_status, chain) if status is not None}
    if names & _LASTING or any(400 <= status < 500 for status in statuses - _PASSING_STATUSES):
        return False
    return bool(
        names & _PASSING
        or any(status >= 500 or status in _PASSING_STATUSES for status in statuses)
        or any(
            isinstance(each, (socket.timeout, socket.gaierror)) for each in chain
        )  # Python 3.9: no TimeoutError
        or any(map(passing_words, chain))
    )


def passing_words(error: BaseException) -> Optional[str]:
    """What a RuntimeError says of a network, in lower case; None where it speaks of something else."""
    match = _PASSING_WORDS.search(str(error)) if isinstance(error, RuntimeError) else None
    return match.group().lower() if match else None


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it came from."""
    seen: Set[int] = set()
    left: List[Optional[BaseException]] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [each.__cause__, None if each.__suppress_context__ else each.__context__]


def http_status(error: BaseException) -> Optional[int]:
    """The HTTP status of an error that carries its response, as those of requests and httpx do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
