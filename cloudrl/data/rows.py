"""From raw rows to verl's rows, with the number of each that cannot be one. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import AbstractSet, Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple

from cloudrl.errors import InputError

MakeRow = Callable[[str, int, Mapping[str, Any]], Dict[str, object]]


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
        where: Data set and split, for messages.
        table: Raw rows; the first has number 0.
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
            problem = f"{where} row {number}: {bad}"
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
