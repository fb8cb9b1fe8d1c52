"""Lists of ranks as people read them: never more than three lines, whatever the cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.protocol.ranks import LIMIT, first_few, names_text, ranks_text, spans, spans_text, texts_by_rank


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2], "0-2"),
        ([0, 2, 3, 7, 8, 9], "0, 2-3, 7-9"),
        ([9, 7, 8, 7], "7-9"),
        (range(1000), "0-999"),
        ([*range(38), 40], "0-37, 40"),
    ],
)
def test_spans(numbers: list[int], text: str) -> None:
    assert spans(numbers) == text


def test_what_does_not_fit_is_counted() -> None:
    text = spans(range(0, 1000, 2))
    assert len(text) <= LIMIT
    assert text.startswith("0, 2, 4, ")
    assert text.endswith("108, 110 and 444 more")
    assert spans(range(0, 1000, 2), 10) == "0 and 499 more"


@given(st.sets(st.integers(0, 9999)), st.integers(20, 400))
def test_nothing_is_lost_and_nothing_is_too_long(numbers: set[int], limit: int) -> None:
    text = spans(numbers, limit)
    assert len(text) <= limit
    listed, _, more = text.partition(" and ")
    told: set[int] = set()
    for part in filter(None, listed.split(", ")):
        first, _, last = part.partition("-")
        told |= set(range(int(first), int(last or first) + 1))
    assert told <= numbers
    assert len(told) + int(more.removesuffix(" more") or 0) == len(numbers)


def test_spans_of_any_size() -> None:
    assert spans_text([(0, 4), (6, 999_999_998)]) == "0-4, 6-999999998"


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([3, 1], "ranks 1, 3"), ({0, 1}, "ranks 0-1"), ((), "ranks ")]
)
def test_with_a_noun(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text
    assert ranks_text([3], "node") == "node 3"


def test_equal_things_are_said_once() -> None:
    said = [(rank, "fetch" if rank in (2, 5) else "ready") for rank in range(256)]
    assert texts_by_rank(said) == "ranks 0-1, 3-4, 6-255: ready; ranks 2, 5: fetch"
    unequal = texts_by_rank((rank, f"at {rank} %") for rank in range(256))
    assert unequal.startswith("rank 0: at 0 %; rank 1: at 1 %; ")
    assert unequal.endswith(" more")
    assert len(unequal) <= LIMIT
    assert len(texts_by_rank((rank, "even" if rank % 2 else "odd") for rank in range(1000))) <= LIMIT + len(": even")


def test_names() -> None:
    assert names_text(["a", "b"]) == "a, b"
    assert names_text([f"host-{number}.example.org" for number in range(256)]).endswith(" and 245 more")
    assert names_text(["x" * 300, "y"]) == "x" * 300 + " and 1 more"


@pytest.mark.parametrize("count", range(8))
def test_a_few_are_told_one_by_one(count: int) -> None:
    few, several = first_few(range(count))
    assert [*few, *several] == list(range(count))
    assert len(few) <= 4
    assert len(several) != 1
