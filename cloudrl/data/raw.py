"""Where raw rows come from: a path or the Hub. A table can be read again and again, and is never held whole."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.data.files import read_files
from cloudrl.data.hub import download
from cloudrl.data.progress import silent
from cloudrl.data.request import is_hub_id, is_path
from cloudrl.data.rows import made
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple, Union

    from cloudrl.data.rows import MakeRow

    Table = Iterable[Mapping[str, Any]]


def open_raw(
    name: str, place: Union[str, Path], config: Optional[str] = None, *, say: Callable[[str], None] = silent
) -> Mapping[str, Table]:
    """The tables of a data set by split.

    Args:
        name: What the user calls it, for messages.
        place: A file or folder (a `Path`, or a text that starts like one), or `owner/name` on the Hub.
        config: The Hub's configuration, or the folder of its files.
        say: Is told when it may take long.

    Raises:
        InputError: There is nothing of the kind.
        ConnectionFailed: The Hub could not be reached.
    """
    if isinstance(place, str) and is_hub_id(place) and not is_path(place):
        return download(name, place, config, say=say)
    return read_files(Path(place).expanduser(), config)


def built_in_rows(
    name: str, place: Union[str, Path], config: Optional[str], make: MakeRow, say: Callable[[str], None]
) -> Iterator[Tuple[str, Dict[str, object]]]:
    """The (split, row) pairs of a built-in data set, which has both splits.

    Raises:
        InputError: A split is not there, or a row is bad.
        ConnectionFailed: The Hub could not be reached.
    """
    tables = open_raw(name, place, config, say=say)
    for split in ("train", "test"):
        if split not in tables:
            raise InputError(f"{place} has no {split} split of {name}: its splits are {', '.join(tables)}")
    return chain(
        made(f"{name} train", tables["train"], make, to=lambda _: "train"),
        made(f"{name} test", tables["test"], make, to=lambda _: "test"),
    )
