"""The end of a driver's log, where it says why it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

LOG_TAIL_BYTES = 256 << 10


def driver_tail(logs: Optional[Path], submission_id: str) -> str:
    """The last 256 KiB; "" where there is no such log.

    Args:
        logs: where Ray keeps the logs of drivers; None before it is up.
        submission_id: of the attempt.
    """
    if logs is None:
        return ""
    try:
        with (logs / f"job-driver-{submission_id}.log").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
