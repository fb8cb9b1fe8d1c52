"""What is in the parquet files of this machine that a job reads: rows and columns, from their footers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudrl.jobs.local_files import PARTS, LocalFiles
from cloudrl.options.job import SubmitOptions
from cloudrl.spec import Job
from cloudrl.spec.hydra import items, parse_overrides
from cloudrl.verl.keys import TRAIN_FILES, VAL_FILES


@dataclass(frozen=True)
class Table:
    """A parquet file.

    Attributes:
        rows: how many.
        columns: their names.
        error: why it cannot be read, in words; "" where it was.
        is_read: whether this Python has pyarrow to read it.
    """

    rows: int = 0
    columns: tuple[str, ...] = ()
    error: str = ""
    is_read: bool = True


def read_tables(job: Job, options: SubmitOptions, files: LocalFiles) -> dict[str, Table]:
    """The parquet files that are here, by the name that the job has for each."""
    return {name: _table(path) for name, path in _paths(job, options, files)}


def _paths(job: Job, options: SubmitOptions, files: LocalFiles) -> Iterator[tuple[str, Path]]:
    values = parse_overrides(job.with_overrides(options.overrides).overrides)
    folders = [f"{name.rstrip('/')}/{part}" for name in options.data for part in PARTS]
    for name in (*options.data, *folders, *items(values.get(TRAIN_FILES, "")), *items(values.get(VAL_FILES, ""))):
        file = files.at(name)
        if file.exists and not file.is_folder and name.endswith(".parquet"):
            yield name, file.path


def _table(path: Path) -> Table:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        return Table(is_read=False)
    try:
        with ParquetFile(path) as file:
            return Table(file.metadata.num_rows, tuple(file.schema_arrow.names))
    except (OSError, pa.ArrowException) as failure:
        return Table(error=str(failure).strip().splitlines()[0].rstrip("."))


def rows_of(names: tuple[str, ...], tables: Mapping[str, Table]) -> int | None:
    """The rows of all files together; None if one of them is not here."""
    found = [tables[name].rows for name in names if name in tables and tables[name].is_read and not tables[name].error]
    return sum(found) if names and len(found) == len(names) else None
