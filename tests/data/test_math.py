r"""`math` against the rows of verl's own script.

math/*.verl.jsonl is what verl 0.9.0's examples/data_preprocess/math_dataset.py makes of math/*.jsonl with
`--local_dataset_path` and verl 0.9.1's own functions, read row by row; the problems are ours.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudrl.data import math
from cloudrl.data.parquet import SPLITS
from cloudrl.errors import InputError

RAW = Path(__file__).parent / "math"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_those_of_verls_script(split: str, tmp_path: Path) -> None:
    paths = math.prepare(tmp_path, source=RAW)
    rows = pq.read_table(paths[split]).to_pylist()
    assert len(rows) == {"train": 12, "test": 3}[split]
    for row, wanted in zip(rows, rows_of(RAW / f"{split}.verl.jsonl"), strict=True):
        assert row == wanted
        assert list(row) == list(wanted)


def test_columns_have_the_types_that_verl_writes(tmp_path: Path) -> None:
    text = pa.string()
    columns = {
        "level": text,
        "type": text,
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"split": text, "index": pa.int64()}),
    }
    schema = pq.read_schema(math.prepare(tmp_path, source=RAW)["train"])
    assert [(field.name, field.type) for field in schema] == list(columns.items())


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
        [
            "\\boxed",
            "\\boxed{",
            "\\boxed ",
            "\\fbox",
            "\\fbox{",
            "{",
            "}",
            "$",
            " ",
            "x",
            "\\",
            "\n",
            "\\frac{1}{2}",
            "}$.",
        ]
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


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"problem": "How many?", "solution": r"It is $\fbox{7}$."},
            r"math train row 2: no \boxed{...} in its solution, which ends 'It is $\\fbox{7}$.'",
        ),
        (
            {"problem": "How many?", "answer": r"\boxed{7}"},
            "math train row 2: problem and solution should be texts; it has answer, problem",
        ),
        (
            {"problem": None, "solution": r"\boxed{7}"},
            "math train row 2: problem and solution should be texts; it has problem, solution",
        ),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = shutil.copytree(RAW, tmp_path / "raw", ignore=shutil.ignore_patterns("*.verl.jsonl"))
    rows = rows_of(source / "train.jsonl")
    rows[2] = row
    (source / "train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        math.prepare(tmp_path / "out", source=source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_a_copy_of_the_hubs_repository_is_a_source(tmp_path: Path) -> None:
    copy = tmp_path / "MATH-lighteval" / "data"
    copy.mkdir(parents=True)
    for split in SPLITS:
        rows = rows_of(RAW / f"{split}.jsonl")
        for part, some in enumerate((rows[:2], rows[2:])):
            pq.write_table(pa.Table.from_pylist(some), copy / f"{split}-0000{part}-of-00002.parquet")
    from_hub = math.prepare(tmp_path / "a", source=copy.parent)
    from_lines = math.prepare(tmp_path / "b", source=RAW)
    for split in SPLITS:
        assert Path(from_hub[split]).read_bytes() == Path(from_lines[split]).read_bytes()
