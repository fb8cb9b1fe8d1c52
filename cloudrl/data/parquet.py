"""Rows into train.parquet and test.parquet. Standard library only at import time: writing takes pyarrow."""

import contextlib
import importlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Tuple, TypeVar, Union

from cloudrl.errors import InputError

Row = TypeVar("Row")

SPLITS = ("train", "test")
ROWS_A_GROUP = 2000
"""So many rows are held in memory at most, of each split."""
SAY_EVERY_S = 2.0


def silent(_: str) -> None:
    """Say nothing."""


def write_splits(
    name: str,
    folder: Union[str, Path],
    rows: Iterable[Tuple[str, Mapping[str, object]]],
    *,
    say: Callable[[str], None] = silent,
) -> Dict[str, str]:
    """Write both files so that they appear whole and together or not at all; the same rows give the same bytes.

    A new folder appears with both in it. In one that is there already the old files are taken away, and put back
    if the new ones cannot take their places.

    Args:
        name: The data set, for messages.
        folder: Where to write; made if need be.
        rows: (split, row) pairs in any order; the columns and their types are those of the first rows of a split.
        say: Is called with lines about the progress.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        InputError: A split has no rows, columns change their types, or the folder cannot be written.
        Whatever `rows` raises; then nothing is written either.
    """
    folder = Path(folder).expanduser().absolute()
    _check_target(folder)
    with _staging(folder) as staged:
        _write(name, staged, counted(name, rows, say))
        _publish(staged, folder)
    return {split: str(folder / _file(split)) for split in SPLITS}


def _file(split: str) -> str:
    return f"{split}.parquet"


def _check_target(folder: Path) -> None:
    """Refuse what could only fail, or do harm, after all the work."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; a folder is expected", hint="Name a new folder: --to DIR")
    for path in (folder / _file(split) for split in SPLITS):
        if path.is_dir():
            raise InputError(f"{path} is a folder, where a file is to be written")


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder on the same file system, where files can grow unseen."""
    try:
        beside = folder if folder.exists() else folder.parent
        beside.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=beside, prefix=f".{folder.name}-", suffix=".partial"))
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _write(name: str, staged: Path, rows: Iterable[Tuple[str, Mapping[str, object]]]) -> None:
    """Write both files, a row group at a time; each is created with its first row."""
    pending: Dict[str, List[Mapping[str, object]]] = {split: [] for split in SPLITS}
    writers: Dict[str, Any] = {}
    with contextlib.ExitStack() as stack:

        def flush(split: str) -> None:
            schema = writers[split].schema if split in writers else None
            table = _table(f"{name} {split}", pending[split], schema)
            if split not in writers:
                writer = package("pyarrow.parquet").ParquetWriter(staged / _file(split), table.schema)
                writers[split] = stack.enter_context(writer)
            writers[split].write_table(table)
            pending[split].clear()

        for split, row in rows:
            pending[split].append(row)
            if len(pending[split]) >= ROWS_A_GROUP:
                flush(split)
        for split in SPLITS:
            if pending[split]:
                flush(split)
            if split not in writers:
                raise InputError(f"{name} {split}: there are no rows")
    for split in SPLITS:
        (staged / _file(split)).chmod(0o644)


def _table(name: str, rows: List[Mapping[str, object]], schema: Any) -> Any:
    arrow = package("pyarrow")
    try:
        return arrow.Table.from_pylist(rows, schema=schema)
    except (arrow.ArrowException, UnicodeEncodeError) as error:
        raise InputError(f"{name}: its columns change their types, or cannot be written: {error}") from error


def _publish(staged: Path, folder: Path) -> None:
    """Let the files appear under their names."""
    if not folder.exists():
        staged.chmod(0o755)  # mkdtemp makes folders that only their owner can enter
        staged.rename(folder)
        return
    old = {folder / _file(split): staged / f"old-{split}" for split in SPLITS}
    placed = []
    try:
        for path, backup in old.items():
            if path.exists():
                path.rename(backup)
        for path in old:
            (staged / path.name).rename(path)
            placed.append(path)
    except BaseException:
        for path, backup in old.items():
            if backup.exists():
                backup.replace(path)
            elif path in placed:
                path.unlink()
        raise


def counted(
    name: str,
    rows: Iterable[Tuple[str, Row]],
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Tuple[str, Row]]:
    """The same (split, row) pairs; every few seconds it says how many there were and how fast they come."""
    counts: Counter[str] = Counter()
    started_at = said_at = clock()
    for split, row in rows:
        counts[split] += 1
        now = clock()
        if now - said_at >= SAY_EVERY_S:
            said_at = now
            say(f"{name}: {_row_counts(counts)}, {sum(counts.values()) / max(now - started_at, 1e-9):,.0f} rows/s")
        yield split, row
    say(f"{name}: {_row_counts(counts)} in {clock() - started_at:.1f} s")


def _row_counts(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{rows:,} {split}" for split, rows in counts.items()) + " rows"


def package(name: str) -> Any:
    """Import a module of `pyarrow` or `datasets`, which the image of a node has, and a laptop may not.

    Raises:
        InputError: It is not installed; the hint is the command that does it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        raise InputError(
            f"preparing data needs {top}, which {sys.executable} does not have",
            hint=f"{sys.executable} -m pip install {top}",
        ) from error
