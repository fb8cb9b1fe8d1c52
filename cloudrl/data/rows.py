"""Raw rows of files or the Hub, and verl's rows of them, with the number of each that cannot be one.

A table can be read again and again, and is never held whole. Standard library only at import time.
"""

import random
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import AbstractSet, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

from cloudrl.data.files import read_files
from cloudrl.data.hub import download
from cloudrl.data.parquet import SPLITS, silent, write_splits
from cloudrl.data.request import is_hub_id, is_path
from cloudrl.errors import InputError

Member = TypeVar("Member")
MakeRow = Callable[[str, int, Mapping[str, Any]], Dict[str, object]]
Table = Iterable[Mapping[str, Any]]


class BadRow(Exception):
    """One raw row cannot be used; the message says why."""


@dataclass
class Skipped:
    """The rows that were left out on request: how many, and what is wrong with the first."""

    count: int = 0
    first: str = ""


def make_rows(
    where: str,
    table: Iterable[Mapping[str, Any]],
    make: MakeRow,
    split: str,
    *,
    held_out: AbstractSet[int] = frozenset(),
    skipped: Optional[Skipped] = None,
    hint: Optional[str] = None,
) -> Iterator[Tuple[str, Dict[str, object]]]:
    """Each row of a table as `make(split, number, raw)` makes it, as (split, row) pairs.

    Args:
        where: Data set and split, for messages, which count rows from 1.
        table: Raw rows; for `make` the first has number 0.
        make: Raises BadRow for one that cannot be used.
        split: The split that the rows go to.
        held_out: Those that go to `test` instead, each by the number of good rows before it.
        skipped: Counts the bad rows; without it the first one ends everything.
        hint: What to do about a bad row.

    Raises:
        InputError: A row is bad; or, with `skipped`, all of them are.
    """
    good = 0
    for number, raw in enumerate(table):
        goes_to = "test" if good in held_out else split
        try:
            row = make(goes_to, number, raw)
        except BadRow as bad:
            problem = f"{where} row {number + 1}: {bad}"
            if skipped is None:
                raise InputError(problem, hint=hint) from bad
            skipped.count += 1
            skipped.first = skipped.first or problem
            continue
        good += 1
        yield goes_to, row
    if skipped is not None and skipped.count and not good:
        raise InputError(f"{where}: every row is bad; {skipped.first}")


def verl_row(
    *, data_source: str, prompt: object, ability: str, truth: object, extra: Mapping[str, object]
) -> Dict[str, object]:
    """The columns of verl's own preprocessing scripts (verl 0.9.0, examples/data_preprocess)."""
    return {
        "data_source": data_source,
        "prompt": prompt,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": dict(extra),
    }


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


def prepare_made(
    name: str,
    members: Callable[[], Mapping[str, Iterable[Any]]],
    make: Callable[[str, int, Any], Dict[str, object]],
    folder: Union[str, Path],
    *,
    say: Callable[[str], None] = silent,
) -> Dict[str, str]:
    """Write train.parquet and test.parquet of a data set that is made here; always the same bytes.

    Args:
        name: The data set.
        members: Gives what the rows of each split are made of.
        make: Makes verl's row of a split, a number and one of them.
        folder: Where to write; made if need be.
        say: Is called with lines about the progress.

    Returns:
        The absolute paths by split: `train` and `test`.
    """
    rows = (
        (split, make(split, index, member)) for split, made in members().items() for index, member in enumerate(made)
    )
    return write_splits(name, folder, rows, say=say)


def shuffled_splits(every: List[Member], test_rows: int) -> Dict[str, List[Member]]:
    """Put the first of them, in an order that is always the same, into the test split."""
    random.Random(0).shuffle(every)  # noqa: S311 - a data set is not a secret
    return {"train": every[test_rows:], "test": every[:test_rows]}
