"""From a user's files to the lines of a corpus: `{"id", "contents"}`, with `"Title"` as the first line of the contents.

jsonl in that form stays as it is, byte by byte; from other rows title and text are taken, and texts are cut into
passages, as Wikipedia was for Search-R1.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError
from cloudrl.retriever.corpus import check_line
from cloudrl.retriever.suffixes import SUFFIXES

WORDS = 100
"""Of a passage (DPR, arXiv 2004.04906, section 4.1)."""
_BATCH_ROWS = 1000
_HEADING = re.compile(r"#+ +(.+?)\s*#*")


def find_files(places: Sequence[Path]) -> list[Path]:
    """The files to read: those that are named, and of folders all that can be read, in the order of their names.

    Raises:
        InputError: no file was found, or a named one cannot be read.
    """
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            readable = [path for path in place.rglob("*") if path.suffix in SUFFIXES and path.is_file()]
            hidden = {path for path in readable if any(part.startswith(".") for part in path.relative_to(place).parts)}
            files += sorted(set(readable) - hidden)
        elif not place.exists():
            raise InputError(f"there is no {place}")
        elif place.suffix not in SUFFIXES:
            raise InputError(f"{place} does not end in {', '.join(SUFFIXES)}")
        else:
            files.append(place)
    if not files:
        raise InputError(f"{' and '.join(map(str, places))}: no file ends in {', '.join(SUFFIXES)}")
    return files


def read_passages(files: Sequence[Path], words: int = WORDS) -> Iterator[bytes]:
    """The lines of a corpus, without their ends. Passages without any text are left out.

    Args:
        files: from `find_files`.
        words: a passage has at most, where a text is cut.

    Raises:
        InputError: a file cannot be read, or has no text where it should be.
    """
    numbers = itertools.count()
    above = os.path.commonpath([file.absolute().parent for file in files])
    for file in files:
        if file.suffix == ".jsonl":
            yield from _from_jsonl(file, numbers)
        elif file.suffix == ".parquet":
            yield from _from_parquet(file, numbers)
        else:
            yield from _from_text(file, os.path.relpath(file.absolute(), above), words)


def _from_jsonl(file: Path, numbers: Iterator[int]) -> Iterator[bytes]:
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
            if not line:
                continue
            where = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise InputError(f"{where}: a row should be an object")
            if "id" in row and isinstance(row.get("contents"), str):
                if row["contents"].strip():
                    check_line(line, where)
                    yield line
            else:
                yield from _passage(where, row, numbers)


def _from_parquet(file: Path, numbers: Iterator[int]) -> Iterator[bytes]:
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(f"{file} is parquet, which needs the package pyarrow", hint="pip install pyarrow") from error
    try:
        with ParquetFile(file) as table:
            for batch in table.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    yield from _passage(str(file), row, numbers)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read as parquet: {error}") from error


def _passage(where: str, row: Mapping[str, Any], numbers: Iterator[int]) -> Iterator[bytes]:
    contents, title = row.get("contents", row.get("text")), row.get("title")
    if not isinstance(contents, str):
        raise InputError(f"{where}: no text under `contents` or `text`, only {', '.join(map(str, row))}")
    if contents.strip():
        name = row.get("id")
        text = f'"{title}"\n{contents}' if title and "contents" not in row else contents
        yield _line(str(next(numbers) if name is None else name), text)


def _from_text(file: Path, name: str, words: int) -> Iterator[bytes]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8: {error}") from error
    heading = next(filter(None, map(_HEADING.fullmatch, text.splitlines())), None) if file.suffix == ".md" else None
    title = heading[1] if heading else file.stem
    all_words = text.split()
    for number, start in enumerate(range(0, len(all_words), words)):
        yield _line(f"{name}-{number}", f'"{title}"\n{" ".join(all_words[start : start + words])}')


def _line(name: str, contents: str) -> bytes:
    return json.dumps({"id": name, "contents": contents}, ensure_ascii=False).encode(errors="replace")
