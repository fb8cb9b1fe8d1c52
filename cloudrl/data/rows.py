"""From raw rows to verl's rows, with the number of each that cannot be one. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.errors import InputError

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple

    MakeRow = Callable[[str, int, Mapping[str, Any]], Dict[str, object]]


class BadRow(Exception):
    """One raw row cannot be used; the message says why."""


class Skipped:
    """The rows that were left out on request."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def add(self, problem: str) -> None:
        """Note one of them."""
        self.count += 1
        self.first = self.first or problem


def made(
    where: str,
    table: Iterable[Mapping[str, Any]],
    make: MakeRow,
    *,
    to: Callable[[int], str],
    skipped: Optional[Skipped] = None,
    hint: Optional[str] = None,
) -> Iterator[Tuple[str, Dict[str, object]]]:
    """Each row of a table as `make(split, number, raw)` makes it, as (split, row) pairs.

    Args:
        where: Data set and split, for messages.
        table: Raw rows; the first has number 0.
        make: Raises BadRow for one that cannot be used.
        to: The split that a row goes to, by the number of good rows before it.
        skipped: Takes the bad rows; without it the first one ends everything.
        hint: What to do about a bad row.

    Raises:
        InputError: A row is bad; or, with `skipped`, all of them are.
    """
    good = 0
    for number, raw in enumerate(table):
        split = to(good)
        try:
            row = make(split, number, raw)
        except BadRow as bad:
            problem = f"{where} row {number}: {bad}"
            if skipped is None:
                raise InputError(problem, hint=hint) from bad
            skipped.add(problem)
            continue
        good += 1
        yield split, row
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
