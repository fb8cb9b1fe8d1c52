"""Sizes and ranges, and the same text read by dstack's own models."""

from __future__ import annotations

import pytest
from dstack._internal.core.models.resources import Memory, Range
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cloudrl.errors import SpecError
from cloudrl.spec import CountRange
from cloudrl.spec.sizes import size, size_range

amounts = st.one_of(
    st.integers(1, 10**6).map(str),
    st.tuples(st.integers(0, 9999), st.integers(1, 999)).map(lambda parts: f"{parts[0]}.{parts[1]}"),
)
sizes = st.tuples(amounts, st.sampled_from(["", "MB", "GB", "TB", "gb", "Tb", " GB"])).map("".join)


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
    [("128GB", "128GB"), ("1tb", "1TB"), ("0.5 TB", "0.5TB"), (16, "16GB"), (1.5, "1.5GB"), ("16", "16GB")],
)
def test_a_size_keeps_the_unit_it_was_written_in(written, kept):
    assert size(written) == kept


def test_a_count_range_knows_whether_it_is_one_number():
    assert CountRange.parse("8").exact == CountRange.parse("8..8").exact == 8
    assert CountRange.parse("1..8").exact is None
    assert CountRange.parse("2..").exact is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("128G", "'128G' is not a size; did you mean '128GB'?"),
        ("128 gib", "'128 gib' is not a size; did you mean '128GB'?"),
        ("lots", "'lots' is not a size"),
        ("-1GB", "'-1GB' is not a size"),
        ("1e3GB", "'1e3GB' is not a size"),
        ("nan", "'nan' is not a size"),
        ("0GB", "'0GB' is no amount above zero"),
        (0, "0 is no amount above zero"),
        ("9" * 400, f"'{'9' * 400}' is no amount above zero"),
        (True, "True is neither text nor a number"),
        (None, "None is neither text nor a number"),
    ],
)
def test_a_wrong_size_is_refused(value, message):
    with pytest.raises(SpecError) as caught:
        size(value)
    assert caught.value.message == message
    assert caught.value.hint == "For example '128GB', '512MB' or '1TB'"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (size_range, "64GB..8GB", "'64GB..8GB' runs backwards; did you mean '8GB..64GB'?"),
        (size_range, "..", "'..' is not a range"),
        (size_range, "", "'' is not a range"),
        (size_range, "1GB..2GB..3GB", "'1GB..2GB..3GB' is not a range"),
        (size_range, "8..9G", "'9G' is not a size; did you mean '9GB'?"),
        (CountRange.parse, "8..1", "'8..1' runs backwards; did you mean '1..8'?"),
        (CountRange.parse, "-1", "'-1' is not a whole number"),
        (CountRange.parse, "1.5", "'1.5' is not a whole number"),
        (CountRange.parse, "\u0668", "'\u0668' is not a whole number"),
    ],
)
def test_a_wrong_range_is_refused(kind, value, message):
    with pytest.raises(SpecError) as caught:
        kind(value)
    assert caught.value.message == message
