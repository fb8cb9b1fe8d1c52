"""Which rows are for training and which for testing. Standard library only."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from typing import AbstractSet, Iterable, Optional

    from cloudrl.data.request import Request

TESTS = ("test", "validation", "valid", "val", "dev", "eval")
SHARE, MOST_ROWS = 20, 1000
"""Without a test split and without `test_rows`: one row in 20 is held out, and not more than 1000."""
SEED = 0


@dataclass(frozen=True)
class Splits:
    """The tables to read; without a `test` one, some rows of `train` are held out."""

    train: str
    test: Optional[str]


def choose(request: Request, names: Iterable[str]) -> Splits:
    """Decide by what was asked for, and otherwise by the usual names.

    Raises:
        InputError: There is no such split, or nothing says which one to train on.
    """
    has = list(names)
    train = request.split or ("train" if "train" in has else has[0] if len(has) == 1 else None)
    if train is None:
        raise InputError(
            f"data set {request.name}: which split is for training? It has {', '.join(has)}",
            hint=f"Say it: split={has[0]!r} (--split {has[0]})",
        )
    test = request.test_split
    for option, split in (("split", train), ("test_split", test)):
        if split is not None and split not in has:
            raise InputError(
                f"data set {request.name}: {option} {split!r} is not there{did_you_mean(split, has)}",
                hint=f"It has {', '.join(has)}",
            )
    if test is None and request.test_rows is None:
        test = next((split for split in TESTS if split in has and split != train), None)
    return Splits(train, test)


def held_out(request: Request, rows: int) -> AbstractSet[int]:
    """Which of so many usable rows are for testing: the same ones each time.

    Raises:
        InputError: So many would leave nothing to train on.
    """
    wanted = request.test_rows or max(1, min(MOST_ROWS, rows // SHARE))
    if wanted >= rows:
        raise InputError(
            f"data set {request.name}: test_rows {wanted} of {rows} rows leaves none to train on",
            hint=f"At most test_rows={rows - 1}" if rows > 1 else None,
        )
    return set(random.Random(SEED).sample(range(rows), wanted))  # noqa: S311 - a data set is no secret
