"""Where raw rows come from: a path or the Hub. A table can be read again and again, and is never held whole."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Union

from cloudrl.data.files import read_files
from cloudrl.data.hub import download
from cloudrl.data.parquet import SPLITS, silent, write_splits
from cloudrl.data.request import is_hub_id, is_path
from cloudrl.data.rows import MakeRow, make_rows
from cloudrl.errors import InputError

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


def prepare_from_hub(
    name: str,
    hub_id: str,
    config: Optional[str],
    make: MakeRow,
    folder: Union[str, Path],
    *,
    source: Optional[Union[str, Path]] = None,
    say: Callable[[str], None] = silent,
) -> Dict[str, str]:
    """Write train.parquet and test.parquet of a built-in data set from the Hub, in the columns that verl reads.

    Args:
        name: The data set.
        hub_id: Where its original is; it has both splits.
        config: The Hub's configuration.
        make: Makes verl's row of a raw one.
        folder: Where to write; made if need be.
        source: A folder of the raw rows, as `train.jsonl` or `train.parquet` and the same for `test`; a copy of
            the Hub's repository will do, and so will the id of another one on the Hub. None downloads the
            original, or takes it from the cache of `datasets`.
        say: Is called with lines about the progress.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        ConnectionFailed: The download failed; the message is one line and says what to check.
        InputError: A split is missing or empty, or a row is bad. Nothing is written then.
    """
    place = hub_id if source is None else source
    tables = open_raw(name, place, config, say=say)
    for split in SPLITS:
        if split not in tables:
            has = ", ".join(tables)
            raise InputError(f"{place} has no {split} split of {name}: its splits are {has}")
    rows = (make_rows(f"{name} {split}", tables[split], make, split) for split in SPLITS)
    return write_splits(name, folder, chain.from_iterable(rows), say=say)
