"""verl's own line about a rollout that is waited for: how many prompts are unfinished. Pure.

verl 0.9.1, trainer/ppo/v1/replay_buffer.py (`_wait_for_next_poll`), each 60 s of waiting, or as often as the job's
variable says (`cloudrl.verl.async_modes.COUNT_OFTEN`).
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
        pending = f", {self.pending} have not begun" if self.pending else ""
        return f"{self.running} of {self.total} prompts are still running{pending}"

    @property
    def total(self) -> int:
        """All prompts of the step."""
        return self.pending + self.running + self.finished + self.failure


def parse(line: str) -> Unfinished | None:
    """The counts in a line of the driver's log, None in any other line."""
    match = _LINE.search(line)
    return Unfinished(*map(int, match.groups())) if match is not None else None


class Progress:
    """Since when no prompt of a rollout has changed its state. No clock of its own."""

    def __init__(self) -> None:
        self._last: Unfinished | None = None
        self._since = 0.0

    def add(self, unfinished: Unfinished | None, at: float) -> bool:
        """Whether prompts have changed their state since the call before, in the same rollout.

        Args:
            unfinished: the newest counts; None outside of a rollout.
            at: seconds of a clock that never runs backwards.
        """
        last, self._last = self._last, unfinished
        if unfinished != last:
            self._since = at
        return unfinished != last and None not in (last, unfinished)

    def still_s(self, at: float) -> float | None:
        """For how long the counts have been the same; None without any."""
        return at - self._since if self._last is not None else None
