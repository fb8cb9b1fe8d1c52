"""Answers of an agent that are of another form."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cloudrl.errors import CheckpointError
from cloudrl.foreign import NOT_AS_EXPECTED
from cloudrl.protocol import answers
from cloudrl.saves.aggregate import aggregate

FILE = {"path": "a.pt", "size_bytes": 1, "modified_at": 1.0}
STEP = {"step": 1, "files": [FILE], "roles": [{"role": "actor", "files": [FILE], "saves": []}]}
RUN = {"run": "a", "tracker": {"text": "1", "modified_at": 1.0}, "steps": [STEP]}
FOLDER = {"root": "checkpoints", "folder": "/c", "identity": "i", "marker": "m", "markers": [], "runs": [RUN]}


def parts_of(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all parts of a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*at, key)
        yield from parts_of(part, (*at, key))


@pytest.mark.parametrize("wrong", [{"a": None}, [[]], True, [5]], ids=str)
def test_an_inventory_with_one_part_of_another_kind(wrong: object) -> None:
    """Each part in its turn; what is looked at is refused, before checkpoints are put together of it."""
    told = {"locations": [FOLDER]}
    assert answers.inventory(told) == told
    for at in parts_of(told):
        made = copy.deepcopy(told)
        inner: Any = made
        for key in at[:-1]:
            inner = inner[key]
        inner[at[-1]] = wrong
        try:
            answer = answers.inventory(made)
        except NOT_AS_EXPECTED:
            continue
        with suppress(CheckpointError):  # of names that lead out of the folder
            aggregate([(None, answer)])
