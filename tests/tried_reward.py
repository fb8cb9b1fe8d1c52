"""Calls a reward function in the sandbox, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from patience import SLOWER

from cloudrl.rewards.child import Candidate
from cloudrl.rewards.examine import Examined, examine
from cloudrl.rewards.rows import Row
from cloudrl.verl.reward_calls import RewardCall

ROWS = tuple(Row(number, "mine", truth, {"index": number}) for number, truth in enumerate(("42", "7", "1001"), 1))
HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
SECONDS = 20.0 * SLOWER
HANGS_SECONDS = 3.0 * SLOWER
"""For a function that does not end."""
LOOPS_SECONDS = 3.0
"""For one that uses a CPU until then, where it may also be ended before it is called."""


def candidate(text: str, folder: Path, call: dict[str, Any] | None = None, **fields: Any) -> Candidate:
    """The function of a file that is written into a folder."""
    path = folder / "reward.py"
    path.write_text(text)
    return Candidate(text.encode(), "reward.py", RewardCall("./reward.py", **(call or {})), path, **fields)


def tried(
    text: str, folder: Path, rows: tuple[Row, ...] = ROWS, *, seconds: float = SECONDS, **fields: Any
) -> Examined:
    """What comes of it; the test is skipped where the kernel gives no isolation."""
    examined = examine(candidate(text, folder, **fields), rows, shown="./reward.py", seconds=seconds)
    if "no isolation" in examined.skipped:
        pytest.skip(examined.skipped)
    return examined


def faults(text: str, folder: Path, rows: tuple[Row, ...] = ROWS, **fields: Any) -> list[tuple[str, str, int | None]]:
    """Kind, level and line of each fault."""
    return [(fault.kind, fault.level.value, fault.line) for fault in tried(text, folder, rows, **fields).faults]
