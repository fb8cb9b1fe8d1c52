"""What the runner tells the server: states, the job's output, its own log, in one strictly growing time.

Source: dstack, runner/internal/runner/executor/timestamp.go, logs.go, query.go.
"""

from __future__ import annotations

import base64
import threading
import time
from typing import Any

from .ansistrip import Stripper

_HOUR_S = 3600


class Quota:
    """Bytes of job output in each hour since the start; zero for any number."""

    def __init__(self, bytes_per_hour: int) -> None:
        self.bytes_per_hour = bytes_per_hour
        self._start = time.monotonic()
        self._hour = self._used = 0

    def take(self, size: int) -> bool:
        """Count `size` bytes; False, and uncounted, when they are too many."""
        hour = int((time.monotonic() - self._start) / _HOUR_S)
        if hour != self._hour:
            self._hour, self._used = hour, 0
        if self.bytes_per_hour and self._used + size > self.bytes_per_hour:
            return False
        self._used += size
        return True


class Journal:
    """Everything that was ever said, by several threads."""

    def __init__(self) -> None:
        self._latest = int(time.time()) * 1000
        self._lock = threading.Lock()
        self._states: list[dict[str, Any]] = []
        self._job: list[tuple[int, bytes]] = []
        self._runner: list[tuple[int, bytes]] = []
        self._raw: list[tuple[int, bytes]] = []
        self._stripper = Stripper()
        self._is_within_quota = True
        self.quota = Quota(0)

    def _next(self) -> int:
        """Milliseconds since 1970 of which the last three digits only count: no two are equal.

        More than 999 in a second repeat the last one, as in the true runner.
        """
        if (second := int(time.time())) > self._latest // 1000:
            self._latest = second * 1000
        elif self._latest % 1000 < 999:
            self._latest += 1
        return self._latest

    def state(self, state: str, reason: str = "", message: str = "", exit_status: int | None = None) -> None:
        """A change of the job's state."""
        with self._lock:
            event = {"state": state, "timestamp": self._next(), "termination_reason": reason}
            self._states.append({**event, "termination_message": message, "exit_status": exit_status})
        self.log(f"Job state changed new={state} {reason}".rstrip())

    def log(self, message: str) -> None:
        """A line of the runner's own log."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            self._runner.append((self._next(), f"time={stamp} level=info msg={message}\n".encode()))

    def output(self, data: bytes) -> bool:
        """What the job wrote; False when that breaks the quota. Colours are for the websocket only."""
        with self._lock:
            self._raw.append((self._next(), data))
            self._stripper.write(data)
            self._store(self._stripper.due())
            return self._is_within_quota

    def end_output(self) -> bool:
        """The job writes no more; False when what was held back breaks the quota."""
        with self._lock:
            self._store(self._stripper.rest())
            return self._is_within_quota

    def _store(self, lines: bytes) -> None:
        if lines and self._is_within_quota:
            self._is_within_quota = self.quota.take(len(lines))
        if lines and self._is_within_quota:
            self._job.append((self._next(), lines))

    def raw(self, position: int) -> list[bytes]:
        """The job's output from the `position`-th piece on."""
        with self._lock:
            return [data for _, data in self._raw[position:]]

    def raw_position(self, since_ms: int) -> int:
        """How many pieces of output are older."""
        with self._lock:
            return sum(1 for timestamp, _ in self._raw if timestamp < since_ms)

    def after(self, timestamp: int) -> dict[str, Any]:
        """What GET /api/pull answers, less `has_more`."""
        with self._lock:
            self._store(self._stripper.due())
            return {
                "job_states": [event for event in self._states if event["timestamp"] > timestamp],
                "job_logs": _encoded(self._job, timestamp),
                "runner_logs": _encoded(self._runner, timestamp),
                "last_updated": self._latest,
                "no_connections_secs": 0,
            }


def _encoded(events: list[tuple[int, bytes]], after: int) -> list[dict[str, Any]]:
    return [
        {"timestamp": timestamp, "message": base64.b64encode(message).decode()}
        for timestamp, message in events
        if timestamp > after
    ]
