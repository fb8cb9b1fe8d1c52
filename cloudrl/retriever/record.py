"""What an index was made of: `retriever.json` in its folder, and whether it goes with what it is to be served with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError
from cloudrl.foreign import parse_object, read_file
from cloudrl.private_files import write_file

NAME = "retriever.json"


@dataclass(frozen=True)
class Record:
    """An index and its corpus.

    Attributes:
        engine: that searches the index.
        index: name in the folder.
        fingerprint: of the index.
        corpus: name in the folder.
        corpus_sha256: of the corpus that the rows of the index belong to.
        passages: in both.
        dim: of the vectors; 0 without any.
        encoder: on the Hub, or a folder; "" without one.
        prefixes: that it puts before texts, see `encoder.PREFIXES`.
        source: what it was built from, for a build that is started again.
    """

    engine: str
    index: str
    fingerprint: str
    corpus: str
    corpus_sha256: str
    passages: int
    dim: int = 0
    encoder: str = ""
    prefixes: str = ""
    source: str = ""

    def write(self, folder: Path) -> None:
        """Into the folder, whole or not at all."""
        write_json(folder / NAME, asdict(self))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file, whole or not at all."""
    write_file(path, json.dumps(value, indent=2) + "\n", mode=0o666)


def read_record(folder: Path) -> Record | None:
    """The record of a folder; None if it has no record.

    Raises:
        InputError: it cannot be read.
    """
    path = folder / NAME
    try:
        return Record(**parse_object(read_file(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {error}", hint="Build or fetch the index again") from error


def check_same(what: str, path: Path, recorded: object, present: object) -> None:
    """Refuse an index that was made for something else.

    Raises:
        InputError: the two differ.
    """
    if recorded != present:
        raise InputError(
            f"{path.parent / NAME} says that {path.name} was made with {what} {recorded}, but this is {present}",
            hint="Serve it with what it was made with, or build it again: cloudrl retriever build --help",
        )
