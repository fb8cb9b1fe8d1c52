"""verl's own line about a rollout that is waited for: how many prompts are unfinished. Pure.

verl 0.9.1, trainer/ppo/v1/replay_buffer.py (`_wait_for_next_poll`), each 60 s of waiting.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"pending: ([0-9]{1,9}), running: ([0-9]{1,9}), finished: ([0-9]{1,9}), failure: ([0-9]{1,9})")


@dataclass(frozen=True)
class Unfinished:
    """Prompts of the step that is waited for, by their state."""

    pending: int
    running: int
    finished: int
    failure: int

    def __str__(self) -> str:
        return f"{self.running} of {self.total} prompts are still running and {self.pending} have not begun"

    @property
    def total(self) -> int:
        """All prompts of the step."""
        return self.pending + self.running + self.finished + self.failure


def parse(line: str) -> Unfinished | None:
    """The counts in a line of the driver's log, None in any other line."""
    match = _LINE.search(line)
    return Unfinished(*map(int, match.groups())) if match is not None else None
