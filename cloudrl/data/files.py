"""Raw rows from local files: jsonl, json, csv and parquet, on a disk or in a copy of a Hub repository.

Rows are read as a stream, again and again if need be; only a `.json` file, which holds one array, is read whole.
Values are what the file says: nothing is guessed from texts, so that "007" and "NA" stay what they are.
Standard library only at import time: parquet takes pyarrow.
"""

import csv
import json
import re
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from cloudrl.data.parquet import package
from cloudrl.errors import InputError

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}")  # as the Hub names parts: train-00000-of-00002.parquet
_BATCH_ROWS = 1000


@dataclass(frozen=True)
class FileTable:
    """The rows of one split, in the order of its files."""

    paths: Tuple[Path, ...]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for path in self.paths:
            yield from _READERS[path.suffix](path)


def read_files(place: Path, config: Optional[str] = None) -> Dict[str, FileTable]:
    """Tables by split: of a folder, one for each `SPLIT.jsonl` (or other suffix, or shards); a file is one `train`.

    Args:
        place: A file, or a folder that holds the files itself, in `data/`, or in a folder named like `config`.
        config: Which folder, where there are several configurations.

    Raises:
        InputError: The path does not exist, or holds no file that can be read.
    """
    if place.is_file():
        if place.suffix not in SUFFIXES:
            raise InputError(f"{place} does not end in {', '.join(SUFFIXES)}")
        return {"train": FileTable((place,))}
    if not place.is_dir():
        raise InputError(f"{place} does not exist", hint="The path is taken on the machine that prepares the data")
    folders = [place / config] if config else []
    for folder in (*folders, place, place / "data"):
        files = _data_files(folder)
        if files:
            return {split: FileTable(tuple(paths)) for split, paths in _by_split(files).items()}
    raise InputError(_nothing_in(place))


def _data_files(folder: Path) -> List[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())


def _by_split(files: List[Path]) -> Dict[str, List[Path]]:
    splits: Dict[str, List[Path]] = {}
    for path in files:
        shard = _SHARD.fullmatch(path.stem)
        splits.setdefault(shard[1] if shard else path.stem, []).append(path)
    for split, paths in splits.items():
        kinds = {(path.suffix, bool(_SHARD.fullmatch(path.stem))) for path in paths}
        if len(kinds) > 1:
            raise InputError(
                f"{paths[0].parent} has split {split!r} twice: {', '.join(path.name for path in paths)}",
                hint="Remove one, or give the path of a file",
            )
    return splits


def _nothing_in(place: Path) -> str:
    folders = sorted(path.name for path in place.iterdir() if path.is_dir() and _data_files(path))
    has = f"; folders with data in it: {', '.join(folders)} (name one as config)" if folders else ""
    return f"{place} has no file that ends in {', '.join(SUFFIXES)}{has}"


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    # "utf-8-sig": a byte-order mark, as Windows writes it, does not belong to the first row
    with path.open(encoding="utf-8-sig", newline="\n") as file, _as_utf_8(path):
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield _mapping(where, _parsed(where, line.rstrip()))


def _json(path: Path) -> Iterator[Mapping[str, Any]]:
    """One array of rows; files of the Hub that are called `.json` often hold lines instead."""
    with path.open(encoding="utf-8-sig") as file, _as_utf_8(path):
        start = next((character for character in iter(lambda: file.read(1), "") if not character.isspace()), "")
        text = start + file.read() if start == "[" else ""
    if not text:
        yield from _jsonl(path)
        return
    for number, row in enumerate(_parsed(str(path), text), start=1):
        yield _mapping(f"{path}, row {number}", row)


@contextmanager
def _as_utf_8(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: byte {error.start} is {error.object[error.start]:#x}",
            hint=f"Convert it, for example: iconv -f LATIN1 -t UTF-8 {shlex.quote(str(path))} > utf8{path.suffix}",
        ) from error


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""  # of one line, `where` has the number
        raise InputError(f"{where}: not JSON: {error.msg} ({line}column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error


def _mapping(where: str, row: object) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        shown = json.dumps(row)[:40]
        raise InputError(f"{where}: a row should be a mapping, not {shown!r}")
    return row


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    """Every value is a text; the first line names the columns."""
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))  # the default ends a text at 128 KiB
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            columns = next(reader, [])
            if len(set(columns)) < len(columns):
                raise InputError(f"{path}: two columns have the same name: {', '.join(columns)}")
            for cells in reader:
                if len(cells) != len(columns):
                    raise InputError(f"{path}, line {reader.line_num}: {len(cells)} cells for {len(columns)} columns")
                yield dict(zip(columns, cells))  # noqa: B905  Python 3.9 knows no strict=
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}, line {reader.line_num}: {error}") from error


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    arrow = package("pyarrow")
    try:
        with package("pyarrow.parquet").ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as parquet: {error}") from error


_READERS: Dict[str, Callable[[Path], Iterator[Mapping[str, Any]]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
