"""When a running job is asked to save."""

import pytest

from cloudrl.node.save_wishes import find_wish, left_s
from cloudrl.protocol.options import BudgetLimits


@pytest.mark.parametrize(
    ("seconds", "wish"), [(None, ""), (901.0, ""), (899.0, "night 1"), (299.0, "night 2"), (-5.0, "night 2")]
)
def test_it_is_asked_before_the_end_and_once_more_close_to_it(seconds: float | None, wish: str) -> None:
    assert find_wish("night", seconds) == wish
    assert find_wish(None, seconds) == ""


def test_the_end_is_that_of_the_money_or_of_slurms_time_limit() -> None:
    money = BudgetLimits(price_per_hour=36.0, max_cost=10.0)

    assert left_s(BudgetLimits(), None, {}, 0.0) is None
    assert left_s(money, None, {}, 0.0) is None, "the price is not known"
    assert left_s(money, 4.0, {}, 0.0) == 600.0
    assert left_s(money, 4.0, {"SLURM_JOB_END_TIME": "1500"}, 1000.0) == 500.0
    assert left_s(BudgetLimits(), None, {"SLURM_JOB_END_TIME": "NOT_SET"}, 0.0) is None
    script = {"CLOUDRL_ENDS_AT": "1380", "SLURM_JOB_END_TIME": "1500"}
    assert left_s(BudgetLimits(), None, script, 1000.0) == 380.0, "the script ends the cluster before Slurm does"
