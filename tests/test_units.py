"""How amounts read."""

import re
from pathlib import Path

import pytest

from cloudrl import units


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (17, "17 B"),
        (3_100, "3.1 kB"),
        (250_000_000, "250 MB"),
        (12_400_000_000, "12.4 GB"),
        (10**15, "1000 TB"),
    ],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert units.size_text(size_bytes) == text


@pytest.mark.parametrize(("limit_bytes", "text"), [(100 << 20, "100 MiB"), (64 << 10, "64 KiB"), (1000, "1.0 kB")])
def test_limits(limit_bytes: int, text: str) -> None:
    assert units.limit_text(limit_bytes) == text


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (13_000_000, 26_000_000, "13.0 of 26.0 MB"),
        (0, 26_000_000, "0 B of 26.0 MB"),
        (26_000_001, 26_000_000, "26000001 of 26000000 bytes"),
    ],
)
def test_two_sizes(one: int, other: int, text: str) -> None:
    assert units.sizes_text(one, other) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (320, "5 min 20 s"), (7500, "2 h 05 min"),
        (3 * 86400 + 4 * 3600, "3 d 04 h"), (-1, "0 s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(1800, "30m"), (7200, "2h"), (86400, "1d"), (90, "90s"), (0.5, "0.5s")])
def test_durations_as_options_take_them(seconds: float, text: str) -> None:
    assert units.duration_option(seconds) == text


@pytest.mark.parametrize(("dollars", "text"), [(200, "$200.00"), (200.1, "$200.10"), (1234.5, "$1,234.50")])
def test_dollars(dollars: float, text: str) -> None:
    assert units.dollars_text(dollars) == text


OWN_FORM = re.compile(
    r"\{[^{}]*:[.,]?\d*[fg]\} ?(?:[kMGT]i?B\b|minutes|hours)|\{[^{}]*:\.0f\} s\b(?!/)|\$\{[^{}]*:,?\.2f\}"
)
"""A size, a duration or a price that is written out."""
MAY_DIFFER = {
    "units.py": "has the forms",
    "node": "reasons that `logs/causes` recognises by their words",
    "debug": "limits of less than a minute",
    "scripts": "limits of less than a minute",
    "rewards": "limits of less than a minute",
    "verl": "memory of GPUs is in GiB, as nvidia-smi has it",
    "report": "memory of GPUs is in GiB, as nvidia-smi has it",
    "machine_warnings.py": "memory of GPUs is in GiB, as nvidia-smi has it",
    "gpus.py": "memory of GPUs is in GiB, as nvidia-smi has it",
    "machines.py": "a size as dstack takes it",
    "mismatches.py": "sizes as dstack takes them, beside those that were asked for",
}


def test_sizes_durations_and_prices_are_written_here_alone() -> None:
    root = Path(units.__file__).parent
    found = [
        f"{path.relative_to(root)}: {match[0]}"
        for path in sorted(root.rglob("*.py"))
        if not MAY_DIFFER.keys() & {*path.relative_to(root).parts}
        for match in OWN_FORM.finditer(path.read_text())
    ]
    assert found == []
