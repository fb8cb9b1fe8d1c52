"""When a cluster ends itself before its provider's `max_duration` does."""

import pytest

from cloudrl.node.renewal import is_due, runs_for_s
from cloudrl.node.save_wishes import left_s
from cloudrl.protocol.options import AgentOptions, BudgetLimits

EIGHT_HOURS = BudgetLimits(max_duration_s=28800.0, is_started_again=True)


def test_the_end_comes_two_minutes_before_that_of_the_provider_or_a_tenth_of_a_short_one():
    assert runs_for_s(EIGHT_HOURS) == 28680.0
    assert runs_for_s(BudgetLimits(max_duration_s=100.0)) == 90.0
    assert runs_for_s(BudgetLimits()) is None


@pytest.mark.parametrize(
    ("limits", "running_s", "has_work", "is_saving", "expected"),
    [
        (EIGHT_HOURS, 28679.0, True, False, False),
        (EIGHT_HOURS, 28680.0, True, False, True),
        (EIGHT_HOURS, 28680.0, False, False, False),  # nothing would go on
        (EIGHT_HOURS, 28739.0, True, True, False),  # a save is ended first
        (EIGHT_HOURS, 28740.0, True, True, True),  # but not for longer than the provider leaves
        (BudgetLimits(max_duration_s=28800.0), 28790.0, True, False, False),  # dstack would not start it again
        (BudgetLimits(), 1e9, True, False, False),
    ],
)
def test_it_ends_itself_where_a_job_goes_on_after_a_new_start(limits, running_s, has_work, is_saving, expected):
    assert is_due(limits, running_s, has_work=has_work, is_saving=is_saving) is expected


def test_a_save_is_asked_for_before_that():
    assert left_s(EIGHT_HOURS, None, {}, 0.0, 28080.0) == 600.0
    assert left_s(BudgetLimits(max_duration_s=28800.0), None, {}, 0.0, 28080.0) == 600.0, "also where it ends for good"


def test_the_agent_is_told_by_its_options():
    words = AgentOptions(limits=EIGHT_HOURS).to_argv()
    assert {"--max-duration-s=28800", "--started-again=yes"} <= set(words)
    assert AgentOptions.from_argv(words).limits == EIGHT_HOURS
    assert not [word for word in AgentOptions().to_argv() if "started-again" in word]
