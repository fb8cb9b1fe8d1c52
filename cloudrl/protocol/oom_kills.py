"""Processes that the kernel has ended for lack of memory: what a node counts, and the line that its agent logs."""

import re
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class OomKills:
    """Of one node since its agent started.

    Attributes:
        count: processes of the agent's container or cgroup; of the whole machine where the kernel counts no others.
        at: seconds since the epoch, by the node's clock, when the last of them was counted.
    """

    count: int
    at: float

    def to_line(self) -> str:
        """What the agent logs, for people and for `from_line`."""
        return f"the kernel has ended {self.count} processes so far for lack of memory (OOM killer), at {self.at:.0f}"


_LINE = re.compile(r"the kernel has ended (\d{1,9}) processes so far for lack of memory \(OOM killer\), at (\d{1,12})$")


def from_line(line: str) -> Optional[OomKills]:
    """The kills that a line of an agent's log tells of; None for other lines."""
    match = _LINE.search(line)
    return OomKills(int(match[1]), float(match[2])) if match is not None else None
