"""The final answers of `math`, against verl's own functions. Rows: `test_built_in.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudrl.data import math
from cloudrl.data.parquet import SPLITS

RAW = Path(__file__).parent / "math"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $x = \boxed{7}$.", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed 5$ apples", "5"),
        (r"\boxed 5 apples", "5 apples"),
        (r"\boxed 3$ and \boxed{4}", "3"),
        (r"\boxed{}", ""),
        (r"\boxed{a}}", "a"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\fbox{7}", None),
        (r"\fbox{7} \boxed{8}", "8"),
        (r"\boxed{7} \fbox{8}", "7"),
        (r"\boxed{7", None),
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed7", None),
        (r"\boxed5 and {x}", None),
        (r"\boxed", None),
        ("seven", None),
        ("", None),
    ],
)
def test_final_answer_follows_verls_functions(solution: str, answer: str | None) -> None:
    assert math.final_answer(solution) == answer


VERL = r"""
import json, sys
from verl.utils.reward_score.math_reward import last_boxed_only_string, remove_boxed
def answer(solution):
    try:
        return remove_boxed(last_boxed_only_string(solution))
    except (AssertionError, TypeError):  # TypeError: the one has found nothing, and the other takes no None
        return None
json.dump([answer(each) for each in json.load(sys.stdin)], sys.stdout)
"""


@pytest.fixture(scope="module")
def solutions() -> list[str]:
    """Texts that are made of what the functions look for; collected here, since verl answers all at once."""
    found: list[str] = []
    parts = st.sampled_from(
        [*"{}$ x\\\n", "\\boxed", "\\boxed{", "\\boxed ", "\\fbox", "\\fbox{", "\\frac{1}{2}", "}$."]
    )

    @settings(max_examples=600, suppress_health_check=list(HealthCheck))
    @given(st.lists(parts, max_size=12).map("".join))
    def collect(text: str) -> None:
        found.append(text)

    collect()
    found += [row["solution"] for split in SPLITS for row in rows_of(RAW / f"{split}.jsonl")]
    return found


@pytest.mark.verl
def test_verls_own_functions_find_the_same_answers(solutions: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", VERL],
        input=json.dumps(solutions),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    verls = json.loads(done.stdout)
    assert [math.final_answer(each) for each in solutions] == verls
    assert 200 < sum(answer is not None for answer in verls) < len(verls) - 200
