"""When a running job is asked to save."""

from dataclasses import replace

import pytest

from cloudrl.durable.notices import Pace, SaveWishes
from cloudrl.node.save_wishes import SaveAsker, last_save, left_s
from cloudrl.protocol.interruptions import Interruption
from cloudrl.protocol.job_work import JobWork, SaveNote
from cloudrl.protocol.options import BudgetLimits
from cloudrl.protocol.report import NodeReport


@pytest.mark.parametrize(
    ("seconds", "wish"), [(None, ""), (901.0, ""), (899.0, "night 1"), (299.0, "night 2"), (-5.0, "night 2")]
)
def test_it_is_asked_before_the_end_and_once_more_close_to_it(seconds: float | None, wish: str) -> None:
    assert SaveWishes().find("night", seconds, {}, Pace(), 0.0) == wish
    assert SaveWishes().find(None, seconds, {}, Pace(), 0.0) == ""


SPOT = Interruption("AWS", "spot", 1120.0)
MAINTENANCE = Interruption("GCP", "maintenance", 4600.0)


def test_a_notice_asks_for_one_save_that_is_done_in_time() -> None:
    wishes, pace = SaveWishes(), Pace(step_left_s=60.0, save_s=20.0, copy_s=30.0)
    assert pace.needed_s == 110.0
    assert wishes.find("night", None, {}, pace, 1000.0) == ""
    assert wishes.find("night", None, {1: SPOT}, pace, 1000.0) == "night 1"
    later = replace(pace, step_left_s=10.0)
    assert wishes.find("night", None, {1: SPOT}, later, 1050.0) == "night 1", "once"
    assert wishes.find("night", None, {1: SPOT, 2: SPOT}, later, 1050.0) == "night 2", "another machine goes"
    assert wishes.find("night", None, {}, later, 1060.0) == "", "the notices were withdrawn"
    assert wishes.find("night-2", None, {1: SPOT}, later, 1060.0) == "night-2 1"


def test_a_save_that_would_be_half_is_not_begun() -> None:
    slow = Pace(step_left_s=100.0, save_s=20.0)
    wishes = SaveWishes()
    assert wishes.find("night", None, {1: SPOT}, replace(slow, copy_s=10.0), 1000.0) == ""
    assert wishes.find("night", None, {1: SPOT}, slow, 1000.0) == "night 1"
    assert wishes.find("night", None, {1: SPOT}, slow, 1010.0) == "", "the step takes longer than usual"
    assert wishes.find("night", None, {1: SPOT}, Pace(), 1015.0) == "", "and that is final"
    assert wishes.find("night", 200.0, {1: SPOT}, Pace(), 1015.0) == "night 3", "the end of the cluster asks anyway"


def test_a_wish_that_was_taken_back_stays_so_as_the_cluster_ends() -> None:
    """The end's own wish was answered; with the notice's number it would be carried out once more, half."""
    wishes, needs_80_s = SaveWishes(), Pace(save_s=80.0)
    assert wishes.find("night", 800.0, {}, Pace(), 900.0) == "night 1"
    assert wishes.find("night", 700.0, {1: SPOT}, needs_80_s, 1000.0) == "night 2"
    assert wishes.find("night", 640.0, {1: SPOT}, needs_80_s, 1060.0) == ""
    assert wishes.find("night", 299.0, {1: SPOT}, needs_80_s, 1110.0) == "", "nor is what the end asks for by now"
    assert wishes.find("night", 640.0, {}, Pace(), 1070.0) == "night 1", "the notice was withdrawn"
    assert wishes.find("night", 640.0, {1: SPOT}, Pace(), 1070.0) == "night 1", "and that is final"


def test_a_machine_that_stays_after_its_time_holds_up_no_save() -> None:
    wishes = SaveWishes()
    assert wishes.find("night", 800.0, {1: SPOT}, Pace(), 1120.0) == ""
    assert wishes.find("night", 500.0, {1: SPOT}, Pace(), 1420.0) == "night 1"


def test_a_step_that_is_being_copied_goes_first() -> None:
    assert Pace(step_left_s=10.0, save_s=5.0, copying_s=40.0, copy_s=40.0).needed_s == 80.0


def test_a_notice_of_an_hour_asks_again_as_its_time_comes() -> None:
    wishes, notices = SaveWishes(), {0: MAINTENANCE}
    times = (1000.0, 3000.0, 3701.0, 4301.0, 4600.0)
    assert [wishes.find("night", None, notices, Pace(), now) for now in times] == [
        "night 1", "night 1", "night 2", "night 3", "",
    ]  # fmt: skip


def test_what_is_asked_is_said() -> None:
    said: list[str] = []
    now, notices, pace = [1000.0], {1: SPOT}, [Pace(save_s=500.0)]
    asker = SaveAsker(lambda: "night", lambda: None, lambda: notices, lambda: pace[0], said.append, now=lambda: now[0])
    assert asker.is_urgent
    assert asker.look() == asker.look() == ""
    pace[0] = Pace()
    assert asker.look() == "night 1"
    notices.clear()
    assert asker.look() == ""
    assert not asker.is_urgent
    taken = "node 1 is taken back in 2 min 00 s: spot notice of AWS"
    assert said == [
        f"job night is not asked to save: {taken}, and a save and its copy would take 8 min 20 s",
        f"job night is asked to save: {taken}",
    ]
    notices[0] = MAINTENANCE
    assert not asker.is_urgent, "copies have time"


@pytest.mark.parametrize(("saved", "is_said"), [(10, True), (11, False)])
def test_a_save_that_was_asked_for_and_done_is_not_said_to_be_left_out(saved: int, is_said: bool) -> None:
    said: list[str] = []
    now, pace, saves = [1000.0], [Pace(save_s=60.0)], [SaveNote("night", 10, "f", 900.0)]
    asker = SaveAsker(
        lambda: "night", lambda: None, lambda: {1: SPOT}, lambda: pace[0], said.append, lambda _: saves[-1],
        now=lambda: now[0],
    )  # fmt: skip
    assert asker.look() == "night 1"
    saves.append(SaveNote("night", saved, "f", 1050.0))
    now[0], pace[0] = 1075.0, Pace(save_s=80.0)
    assert asker.look() == asker.look() == ""
    assert (
        said[1:]
        == [
            (
                "job night is no longer asked to save: node 1 is taken back in 45 s: spot notice of AWS, "
                "and a save and its copy would take 1 min 20 s"
            )
        ]
        * is_said
    )


def test_a_save_counts_for_its_own_attempt() -> None:
    notes = [SaveNote("night", 10, "f", 1.0), SaveNote("night", 20, "f", 2.0), SaveNote("other", 30, "f", 3.0), None]
    reports = [NodeReport(rank, "h", work=JobWork(0.0, saved=note)) for rank, note in enumerate(notes)]
    assert last_save(reports, "night") == notes[1]
    assert last_save(reports, "none") is None


def test_the_end_is_that_of_the_money_or_of_slurms_time_limit() -> None:
    money = BudgetLimits(price_per_hour=36.0, max_cost=10.0)

    assert left_s(BudgetLimits(), None, {}, 0.0) is None
    assert left_s(money, None, {}, 0.0) is None, "the price is not known"
    assert left_s(money, 4.0, {}, 0.0) == 600.0
    assert left_s(money, 4.0, {"SLURM_JOB_END_TIME": "1500"}, 1000.0) == 500.0
    assert left_s(BudgetLimits(), None, {"SLURM_JOB_END_TIME": "NOT_SET"}, 0.0) is None
    script = {"CLOUDRL_ENDS_AT": "1380", "SLURM_JOB_END_TIME": "1500"}
    assert left_s(BudgetLimits(), None, script, 1000.0) == 380.0, "the script ends the cluster before Slurm does"
