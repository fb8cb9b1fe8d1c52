"""Retry, utilization and schedule, and the same values read by dstack's own models."""

from __future__ import annotations

import pytest
from apscheduler.triggers.cron import CronTrigger
from dstack._internal.core.models.profiles import ProfileRetry, RetryEvent
from dstack._internal.core.models.profiles import Schedule as DstackSchedule
from dstack._internal.core.models.profiles import UtilizationPolicy as DstackPolicy
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec import Retry, Schedule, UtilizationPolicy
from cloudrl.spec.run_policy import RETRY_EVENTS, cron

pieces = st.text(alphabet="0123459*/-,", min_size=1, max_size=5) | st.sampled_from(
    [
        "*",
        "*/5",
        "0",
        "1-5",
        "mon",
        "mon-fri",
        "SUN",
        "jan",
        "jan-mar",
        "mon/2",
        "5-1",
        "*/60",
        "0-30/10",
        "last",
    ]
)


@given(st.lists(pieces, min_size=5, max_size=5).map(" ".join))
def test_what_we_take_dstacks_scheduler_takes_too(text):
    try:
        kept = cron(text)
    except SpecError:
        return
    assert str(CronTrigger.from_crontab(kept)) == str(CronTrigger.from_crontab(text))


@pytest.mark.parametrize(
    "text",
    [
        "0 8 * * mon-fri",
        "*/15 * * * *",
        "0 0 1 jan,jul *",
        "5,35 8-18/2 1-7 * sun",
        "0  8 * *  SAT",
        "59 23 31 12 *",
    ],
)
def test_usual_expressions_are_taken(text):
    assert cron(text) == " ".join(text.split())
    assert DstackSchedule(cron=cron(text)).crons == [cron(text)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("@daily", "'@daily' has 1 fields where cron has 5"),
        ("60 * * * *", "'60 * * * *': '60' cannot be the minute"),
        ("0 18-8 * * *", "'0 18-8 * * *': '18-8' cannot be the hour"),
        ("0 8 0 * *", "'0 8 0 * *': '0' cannot be the day of the month"),
        ("0 8 * 13 *", "'0 8 * 13 *': '13' cannot be the month"),
        ("0 8 * * 0", "'0 8 * * 0': '0' cannot be the day of the week; did you mean 'sun'?"),
        ("0 8 * * 7", "'0 8 * * 7': '7' cannot be the day of the week; did you mean 'sun'?"),
        ("0 8 * * 1-5", "'0 8 * * 1-5': '1-5' cannot be the day of the week; did you mean 'mon-fri'?"),
        ("*/0 * * * *", "'*/0 * * * *': '*/0' cannot be the minute"),
        ("0 8 * * *\n", "'0 8 * * *\\n' holds a line break or a control character"),
        (8, "8 is not text"),
    ],
)
def test_a_wrong_expression_is_refused(value, message):
    with pytest.raises(SpecError) as caught:
        cron(value)
    assert caught.value.message == message


def test_a_schedule_in_each_of_its_spellings():
    one = Schedule(cron=["0 8 * * mon"])
    assert Schedule.parse("0 8 * * mon") == Schedule.parse({"cron": "0 8 * * mon"}) == one
    assert Schedule.parse(one) is one
    assert Schedule.parse(["0 8 * * mon", "0 9 * * tue"]).cron == ("0 8 * * mon", "0 9 * * tue")
    with pytest.raises(SpecError, match="Schedule: expected fields with values, got 7"):
        Schedule.parse(7)
    with pytest.raises(SpecError, match="cron is empty"):
        Schedule(cron=[])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7.5, "Retry: expected fields with values, got 7.5"),
        ({"events": ["error"]}, "Retry: unknown field 'events'; did you mean 'on_events'?"),
        ({"duration": "0"}, "Retry.duration: '0' is no time at all"),
        ({"on_events": "error"}, "Retry.on_events: 'error' is one text where a list is expected; write ['error']"),
        ({"on_events": ["no capacity"]},
         "Retry.on_events: 'no capacity' is not an event; did you mean 'no-capacity'?"),
    ],
)  # fmt: skip
def test_a_wrong_retry_is_refused(value, message):
    with pytest.raises(SpecError) as caught:
        Retry.parse(value)
    assert caught.value.message == message


def test_the_events_are_dstacks():
    assert set(RETRY_EVENTS) == {event.value for event in RetryEvent}
    theirs = ProfileRetry.model_validate({"on_events": list(Retry().on_events), "duration": Retry().duration})
    assert (len(theirs.on_events), theirs.duration) == (3, 24 * 3600)


@given(st.integers(0, 100), st.sampled_from(["5m", "30m", "1h", 600]))
def test_a_utilization_policy_means_to_dstack_what_it_means_to_us(percent, window):
    ours = UtilizationPolicy(min_gpu_utilization=percent, time_window=window)
    theirs = DstackPolicy(min_gpu_utilization=percent, time_window=ours.time_window)
    assert theirs == DstackPolicy(min_gpu_utilization=percent, time_window=window)
