"""What a verb tells its caller while it works, and how far a node is with what it fetches."""

from collections import deque
from dataclasses import dataclass
from typing import Deque, Optional, Tuple

from cloudrl.units import duration_text, size_text

_RATE_WINDOW_S = 10.0
_LEAST_S = 0.5


@dataclass(frozen=True)
class Notice:
    """A sentence that the user should read, and what may be done about it."""

    text: str
    hint: str = ""


@dataclass(frozen=True)
class Transfer:
    """How far a copy is; the last one has `done_bytes == total_bytes`.

    Attributes:
        dollars: US dollars that the cluster has cost so far, all of its attempts; None if it has no price.
    """

    what: str
    done_bytes: int
    total_bytes: int
    dollars: Optional[float] = None


@dataclass(frozen=True)
class Fetching:
    """How far a node is with a data set, a model or an artifact.

    Attributes:
        doing: the last line that its child has written, such as `7473 rows`; "" for a download.
        done_bytes: that are on this node's disk; None where they are not counted.
        total_bytes: None if unknown.
        bytes_per_s: over the last ten seconds; None before the first bytes.
    """

    doing: str = ""
    done_bytes: Optional[int] = None
    total_bytes: Optional[int] = None
    bytes_per_s: Optional[float] = None

    def __str__(self) -> str:
        """For example `3.1 GB of 12.4 GB, 250 MB/s, 37 s left`."""
        if self.done_bytes is None:
            return self.doing
        if self.total_bytes is None:
            amounts = f"{size_text(self.done_bytes)} so far"
        else:
            amounts = f"{size_text(self.done_bytes)} of {size_text(self.total_bytes)}"
        if not self.bytes_per_s:
            return amounts
        text = f"{amounts}, {size_text(round(self.bytes_per_s))}/s"
        if self.total_bytes is None or self.total_bytes <= self.done_bytes:
            return text
        return f"{text}, {duration_text((self.total_bytes - self.done_bytes) / self.bytes_per_s)} left"


class Rate:
    """Bytes a second over the last ten seconds.

    Args:
        now: Seconds that never run backwards, at the start.
        done_bytes: How many were there at the start.
    """

    def __init__(self, now: float, done_bytes: int = 0) -> None:
        self._seen: Deque[Tuple[float, int]] = deque([(now, done_bytes)])

    @property
    def last_at(self) -> float:
        """When bytes were counted last."""
        return self._seen[-1][0]

    def add(self, now: float, done_bytes: int) -> Optional[float]:
        """Count the bytes at a time; the rate, or None while nothing has moved for half a second of counting."""
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RATE_WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        return (done_bytes - before) / (now - since) if now - since >= _LEAST_S and done_bytes > before else None
