"""Durations, and the same text read by dstack's own models."""

from __future__ import annotations

import pytest
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


def test_zero_is_no_time_at_all():
    with pytest.raises(SpecError, match="0 is no time at all"):
        duration(0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("30min", "'30min' is not a duration; did you mean '30m'?"),
        ("2 days", "'2 days' is not a duration; did you mean '2d'?"),
        ("1.5h", "'1.5h' is not a duration"),
        ("1h 30m", "'1h 30m' is not a duration"),
        ("24H", "'24H' is not a duration; did you mean '24h'?"),
        ("0.0001s", "'0.0001s' is not a duration"),
        ("soon", "'soon' is not a duration"),
        ("", "'' is not a duration"),
        ("-5m", "'-5m' is not a duration"),
        (-5, "-5 is not a duration"),
        (1.5, "1.5 is not a duration"),
        (True, "True is not a duration"),
        (None, "None is not a duration"),
        (["1d"], "['1d'] is not a duration"),
    ],
)
def test_a_wrong_duration_is_refused(value, message):
    with pytest.raises(SpecError) as caught:
        seconds_of(value)
    assert caught.value.message == message
    assert caught.value.hint == "For example '30m', '2h' or '1d'"
