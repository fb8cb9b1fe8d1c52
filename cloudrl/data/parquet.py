"""Rows into train.parquet and test.parquet. Standard library only at import time: writing takes pyarrow."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.data.packages import package
from cloudrl.data.progress import counted, silent
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Type, Union

SPLITS = ("train", "test")
ROWS_A_GROUP = 2000
"""So many rows are held in memory at most, of each split."""


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
    _look_at(folder)
    with _staging(folder) as staged:
        _write(name, staged, counted(name, rows, say))
        _publish(staged, folder)
    return {split: str(folder / _file(split)) for split in SPLITS}


def _file(split: str) -> str:
    return f"{split}.parquet"


def _look_at(folder: Path) -> None:
    """Refuse what could only fail, or do harm, after all the work."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; a folder is expected")
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
    with contextlib.ExitStack() as stack:
        files = {
            split: stack.enter_context(_SplitFile(f"{name} {split}", staged / _file(split)))
            for split in SPLITS
        }
        for split, row in rows:
            files[split].add(row)
    for split in SPLITS:
        if not (staged / _file(split)).exists():
            raise InputError(f"{name} {split}: there are no rows")
        (staged / _file(split)).chmod(0o644)


def _publish(staged: Path, folder: Path) -> None:
    """Let the files appear under their names."""
    if not folder.exists():
        staged.chmod(0o755)  # mkdtemp makes folders that only their owner can enter
        staged.rename(folder)
        return
    old = {folder / _file(split): staged / f"old-{split}" for split in SPLITS}
    placed = []
    try:
        for path, kept in old.items():
            if path.exists():
                path.rename(kept)
        for path in old:
            (staged / path.name).rename(path)
            placed.append(path)
    except BaseException:
        for path, kept in old.items():
            if kept.exists():
                kept.replace(path)
            elif path in placed:
                path.unlink()
        raise


class _SplitFile:
    """One growing parquet file, a row group at a time. It comes to be with its first row."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._rows: List[Mapping[str, object]] = []
        self._writer: Any = None

    def __enter__(self) -> _SplitFile:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._rows and error is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def add(self, row: Mapping[str, object]) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_A_GROUP:
            self._flush()

    def _flush(self) -> None:
        arrow = package("pyarrow")
        schema = None if self._writer is None else self._writer.schema
        try:
            table = arrow.Table.from_pylist(self._rows, schema=schema)
        except (arrow.ArrowException, UnicodeEncodeError) as error:
            raise InputError(
                f"{self._name}: its columns change their types, or cannot be written: {error}"
            ) from error
        if self._writer is None:
            self._writer = package("pyarrow.parquet").ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)
        self._rows = []
