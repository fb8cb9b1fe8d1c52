"""`gsm8k`, `math` and `nq_search` against the scripts and reward functions that verl and Search-R1 have for them.

*.verl.jsonl is what verl 0.9.0's examples/data_preprocess/gsm8k.py and math_dataset.py make of the raw rows beside it
with `--local_dataset_path`; *.search-r1.jsonl what scripts/data_process/nq_search.py of PeterGriffinJin/Search-R1 at
a14dc3a does. Read row by row; questions and problems are ours.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verl_forks import Script

from cloudrl.data import gsm8k, math, nq_search, nq_search_tool
from cloudrl.data.parquet import SPLITS
from cloudrl.data.request import built_in, parse_request
from cloudrl.errors import InputError
from cloudrl.protocol.data_sets import BUILT_IN

MODULES = {"gsm8k": gsm8k, "math": math, "nq_search": nq_search}
COUNTS = {"gsm8k": (7, 2), "math": (12, 3), "nq_search": (4, 2)}
TEXT = pa.string()
PROMPT = pa.list_(pa.struct({"role": TEXT, "content": TEXT}))
RULE = pa.struct({"style": TEXT, "ground_truth": TEXT})
PLACE = {"split": TEXT, "index": pa.int64()}
COLUMNS = {
    "gsm8k": {
        "data_source": TEXT, "prompt": PROMPT, "ability": TEXT, "reward_model": RULE,
        "extra_info": pa.struct({**PLACE, "answer": TEXT, "question": TEXT}),
    },
    "math": {
        "level": TEXT, "type": TEXT, "data_source": TEXT, "prompt": PROMPT, "ability": TEXT, "reward_model": RULE,
        "extra_info": pa.struct(PLACE),
    },
    "nq_search": {
        "id": TEXT, "question": TEXT, "golden_answers": pa.list_(TEXT), "data_source": TEXT, "prompt": PROMPT,
        "ability": TEXT,
        "reward_model": pa.struct({"style": TEXT, "ground_truth": pa.struct({"target": pa.list_(TEXT)})}),
        "extra_info": pa.struct(PLACE),
    },
}  # fmt: skip


def raw(name: str) -> Path:
    return Path(__file__).parent / name


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", MODULES)
def test_rows_and_columns_are_those_of_the_script(name: str, tmp_path: Path) -> None:
    paths = MODULES[name].prepare(tmp_path, source=raw(name))
    for split, count in zip(SPLITS, COUNTS[name], strict=True):
        rows = pq.read_table(paths[split]).to_pylist()
        [wanted] = raw(name).glob(f"{split}.*.jsonl")
        assert rows == rows_of(wanted)
        assert [list(row) for row in rows] == [list(COLUMNS[name])] * count
        assert [(field.name, field.type) for field in pq.read_schema(paths[split])] == [*COLUMNS[name].items()]


@pytest.mark.parametrize(
    ("name", "place", "parts"), [("gsm8k", "main", 1), ("math", "data", 2), ("nq_search", "nq", 0)]
)
def test_a_copy_of_the_hubs_repository_is_a_source(name: str, place: str, parts: int, tmp_path: Path) -> None:
    copy = tmp_path / "repository" / place
    copy.mkdir(parents=True)
    for split in SPLITS:
        rows = rows_of(raw(name) / f"{split}.jsonl")
        for part in range(parts):
            some = rows[: 2 * (parts - 1)] if part == 0 and parts > 1 else rows[2 * (parts - 1) :]
            pq.write_table(pa.Table.from_pylist(some), copy / f"{split}-0000{part}-of-0000{parts}.parquet")
        if not parts:
            shutil.copy(raw(name) / f"{split}.jsonl", copy)
    from_copy = MODULES[name].prepare(tmp_path / "a", source=copy.parent)
    from_lines = MODULES[name].prepare(tmp_path / "b", source=raw(name))
    for split in SPLITS:
        assert Path(from_copy[split]).read_bytes() == Path(from_lines[split]).read_bytes()


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"question": "How many?", "answer": "I think it is seven."},
         "no '#### <number>' in its answer, which ends 'I think it is seven.'"),
        ("gsm8k", {"question": "How many?", "solution": "#### 7"},
         "question and answer should be texts; it has question, solution"),
        ("gsm8k", {"question": "How many?", "answer": 7},
         "question and answer should be texts; it has answer, question"),
        ("math", {"problem": "How many?", "solution": r"It is $\fbox{7}$."},
         r"no \boxed{...} in its solution, which ends 'It is $\\fbox{7}$.'"),
        ("math", {"problem": "How many?", "answer": r"\boxed{7}"},
         "problem and solution should be texts; it has answer, problem"),
        ("math", {"problem": None, "solution": r"\boxed{7}"},
         "problem and solution should be texts; it has problem, solution"),
        ("nq_search", {"question": "who", "answer": "x"},
         "question should be a text and golden_answers a list; it has answer, question"),
        ("nq_search", {"question": "who", "golden_answers": "x"},
         "question should be a text and golden_answers a list; it has golden_answers, question"),
        ("nq_search", {"question": " ", "golden_answers": ["x"]}, "its question or its list of answers is empty"),
        ("nq_search", {"question": "who", "golden_answers": []}, "its question or its list of answers is empty"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_and_nothing_is_written(
    name: str, row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for split in SPLITS:
        rows = rows_of(raw(name) / f"{split}.jsonl")
        written = [*rows[:2], row, *rows[3:]] if split == "train" else rows
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in written))
    with pytest.raises(InputError, match=f"^{name} train row 3: {re.escape(message)}$"):
        MODULES[name].prepare(tmp_path / "out", source=folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_the_rows_for_todays_verl_differ_from_search_r1s_in_source_and_prompt_alone(tmp_path: Path) -> None:
    paths = nq_search_tool.prepare(tmp_path, source=raw("nq_search"))
    for split in SPLITS:
        rows, forks = pq.read_table(paths[split]).to_pylist(), rows_of(raw("nq_search") / f"{split}.search-r1.jsonl")
        for row, wanted in zip(rows, forks, strict=True):
            [message] = row["prompt"]
            assert message["role"] == "user"
            assert message["content"].endswith(f"Question: {wanted['question']}\n")
            assert "call the function search" in message["content"]
            assert "<search>" not in message["content"]
            assert {**row, "data_source": "nq", "prompt": wanted["prompt"]} == wanted
            assert row["data_source"] == nq_search_tool.DATA_SOURCE


@pytest.mark.verl
def test_verl_scores_an_answer_to_the_rows_for_it(tmp_path: Path) -> None:
    """The text that it scores is what model and tool have written, without the prompt and its example."""
    from verl.utils.reward_score import default_compute_score

    row = pq.read_table(nq_search_tool.prepare(tmp_path, source=raw("nq_search"))["train"]).to_pylist()[1]
    truth = row["reward_model"]["ground_truth"]
    assert truth == {"target": ["William Shakespeare", "Shakespeare"]}
    for answer, score in (
        ("<answer> The Shakespeare. </answer>", 1.0),
        ("Shakespeare", 0.0),
        ("<answer>x</answer>", 0.0),
    ):
        assert default_compute_score(row["data_source"], answer, truth) == score


@pytest.mark.parametrize("module", [nq_search, nq_search_tool])
def test_a_data_sets_own_name_means_it_and_the_hubs_collection_does_not(module: ModuleType) -> None:
    """The repository on the Hub holds dozens of data sets."""
    [name] = [each.name for each in BUILT_IN.values() if each.module == module.__name__]
    known = BUILT_IN[name]
    assert built_in(parse_request(name)) is known
    assert known.hub_id == module.HUB_ID
    assert built_in(parse_request(nq_search.HUB_ID)) is None


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("3 + 4\n#### 7", "7"),
        ("#### 1,234,567", "1234567"),
        ("#### -5", "-5"),
        ("#### 0.50", "0.50"),
        ("#### 15%", "15"),
        ("#### 1\n#### 2", "1"),
        ("#### 12.", "12."),
        ("####7", None),
        ("#### $7", None),
        ("####  7", None),
        ("#### - 5", None),
        ("seven", None),
        ("", None),
    ],
)
def test_the_final_answer_of_gsm8k_follows_verls_expression(answer: str, number: str | None) -> None:
    assert gsm8k.final_answer(answer) == number


@pytest.mark.verl
def test_verls_reward_finds_the_ground_truth_in_the_answer() -> None:
    from verl.utils.reward_score.gsm8k import compute_score

    for row in rows_of(raw("gsm8k") / "train.verl.jsonl"):
        answer, truth = row["extra_info"]["answer"], row["reward_model"]["ground_truth"]
        last_line = answer.splitlines()[-1]
        assert compute_score(last_line, gsm8k.final_answer(last_line)) == 1.0
        assert gsm8k.final_answer(answer) == truth


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    shutil.copy(raw("gsm8k") / "train.jsonl", tmp_path)
    with pytest.raises(InputError, match=r"has no test split of gsm8k: its splits are train$"):
        gsm8k.prepare(tmp_path / "out", source=tmp_path)


@pytest.mark.io
def test_a_failed_download_ends_the_agents_child_with_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    """The real `datasets`, told not to use the network: as a node without a way out, but at once."""
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "cloudrl.node", "data", "gsm8k", "--to", str(tmp_path / "out")]
    command.append(f"--result={result}")
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    env.pop("HF_ENDPOINT", None)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    last = json.loads(result.read_text())["reason"]
    assert "data set gsm8k: openai/gsm8k is not in the cache, and HF_HUB_OFFLINE=1 forbids to download it (" in last
    assert last.endswith(") export HF_HUB_OFFLINE=0; Or give a folder of its rows as source")
    assert len(last) < 450
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $x = \boxed{7}$.", "7"), (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"), (r"\boxed 5$ apples", "5"), (r"\boxed 5 apples", "5 apples"),
        (r"\boxed 3$ and \boxed{4}", "3"), (r"\boxed{}", ""), (r"\boxed{a}}", "a"),
        (r"\boxed{\{1\}}", r"\{1\}"), (r"\fbox{7}", None), (r"\fbox{7} \boxed{8}", "8"),
        (r"\boxed{7} \fbox{8}", "7"), (r"\boxed{7", None), (r"\boxed{1} \boxed{2", None), (r"\boxed7", None),
        (r"\boxed5 and {x}", None), (r"\boxed", None), ("seven", None), ("", None),
    ],
)  # fmt: skip
def test_the_final_answer_of_math_follows_verls_functions(solution: str, answer: str | None) -> None:
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
    found += [row["solution"] for split in SPLITS for row in rows_of(raw("math") / f"{split}.jsonl")]
    return found


@pytest.mark.verl
def test_verls_own_functions_find_the_same_answers(solutions: list[str]) -> None:
    verls = json.loads(Script(VERL, given=json.dumps(solutions)).end()[-1])
    assert [math.final_answer(each) for each in solutions] == verls
    assert 200 < sum(answer is not None for answer in verls) < len(verls) - 200
