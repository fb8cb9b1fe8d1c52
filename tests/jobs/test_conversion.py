"""Data sets that verl cannot read as they are: what a job makes of them, and what it says if it cannot."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planning import LEAST, NOW, cluster, job, overrides, typed

from cloudrl.data import prepare
from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.conversion import convert_data
from cloudrl.jobs.data_files import read_tables
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.findings import JobRefused
from cloudrl.jobs.local_files import inspect_files

ROOT = Path(__file__).parents[2]
ROWS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(48)]
SMALL = {"data.train_batch_size": 16, "actor_rollout_ref.actor.ppo_mini_batch_size": 16}


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def table(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in ([*rows[0]], *(row.values() for row in rows))))


def planned(
    here: Path, *data: str, reward: str | None = "./reward.py", nodes_are_here: bool = False, **changes: Any
) -> Submission:
    (here / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, **_):\n    return 0.0\n"
    )
    made = job(**{"data": (), **changes}).with_overrides(typed(*(f"{key}={value}" for key, value in SMALL.items())))
    options = SubmitOptions(data=data, reward=reward)
    files = convert_data(
        made, options, inspect_files(made, options, here=here),
        prepared=cluster().data, nodes_are_here=nodes_are_here, folder=here / "home" / "data",
    )  # fmt: skip
    return plan_job(
        made,
        options,
        Snapshot(cluster(), files, tables=read_tables(made, options, files, nodes_are_here=nodes_are_here), now=NOW),
    )


def refusal(here: Path, *data: str, **changes: Any) -> JobRefused:
    with pytest.raises(JobRefused) as caught:
        planned(here, *data, **changes)
    return caught.value


def rows_sent(submission: Submission) -> dict[str, list[dict[str, Any]]]:
    """The rows of each data file that goes with the job."""
    sent = [entry for upload in submission.uploads for entry in upload.entries if entry.name.endswith(".parquet")]
    return {entry.name: pq.read_table(entry.path).to_pylist() for entry in sent}


@pytest.mark.parametrize(
    ("name", "write"), [("questions.jsonl", lines), ("questions.parquet", table), ("questions.csv", csv)]
)
@pytest.mark.parametrize("mark", ["./", ""])
def test_raw_rows_are_converted_and_sent(tmp_path: Path, name: str, write: Any, mark: str) -> None:
    write(tmp_path / name, ROWS)
    submission = planned(tmp_path, mark + name)

    sent = rows_sent(submission)
    assert {part: len(rows) for part, rows in sent.items()} == {"train.parquet": 46, "test.parquet": 2}
    assert sent["train.parquet"][0]["prompt"] == [{"role": "user", "content": "0 + 1?"}]
    assert sent["train.parquet"][0]["reward_model"]["ground_truth"] == "1"
    assert overrides(submission)["data.train_files"].startswith("cloudrl_files/")
    assert f"{mark}{name} was converted for verl: 46 training and 2 validation rows" in submission.notes
    assert (
        f"./{name}: prompt from 'question', answer from 'answer'; training rows from 'train', test rows held out of "
        "them" in submission.notes
    )


def test_a_folder_of_raw_splits(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    lines(tmp_path / "mine" / "train.jsonl", ROWS)
    lines(tmp_path / "mine" / "test.jsonl", ROWS[:5])
    sent = rows_sent(planned(tmp_path, "./mine"))
    assert {part: len(rows) for part, rows in sent.items()} == {"train.parquet": 48, "test.parquet": 5}


def test_parquet_files_with_other_columns_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    table(tmp_path / "mine" / "train.parquet", ROWS)
    table(tmp_path / "mine" / "test.parquet", ROWS[:5])
    assert len(rows_sent(planned(tmp_path, "./mine"))["test.parquet"]) == 5


def test_what_verl_reads_is_sent_as_it_is(tmp_path: Path) -> None:
    lines(tmp_path / "questions.jsonl", ROWS)
    prepare(str(tmp_path / "questions.jsonl"), tmp_path / "mine")
    rows = pq.read_table(tmp_path / "mine" / "train.parquet").to_pylist()
    lines(tmp_path / "ready.jsonl", rows)
    for name in ("./mine", "./ready.jsonl", "./mine/train.parquet"):
        submission = planned(tmp_path, name)
        assert [note for note in submission.notes if "converted" in note] == []
    assert [upload.text for upload in planned(tmp_path, "./mine").uploads] == [
        "./mine/train.parquet",
        "./mine/test.parquet",
        "./reward.py",
    ]


def test_it_is_made_again_once_the_file_has_changed(tmp_path: Path) -> None:
    lines(tmp_path / "questions.jsonl", ROWS)
    before = planned(tmp_path, "./questions.jsonl")
    [made] = (tmp_path / "home" / "data").iterdir()
    stamp = (made / "train.parquet").stat().st_mtime_ns
    again = planned(tmp_path, "./questions.jsonl")
    assert (made / "train.parquet").stat().st_mtime_ns == stamp
    assert again.notes == before.notes

    lines(tmp_path / "questions.jsonl", ROWS[:40])
    assert (
        "./questions.jsonl was converted for verl: 38 training and 2 validation rows"
        in planned(tmp_path, "./questions.jsonl").notes
    )
    assert [*(tmp_path / "home" / "data").iterdir()] == [made]


def test_both_missing_columns_are_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv(tmp_path / "q.csv", [{"ask": "1?", "reply": "1"}] * 48)
    [finding] = refusal(tmp_path, "./q.csv").findings
    assert finding.text.startswith("data set ./q.csv has ask, reply: no column for the prompt (prompt, question, ")
    assert " and no column for the answer (answer, " in finding.text
    command, then = finding.hint.splitlines()
    assert command == "cloudrl data prepare ./q.csv --prompt-field ask --answer-field reply --to ./prepared"
    assert then == "Then: --data ./prepared"

    monkeypatch.chdir(tmp_path)
    _, *_words, to = shlex.split(command)
    prepare(json.dumps({"name": str(tmp_path / "q.csv"), "prompt_field": "ask", "answer_field": "reply"}), to)
    assert len(planned(tmp_path, "./prepared").uploads) == 3


def test_a_row_that_cannot_be_used_is_counted_as_in_the_file(tmp_path: Path) -> None:
    lines(tmp_path / "q.jsonl", [*ROWS[:2], {"question": "q", "answer": ""}, *ROWS])
    [finding] = refusal(tmp_path, "./q.jsonl").findings
    assert finding.text == "./q.jsonl train row 3: its answer is empty"
    assert finding.hint == "cloudrl data prepare ./q.jsonl --skip-bad --to ./prepared\nThen: --data ./prepared"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        (
            "q.jsonl",
            "{oops\n",
            "q.jsonl, line 1: not JSON: Expecting property name enclosed in double quotes (column 2)",
        ),
        ("q.parquet", "PAR1", "./q.parquet is not a parquet file: "),
        ("q.txt", "x", "--data ./q.txt is a file that does not end in .jsonl, .json, .csv, .parquet"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str, text: str) -> None:
    (tmp_path / name).write_text(content)
    assert text in refusal(tmp_path, f"./{name}").findings[0].text


def test_a_built_in_data_set_that_the_cluster_has_not_prepared(tmp_path: Path) -> None:
    submission = planned(tmp_path, "addition")
    assert {part: len(rows) for part, rows in rows_sent(submission).items()} == {
        "train.parquet": 2400,
        "test.parquet": 100,
    }
    assert planned(tmp_path, "gsm8k").uploads[0].text == "./reward.py", "it is on the cluster"


def test_files_that_a_recipe_names(tmp_path: Path) -> None:
    lines(tmp_path / "questions.jsonl", ROWS)
    assert len(rows_sent(planned(tmp_path, data=["./questions.jsonl"]))["train.parquet"]) == 46
    assert planned(tmp_path, "gsm8k", data=["./questions.jsonl"]).uploads[0].text == "./reward.py"


def test_a_misspelt_data_set(tmp_path: Path) -> None:
    finding, *_ = refusal(tmp_path, "gsm9k").findings
    assert finding.text == "--data gsm9k is neither a data set nor a file or folder here; did you mean 'gsm8k'?"
    assert finding.hint.splitlines()[0] == "Cluster 'lab' has: gsm8k"


def test_an_absolute_path_is_one_of_this_machine_if_the_nodes_are_here(tmp_path: Path) -> None:
    lines(tmp_path / "questions.jsonl", ROWS)
    name = str(tmp_path / "questions.jsonl")
    assert len(rows_sent(planned(tmp_path, name, nodes_are_here=True))["train.parquet"]) == 46
    elsewhere = planned(tmp_path, name)
    assert overrides(elsewhere)["data.train_files"] == name
    assert rows_sent(elsewhere) == {}


EXCEPTIONS = """
class DatasetsError(Exception): pass
class DatasetNotFoundError(DatasetsError): pass
"""
DATASETS = """
from datasets.exceptions import DatasetNotFoundError
def load_dataset(name, config):
    if name != "owner/sums":
        raise DatasetNotFoundError(f"{name} does not exist")
    return {"train": [{"question": f"{number} + 1?", "answer": number + 1} for number in range(48)]}
"""
ASK = """
import sys
from pathlib import Path
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.conversion import convert_data
from cloudrl.jobs.local_files import inspect_files
from cloudrl.spec import Job
job, options = Job(name="x"), SubmitOptions(data=(sys.argv[1],))
files = convert_data(job, options, inspect_files(job, options), prepared=(), folder=Path("home"))
conversion = files.conversions[sys.argv[1]]
print(*conversion.choices, conversion.error and conversion.error.message, files.at(f"{sys.argv[1]}/train.parquet").path)
"""


def test_a_data_set_on_the_hub(tmp_path: Path) -> None:
    """With a stand-in for `datasets`, which itself reads its variables when it is imported."""
    (tmp_path / "packages" / "datasets").mkdir(parents=True)
    for file, text in (("__init__", DATASETS), ("exceptions", EXCEPTIONS)):
        (tmp_path / "packages" / "datasets" / f"{file}.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path / "packages"), str(ROOT)))}

    def ask(name: str) -> str:
        words = [sys.executable, "-c", ASK, name]
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120).stdout

    said = ask("owner/sums")
    assert said.startswith("owner/sums: prompt from 'question', answer from 'answer'; ")
    assert said.rstrip().endswith("home/owner--sums/train.parquet")
    assert pq.read_metadata(tmp_path / "home" / "owner--sums" / "train.parquet").num_rows == 46
    assert ask("owner/smus").startswith("data set owner/smus: owner/smus is not on https://huggingface.co, or may not")


def test_a_file_that_is_not_there_is_not_asked_for_on_the_hub(tmp_path: Path) -> None:
    made, options = job(data=()), SubmitOptions(data=("data/train.parquet",))
    files = convert_data(made, options, inspect_files(made, options, here=tmp_path), prepared=(), folder=tmp_path)
    assert files.conversions == {}


def test_a_column_that_the_converted_file_does_not_have(tmp_path: Path) -> None:
    lines(tmp_path / "sums.jsonl", ROWS)
    with pytest.raises(JobRefused) as caught:
        planned(
            tmp_path,
            "./sums.jsonl",
            overrides={"algorithm.adv_estimator": "grpo", **LEAST, "data.prompt_key": "question"},
        )
    assert "has verl's own columns" in str(caught.value)
    assert "~data.prompt_key" in str(caught.value)
