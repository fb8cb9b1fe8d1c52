"""When a cluster ends by itself to save money."""

from typing import Any

import pytest

from cloudrl.node import budget
from cloudrl.node.budget import IdleMonitor, shutdown_reason
from cloudrl.protocol.options import BudgetLimits

IDLE = BudgetLimits(idle_s=1800)
BUDGET = BudgetLimits(max_cost=200, price_per_hour=50)


@pytest.mark.parametrize(
    ("limits", "cost", "idle_s", "reason"),
    [
        (IDLE, None, 1799, ""),
        (IDLE, None, 1800, "idle for 30m"),
        (IDLE, None, None, ""),
        (BUDGET, 199.9, 0, ""),
        (BUDGET, 200, 0, "cost $200.00 of $200.00"),  # a running job does not keep it alive
        (BUDGET, 200.1, None, "cost $200.10 of $200.00"),
        (BudgetLimits(max_cost=1), None, None, ""),
        (BudgetLimits(), 1e9, 1e9, ""),
    ],
)
def test_why_a_cluster_ends(limits: BudgetLimits, cost: float | None, idle_s: float | None, reason: str) -> None:
    assert shutdown_reason(limits, cost, idle_s) == reason


def test_what_is_under_way_may_cost_a_tenth_more() -> None:
    """A save that is not whole, or a model that has not arrived, would be lost with all that it has cost."""
    assert [shutdown_reason(BUDGET, cost, 0, is_saving=True) for cost in (200, 219.9)] == ["", ""]
    assert shutdown_reason(BUDGET, 220.1, 0, is_saving=True) == "cost $220.10 of $200.00"
    assert shutdown_reason(IDLE, None, 1800, is_saving=True) == "idle for 30m"


@pytest.mark.parametrize(
    ("jobs", "working"),
    [
        ([], False),
        ([{"status": "SUCCEEDED"}, {"status": "FAILED"}, {"status": "STOPPED"}], False),
        ([{"status": "SUCCEEDED"}, {"status": "PENDING"}], True),
        ([{"type": "DRIVER", "status": "RUNNING"}], True),
        ([{"status": "A_WORD_OF_A_LATER_RAY"}], True),
        ([{}], True),
    ],
)
def test_what_counts_as_work(jobs: list[dict[str, str]], working: bool) -> None:
    assert budget.is_working(jobs) is working


@pytest.mark.parametrize(
    ("actors", "working"),
    [
        ([], False),
        ([{"class_name": "TaskRunner", "is_detached": False, "required_resources": {"CPU": 1.0}}], True),
        ([{"class_name": "default", "is_detached": False, "required_resources": {}}], True),
        ([{"class_name": "_StatsActor", "is_detached": True, "required_resources": {}}], False),
        ([{"is_detached": True, "required_resources": {"CPU": 0.0, "node:10.0.0.1": 0.001}}], False),
        ([{"is_detached": True, "required_resources": {"GPU": 1.0}}], True),
        ([{}], True),
    ],
)
def test_which_actors_are_work(actors: list[dict[str, object]], working: bool) -> None:
    assert budget.are_working(actors) is working


class Ray:
    """What a monitor asks, at a time; it is READY since 0."""

    def __init__(self) -> None:
        self.listed_jobs: list[dict[str, Any]] | None = []
        self.actors: list[dict[str, object]] | None = []
        self.now = 0.0
        self.monitor = IdleMonitor(self, clock=lambda: self.now)  # type: ignore[arg-type]

    def jobs(self) -> list[dict[str, Any]] | None:
        return self.listed_jobs

    def alive_actors(self) -> list[dict[str, object]] | None:
        return self.actors

    def idle_s(self, now: float, *statuses: str) -> float | None:
        """After one more look, at a time when these jobs are listed."""
        self.now, self.listed_jobs = now, [{"status": status} for status in statuses]
        self.monitor.poll()
        return self.monitor.idle_s


@pytest.fixture
def ray() -> Ray:
    ray = Ray()
    ray.monitor.start(None)
    return ray


class TestMonitor:
    def test_nothing_counts_before_ready(self) -> None:
        """A start may take hours, with a large model; that has deadlines of its own."""
        ray = Ray()
        assert ray.idle_s(10, "RUNNING") is None
        ray.now = 100
        ray.monitor.start(None)
        assert ray.idle_s(1900, "SUCCEEDED") == 1800

    def test_a_job_keeps_it_busy_until_it_ends(self, ray: Ray) -> None:
        assert ray.idle_s(10, "RUNNING") == 0
        assert ray.idle_s(20, "RUNNING") == 0
        assert ray.idle_s(25, "SUCCEEDED") == 5

    def test_one_that_came_and_went_between_two_looks(self, ray: Ray) -> None:
        assert ray.idle_s(30, "FAILED") == 0
        assert ray.idle_s(40, "FAILED") == 10

    @pytest.mark.parametrize("silent", ["listed_jobs", "actors"])
    def test_no_answer_is_not_known(self, ray: Ray, silent: str) -> None:
        assert not ray.monitor.known
        ray.monitor.poll()
        assert ray.monitor.known
        setattr(ray, silent, None)
        ray.monitor.poll()
        assert not ray.monitor.known

    def test_a_driver_that_a_submission_has_left_keeps_it_busy(self, ray: Ray) -> None:
        """`ray job submit -- bash -c 'nohup python train.py &'`: the job has SUCCEEDED, its actors live."""
        ray.idle_s(0, "SUCCEEDED")
        ray.actors = [{"state": "ALIVE", "is_detached": False, "required_resources": {}}]
        assert ray.idle_s(20, "SUCCEEDED") == 0
        ray.actors = []
        assert ray.idle_s(50, "SUCCEEDED") == 30

    def test_a_transfer_keeps_it_busy_amid_others_too(self, ray: Ray) -> None:
        with ray.monitor.transfer():
            assert ray.idle_s(50) == 0
            with ray.monitor.transfer():
                ray.now = 55
            assert ray.idle_s(57) == 0
        assert ray.idle_s(60) == 3

    def test_whether_a_transfer_is_under_way_or_pauses(self, ray: Ray) -> None:
        ray.now = 100
        assert not ray.monitor.is_transferring
        with ray.monitor.transfer():
            assert ray.monitor.is_transferring
        ray.now = 110
        assert ray.monitor.is_transferring  # between two files
        ray.now = 200
        assert not ray.monitor.is_transferring

    @pytest.mark.parametrize(
        ("status", "recipe", "brings"),
        [
            ("RUNNING", "merge", True),
            ("RUNNING", "push", True),
            ("SUCCEEDED", "merge", False),
            ("RUNNING", "grpo", False),
        ],
    )
    def test_whether_a_job_brings_the_model_out(self, ray: Ray, status: str, recipe: str, brings: bool) -> None:
        ray.listed_jobs = [{"status": status, "metadata": {"cloudrl_recipe": recipe}}, {"status": "RUNNING"}]
        ray.monitor.poll()
        assert ray.monitor.brings_result is brings
        ray.listed_jobs = None  # a dashboard that is silent for a moment ends no upload
        ray.monitor.poll()
        assert ray.monitor.brings_result is brings


def test_it_is_asked_often_enough() -> None:
    assert [budget.pause_s(limit_s) for limit_s in (1800, 20, 1)] == [15, 1, 0.2]
