"""What is in the data files of this machine that a job reads: rows, columns and data sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudrl.data.files import read_files
from cloudrl.errors import InputError
from cloudrl.foreign import Malformed, parse_object
from cloudrl.jobs.local_files import LocalFiles, data_names, part_names
from cloudrl.options.job import SubmitOptions
from cloudrl.spec import Job
from cloudrl.spec.hydra import items
from cloudrl.verl.keys import TRAIN_FILES, VAL_FILES

SUFFIXES = (".parquet", ".json", ".jsonl")
"""What verl reads (verl 0.9.1, utils/dataset/rl_dataset.py: RLHFDataset._download)."""
COLUMN_KEYS = {"data.prompt_key": "prompt", "data.reward_fn_key": "data_source"}
"""The keys that name a column, with their defaults (verl 0.9.1, trainer/config/data/legacy_data.yaml)."""
_REWARD_COLUMN, _TRUTH = "reward_model", "ground_truth"
_LIMIT_BYTES, _LONGEST_LINE_BYTES = 256 << 20, 1 << 20
"""Of json, which has to be read for its rows; the rows of a larger file are not counted. Parquet has the number."""


@dataclass(frozen=True)
class Columns:
    """The columns that verl's data set and reward manager read.

    Attributes:
        prompt: a list of messages.
        source: what a reward function is chosen by; "" where the job has a reward manager of its own.
        truth: a mapping with `ground_truth`; "" likewise.
    """

    prompt: str = "prompt"
    source: str = "data_source"
    truth: str = _REWARD_COLUMN

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(filter(None, (self.prompt, self.source, self.truth)))


def columns_read(values: Mapping[str, str]) -> Columns:
    """The columns that a job with these overrides reads.

    Source: verl 0.9.1, utils/dataset/rl_dataset.py: RLHFDataset; experimental/reward_loop/reward_manager/naive.py.
    """
    prompt, source = (values.get(key, column) for key, column in COLUMN_KEYS.items())
    scores_itself = any(key.removeprefix("reward.").startswith("reward_manager.") for key in values)
    return Columns(prompt, "", "") if scores_itself else Columns(prompt, source)


@dataclass(frozen=True)
class Table:
    """A file of rows.

    Attributes:
        rows: how many; None if they were not counted.
        columns: their names.
        malformed: columns that verl cannot read -> what they hold and what verl reads, in words.
        sources: the values in the column by which verl chooses a reward function.
        error: why it cannot be read, in words; "" where it was.
        is_read: whether it was looked into: parquet takes pyarrow, and a large json has to have rows as lines.
    """

    rows: int | None = 0
    columns: tuple[str, ...] = ()
    malformed: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    error: str = ""
    is_read: bool = True


def read_tables(
    job: Job, options: SubmitOptions, files: LocalFiles, *, nodes_are_here: bool = False
) -> dict[str, Table]:
    """The data files that are here, by the name that the job has for each.

    Args:
        job: the recipe.
        options: what is asked for beyond it.
        files: what is at the paths that both name.
        nodes_are_here: whether an absolute path is one of this machine, too.
    """
    values = job.with_overrides(options.overrides).values
    wanted = columns_read(values)
    paths = _paths(values, data_names(job, options), files)
    return {name: read_table(path, wanted) for name, path in paths if nodes_are_here or not name.startswith("/")}


def _paths(values: Mapping[str, str], names: tuple[str, ...], files: LocalFiles) -> Iterator[tuple[str, Path]]:
    folders = [part for name in names for part in part_names(name)]
    for name in (*names, *folders, *items(values.get(TRAIN_FILES, "")), *items(values.get(VAL_FILES, ""))):
        file = files.at(name)
        if file.exists and not file.is_folder and name.endswith(SUFFIXES):
            yield name, file.path


def read_table(path: Path, wanted: Columns) -> Table:
    """Look at a file.

    Args:
        path: the file.
        wanted: the columns to look into.
    """
    try:
        return _parquet(path, wanted) if path.suffix == ".parquet" else _json(path, wanted)
    except ImportError:
        return Table(is_read=False)


def _parquet(path: Path, wanted: Columns) -> Table:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names, first = tuple(file.schema_arrow.names), next(file.iter_batches(1), None)
            row = first.to_pylist()[0] if first else {}
            values: set[Any] = set()
            if wanted.source in names:
                for batch in file.iter_batches(columns=[wanted.source]):
                    values.update(batch.column(0).unique().to_pylist())
            return Table(file.metadata.num_rows, names, _malformed(row, wanted), _sources(values))
    except (OSError, pa.ArrowException) as failure:
        return Table(error=f"is not a parquet file: {str(failure).strip().splitlines()[0].rstrip('.')}")


def _json(path: Path, wanted: Columns) -> Table:
    """The columns are those of the first row, as in `datasets`."""
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            return _large_json(path, wanted)
        first, values, count = dict[str, Any](), set[Any](), 0
        for row in read_files(path)["train"]:
            first = first or dict(row)
            values.add(str(row.get(wanted.source, "")))
            count += 1
    except (InputError, OSError) as failure:
        return Table(error=f"cannot be read: {failure}")
    return Table(count, tuple(first), _malformed(first, wanted), _sources(values))


def _large_json(path: Path, wanted: Columns) -> Table:
    """What the first line says."""
    with path.open("rb") as file:
        line = file.readline(_LONGEST_LINE_BYTES)
    try:
        row = parse_object(line)
    except Malformed:
        return Table(is_read=False)
    return Table(None, tuple(row), _malformed(row, wanted))


def _sources(values: set[Any]) -> tuple[str, ...]:
    return tuple(sorted(value for value in values if isinstance(value, str) and value))


def _malformed(row: Mapping[str, Any], wanted: Columns) -> dict[str, str]:
    """What of the first row verl cannot read, by column."""
    prompt, truth = row.get(wanted.prompt), row.get(wanted.truth)
    found = {}
    if isinstance(prompt, str):
        found[wanted.prompt] = "holds text, and verl reads a list of messages with role and content"
    if truth is not None and not (isinstance(truth, Mapping) and _TRUTH in truth):
        found[wanted.truth] = f"has no field {_TRUTH!r}, in which verl reads the right answer"
    return found


def rows_of(names: tuple[str, ...], tables: Mapping[str, Table]) -> int | None:
    """The rows of all files together; None if one of them is not here, or was not counted."""
    found = [tables[name].rows for name in names if name in tables and tables[name].is_read and not tables[name].error]
    counted = [rows for rows in found if rows is not None]
    return sum(counted) if names and len(counted) == len(names) else None
