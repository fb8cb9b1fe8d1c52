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

GOOD = ("prompt", "data_source", "reward_model")


def write(path: Path, rows: int, columns: tuple[str, ...] = GOOD) -> None:
    pq.write_table(pa.table({name: ["x"] * rows for name in columns}), path)


def checked(here: Path, *overrides: str, tables: dict[str, Table] | None = None) -> Submission:
    words = ("data.train_files=./train.parquet", "data.val_files=./test.parquet", *overrides)
    options, made = SubmitOptions(overrides=typed(*words)), job()
    files = inspect_files(made, options, here=here)
    read = read_tables(made, options, files) if tables is None else tables
    return plan_job(made, options, Snapshot(cluster(), files, tables=read, now=NOW))


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
    [finding] = refusal(tmp_path, "data.prompt_key=question", "reward.reward_manager.name=naive").findings[:1]
    assert "./test.parquet has no column 'question' (it has" in finding.text


def test_fewer_rows_than_a_batch(tmp_path: Path) -> None:
    for name in ("train.parquet", "test.parquet"):
        write(tmp_path / name, 48)
    refused = refusal(tmp_path)
    assert "data.train_batch_size=1024, and the training files have 48 rows" in refused.findings[0].text
    assert refused.rest == ()
    assert checked(tmp_path, *refused.fix).warnings == ()


def test_what_is_no_parquet_file_and_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"xxxx")
    write(tmp_path / "test.parquet", 5)
    [finding] = refusal(tmp_path).findings
    assert finding.text.startswith("./train.parquet is not a parquet file: ")
    unread = {"./train.parquet": Table(is_read=False)}
    assert (
        "the columns and rows of ./train.parquet (this Python has no pyarrow)"
        in checked(tmp_path, tables=unread).not_checked
    )
