"""Durations, and the same text read by dstack's own models."""

from __future__ import annotations

from dstack._internal.core.models.duration import Duration as DstackDuration
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec.durations import duration, seconds_of

written = st.tuples(st.integers(0, 10**6), st.sampled_from(["", "s", "m", "h", "d", "w", " h", "  d"])).map(
    lambda parts: f"{parts[0]}{parts[1]}"
)


@given(written | st.integers(0, 10**6))
def test_a_duration_means_to_dstack_what_it_means_to_us(text):
    assert seconds_of(text) == DstackDuration.parse(text)


@given(st.text(alphabet="0159 smhdwoff.-\u0661", max_size=6))
def test_what_we_take_dstack_takes_too(text):
    try:
        kept = duration(text)
    except SpecError:
        return
    assert seconds_of(kept) == DstackDuration.parse(kept) == DstackDuration.parse(text)
