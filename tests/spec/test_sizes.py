"""Sizes, ranges and durations, and the same text read by dstack's own models."""

import pytest
from dstack._internal.core.models.duration import Duration as DstackDuration
from dstack._internal.core.models.resources import Memory, Range
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cloudrl.errors import SpecError
from cloudrl.spec import CountRange
from cloudrl.spec.sizes import duration, duration_with_unit, seconds_of, size, size_range

amounts = st.one_of(
    st.integers(1, 10**6).map(str),
    st.tuples(st.integers(0, 9999), st.integers(1, 999)).map(lambda parts: f"{parts[0]}.{parts[1]}"),
)
sizes = st.tuples(amounts, st.sampled_from(["MB", "GB", "TB", "gb", "Tb", " GB"])).map("".join)


@given(sizes)
def test_a_size_means_to_dstack_what_it_means_to_us(text):
    assert Memory.parse(size(text)) == Memory.parse(text)
    assert size(size(text)) == size(text)


@given(sizes, sizes)
def test_a_size_range_means_to_dstack_what_it_means_to_us(one, other):
    low, high = sorted((one, other), key=Memory.parse)
    for text in (low, f"{low}..", f"..{high}", f"{low}..{high}"):
        read = TypeAdapter(Range[Memory]).validate_python
        assert read(size_range(text)) == read(text)


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_count_range_means_to_dstack_what_it_means_to_us(one, other):
    low, high = sorted((one, other))
    for text in (str(low), f"{low}..", f"..{high}", f"{low}..{high}"):
        ours = CountRange.parse(text)
        theirs = TypeAdapter(Range[int]).validate_python(str(ours))
        assert (ours.min, ours.max) == (theirs.min, theirs.max)
        assert CountRange.parse(str(ours)) == ours


@pytest.mark.parametrize(
    ("written", "kept"),
    [("128GB", "128GB"), ("1tb", "1TB"), ("0.5 TB", "0.5TB"), ("16 gb", "16GB")],
)
def test_a_size_keeps_the_unit_it_was_written_in(written, kept):
    assert size(written) == kept


@pytest.mark.parametrize(
    ("written", "in_gb"),
    [(16, "16GB"), ("16", "16GB"), (1.5, "1.5GB"), ("100..", "100GB.."), ("..64", "..64GB"), ("1..2TB", "1GB..2TB")],
)
def test_a_size_asks_for_its_unit(written: object, in_gb: str) -> None:
    with pytest.raises(SpecError, match="has no unit") as caught:
        size_range(written)
    assert caught.value.hint == f"In gigabytes: {in_gb}"


def test_one_unit_is_enough_for_a_range_in_gb() -> None:
    assert size_range("16..64GB") == "16GB..64GB"


def test_a_count_range_knows_whether_it_is_one_number():
    assert CountRange.parse("8").exact == CountRange.parse("8..8").exact == 8
    assert CountRange.parse("1..8").exact is None
    assert CountRange.parse("2..").exact is None


written = st.tuples(st.integers(0, 10**6), st.sampled_from(["", "s", "m", "h", "d", "w", " h", "  d"])).map(
    lambda parts: f"{parts[0]}{parts[1]}"
)


@given(written | st.integers(0, 10**6))
def test_a_duration_means_to_dstack_what_it_means_to_us(text):
    assert seconds_of(text) == DstackDuration.parse(text)


@pytest.mark.parametrize("value", ["5", 5, " 90 "])
def test_a_duration_in_which_minutes_may_be_meant_asks_for_its_unit(value: object) -> None:
    with pytest.raises(SpecError, match="has no unit") as caught:
        duration_with_unit(value)
    assert caught.value.hint is not None
    assert duration_with_unit(caught.value.hint.split()[0]) == f"{str(value).strip()}m"


@given(st.text(alphabet="0159 smhdwoff.-\u0661", max_size=6))
def test_what_we_take_dstack_takes_too(text):
    try:
        kept = duration(text)
    except SpecError:
        return
    assert seconds_of(kept) == DstackDuration.parse(kept) == DstackDuration.parse(text)
