"""Data files of this machine: what verl could not train on is found before the job is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planning import NOW, cluster, job, typed

from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.data_files import Table, read_tables
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.findings import JobRefused
from cloudrl.jobs.local_files import inspect_files
from cloudrl.jobs.prompt_lengths import PromptLengths
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.verl.setting import BATCH

GOOD = ("prompt", "data_source", "reward_model")


CELLS = {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"ground_truth": "2"}}


def write(path: Path, rows: int, columns: tuple[str, ...] = GOOD, **cells: Any) -> None:
    pq.write_table(pa.table({name: [{**CELLS, **cells}.get(name, "openai/gsm8k")] * rows for name in columns}), path)


def checked(
    here: Path,
    *overrides: str,
    tables: dict[str, Table] | None = None,
    facts: ClusterFacts | None = None,
    prompts: PromptLengths | None = None,
) -> Submission:
    words = ("data.train_files=./train.parquet", "data.val_files=./test.parquet", "trainer.save_freq=5", *overrides)
    options, made = SubmitOptions(overrides=typed(*words)), job()
    files = inspect_files(made, options, here=here)
    read = read_tables(made, options, files) if tables is None else tables
    return plan_job(made, options, Snapshot(facts or cluster(), files, tables=read, prompts=prompts, now=NOW))


def refusal(*arguments: Any, **keywords: Any) -> JobRefused:
    with pytest.raises(JobRefused) as caught:
        checked(*arguments, **keywords)
    return caught.value


def test_files_that_verl_reads(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", 2000)
    write(tmp_path / "test.parquet", 0)
    submission = checked(tmp_path)
    assert submission.warnings == ("data.val_files has no rows: nothing is validated",)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", 2000, ("question", "answer"))
    write(tmp_path / "test.parquet", 5)
    [finding] = refusal(tmp_path).findings
    assert finding.text == (
        "./train.parquet has no column 'prompt' and no 'data_source' and no 'reward_model' (it has: question, answer)"
    )
    assert finding.hint == "Make it one that verl reads: cloudrl data prepare ./train.parquet --to ./prepared"
    text, missing = refusal(tmp_path, "data.prompt_key=question", "reward.reward_manager.name=naive").findings[:2]
    assert text.text == (
        "./train.parquet: column 'question' holds text, and verl reads a list of messages with role and content"
    )
    assert "./test.parquet has no column 'question' (it has" in missing.text


def test_fewer_rows_than_a_batch(tmp_path: Path) -> None:
    for name in ("train.parquet", "test.parquet"):
        write(tmp_path / name, 48)
    refused = refusal(tmp_path)
    assert "data.train_batch_size=1024, and the training files have 48 rows" in refused.findings[0].text
    assert refused.rest == ()
    assert checked(tmp_path, *refused.fix).warnings == ()


def test_fewer_rows_of_a_built_in_data_set_than_a_batch() -> None:
    def warnings(batch: int, *more: str) -> tuple[str, ...]:
        asked, options = job(), SubmitOptions(overrides=typed(f"{BATCH}={batch}", *more), unchecked=True)
        return plan_job(asked, options, Snapshot(cluster(), inspect_files(asked, options))).warnings

    [warning] = [text for text in warnings(8000) if "7473 rows" in text]
    assert warning.startswith("data.train_batch_size=8000, and the training data has 7473 rows: verl drops a batch")
    assert not any("rows: verl drops" in text for text in warnings(7472))
    assert not any("rows: verl drops" in text for text in warnings(8000, "data.train_files=/d/train.parquet"))


def test_what_is_no_parquet_file_and_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"xxxx")
    write(tmp_path / "test.parquet", 5)
    [finding] = refusal(tmp_path).findings
    assert finding.text.startswith("./train.parquet is not a parquet file: ")
    unread = {"./train.parquet": Table(is_read=False)}
    assert (
        "the columns and rows of ./train.parquet (too large to read here, or this Python has no pyarrow)"
        in checked(tmp_path, tables=unread).not_checked
    )


REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.0\n"


def test_a_data_source_that_verl_cannot_score(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", 2000, data_source="mine")
    write(tmp_path / "test.parquet", 5)
    [finding] = refusal(tmp_path).findings
    assert finding.text == (
        "./train.parquet: verl has no reward function for data source 'mine', and the job names none"
    )
    assert finding.hint == "Give your own: --reward ./reward.py"

    (tmp_path / "reward.py").write_text(REWARD)
    assert checked(tmp_path, "reward.custom_reward_function.path=./reward.py").warnings == ()
    assert checked(tmp_path, "reward.reward_manager.name=dapo").warnings == ()


def test_another_verl_may_score_it(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", 2000, data_source="mine")
    write(tmp_path / "test.parquet", 5)
    [warning] = [each for each in checked(tmp_path, facts=cluster(verl_version="0.9.7")).warnings if "reward" in each]
    assert warning.endswith("NotImplementedError in step 1 unless your verl has one")


@pytest.mark.parametrize(
    ("overrides", "what"),
    [((), "cuts off their beginning"), (("data.filter_overlong_prompts=True",), "leaves them out")],
)
def test_prompts_that_are_too_long(tmp_path: Path, overrides: tuple[str, ...], what: str) -> None:
    for name in ("train.parquet", "test.parquet"):
        write(tmp_path / name, 2000)
    lengths = PromptLengths(9.0, "", "./train.parquet", (3, 20, 700))
    [warning] = checked(tmp_path, *overrides, prompts=lengths).warnings
    assert warning == (
        "1 of the first 3 prompts of ./train.parquet have more tokens than data.max_prompt_length=512, the longest 700 "
        f"and a chat template: verl {what}"
    )
    assert checked(tmp_path, "data.max_prompt_length=700", prompts=lengths).warnings == ()
