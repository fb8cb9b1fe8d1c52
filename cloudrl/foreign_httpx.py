"""The patience of `cloudrl.foreign` for answers that httpx2 reads; it is imported where those are."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import httpcore2

from cloudrl.foreign import Patience


def patient(timeout_s: float) -> dict[str, Any]:
    """What a request takes as `extensions`, so that its answer may not dribble in for ever.

    Args:
        timeout_s: See `Patience`.
    """
    return {"trace": partial(_watch, Patience(timeout_s))}


def _watch(patience: Patience, event: str, info: Mapping[str, Any]) -> None:
    """httpcore2 tells of each connection that it makes, and reads from it with a time limit."""
    if event not in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
        return
    connection = info["return_value"]
    read: Callable[[int, float], bytes] = connection.read

    def read_patiently(max_bytes: int, timeout: float) -> bytes:
        try:
            return patience.receive(lambda left_s: read(max_bytes, min(left_s, timeout)), len)
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(str(error)) from error

    connection.read = read_patiently
