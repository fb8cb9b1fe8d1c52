"""How amounts read."""

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
