"""When a cluster ends by itself to save money."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cloudrl.node.budget import (
    IdleMonitor,
    Transfers,
    UsageSnapshot,
    are_working,
    cost,
    dollars,
    duration,
    is_working,
    pause_s,
    read_cost,
    shutdown_reason,
    write_cost,
)
from cloudrl.protocol.options import BudgetLimits

HOUR = 3600.0
IDLE = BudgetLimits(idle_s=1800)
BUDGET = BudgetLimits(max_cost=200, price_per_hour=50)


def usage(now: float, **more: float | bool | None) -> UsageSnapshot:
    return UsageSnapshot(**{"now": now, "started_at": 0.0, "ready_at": 100.0, "known": True, **more})  # type: ignore[arg-type]


class TestIdle:
    def test_counts_from_ready(self) -> None:
        assert shutdown_reason(IDLE, usage(1899)) == ""
        assert shutdown_reason(IDLE, usage(1900)) == "idle for 30m"

    def test_not_before_ready(self) -> None:
        """A start may take hours, with a large model; that has deadlines of its own."""
        assert shutdown_reason(IDLE, usage(9999, ready_at=None)) == ""

    def test_counts_from_the_end_of_the_last_work(self) -> None:
        assert shutdown_reason(IDLE, usage(2700, worked_at=1000)) == ""
        assert shutdown_reason(IDLE, usage(2800, worked_at=1000)) == "idle for 30m"

    def test_work_before_ready_does_not_count(self) -> None:
        assert shutdown_reason(IDLE, usage(1900, worked_at=50)) == "idle for 30m"

    def test_silence_of_ray_ends_nothing(self) -> None:
        assert shutdown_reason(IDLE, usage(9999, known=False)) == ""

    def test_no_limit(self) -> None:
        assert shutdown_reason(BudgetLimits(), usage(1e9)) == ""


class TestCost:
    def test_ends_at_the_limit(self) -> None:
        assert shutdown_reason(BUDGET, usage(4 * HOUR - 1)) == ""
        assert shutdown_reason(BUDGET, usage(4 * HOUR)) == "cost $200 of $200"
        assert shutdown_reason(BUDGET, usage(4 * HOUR + 7.2)) == "cost $200.10 of $200"

    def test_a_running_job_does_not_keep_it_alive(self) -> None:
        assert shutdown_reason(BUDGET, usage(4 * HOUR, worked_at=4 * HOUR)) != ""

    def test_before_ready_it_costs_as_much(self) -> None:
        assert shutdown_reason(BUDGET, usage(4 * HOUR, ready_at=None, known=False)) != ""

    def test_earlier_attempts_count(self) -> None:
        assert shutdown_reason(BUDGET, usage(HOUR, cost_before=150.0)) == "cost $200 of $200"

    def test_without_a_price_nobody_knows(self) -> None:
        assert cost(BudgetLimits(max_cost=1), usage(HOUR)) is None
        assert cost(BUDGET, usage(HOUR, cost_before=1.5)) == 51.5


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
    assert is_working(jobs) is working


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
    assert are_working(actors) is working


@pytest.mark.parametrize(
    ("seconds", "text"), [(1800, "30m"), (7200, "2h"), (86400, "1d"), (90, "90s"), (0.5, "0.5s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("amount", "text"), [(200, "$200"), (200.1, "$200.10"), (1234.5, "$1,234.50")])
def test_dollars(amount: float, text: str) -> None:
    assert dollars(amount) == text


class Ray:
    """What a watcher asks."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, str]] | None = []
        self.actors: list[dict[str, object]] | None = []
        self.now = 0.0

    def watcher(self, transfers: Transfers | None = None) -> IdleMonitor:
        clock = lambda: self.now  # noqa: E731
        return IdleMonitor(
            lambda: self.jobs,
            lambda: self.actors,
            transfers or Transfers(clock=clock),
            pause_s=1,
            clock=clock,
        )


class TestWatcher:
    def idle_s(self, ray: Ray, watcher: IdleMonitor) -> float | None:
        watcher.look()
        return watcher.usage(0.0, 0.0, 0.0).idle_s

    def test_a_job_keeps_it_busy_until_it_ends(self) -> None:
        ray = Ray()
        watcher = ray.watcher()
        ray.now, ray.jobs = 10, [{"status": "RUNNING"}]
        assert self.idle_s(ray, watcher) == 0
        ray.now = 20
        assert self.idle_s(ray, watcher) == 0
        ray.now, ray.jobs = 25, [{"status": "SUCCEEDED"}]
        assert self.idle_s(ray, watcher) == 5

    def test_one_that_came_and_went_between_two_looks(self) -> None:
        ray = Ray()
        watcher = ray.watcher()
        ray.now, ray.jobs = 30, [{"status": "FAILED"}]
        assert self.idle_s(ray, watcher) == 0
        ray.now = 40
        assert self.idle_s(ray, watcher) == 10

    def test_no_answer_is_not_known(self) -> None:
        ray = Ray()
        watcher = ray.watcher()
        watcher.look()
        assert watcher.usage(0.0, 0.0, 0.0).known
        ray.jobs = None
        watcher.look()
        assert not watcher.usage(0.0, 0.0, 0.0).known

    def test_a_driver_that_a_submission_has_left_keeps_it_busy(self) -> None:
        """`ray job submit -- bash -c 'nohup python train.py &'`: the job has SUCCEEDED, its actors live."""
        ray = Ray()
        watcher = ray.watcher()
        ray.jobs = [{"status": "SUCCEEDED"}]
        watcher.look()
        ray.now, ray.actors = 20, [{"state": "ALIVE", "is_detached": False, "required_resources": {}}]
        assert self.idle_s(ray, watcher) == 0
        ray.now, ray.actors = 50, []
        assert self.idle_s(ray, watcher) == 30

    def test_no_answer_about_actors_is_not_known(self) -> None:
        ray = Ray()
        watcher = ray.watcher()
        ray.actors = None
        watcher.look()
        assert not watcher.usage(0.0, 0.0, 0.0).known

    def test_a_transfer_keeps_it_busy(self) -> None:
        ray = Ray()
        transfers = Transfers(clock=lambda: ray.now)
        watcher = ray.watcher(transfers)
        with transfers.going_on():
            ray.now = 50
            assert self.idle_s(ray, watcher) == 0
        ray.now = 60
        assert self.idle_s(ray, watcher) == 10

    def test_transfers_at_once(self) -> None:
        ray = Ray()
        transfers, inside = Transfers(clock=lambda: ray.now), threading.Event()
        release = threading.Event()

        def slow() -> None:
            with transfers.going_on():
                inside.set()
                release.wait(5)

        thread = threading.Thread(target=slow)
        thread.start()
        inside.wait(5)
        with transfers.going_on():
            pass
        ray.now = 7
        assert transfers.seen_at == 7
        release.set()
        thread.join()
        ray.now = 9
        assert transfers.seen_at == 7


def test_it_is_asked_often_enough() -> None:
    assert pause_s(BudgetLimits(idle_s=1800)) == 15
    assert pause_s(BudgetLimits(idle_s=1)) == 0.2


class TestWhatWasPaid:
    def test_comes_back(self, tmp_path: Path) -> None:
        write_cost(tmp_path, "run/1", 12.34567, rank=0)
        write_cost(tmp_path, "run/1", 13.0, rank=1)
        assert read_cost(tmp_path, "run/1") == 13.0
        assert not list(tmp_path.rglob("*.part"))

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"cost_before": "much"}', '{"at": 3}'])
    def test_a_broken_record_is_none(self, tmp_path: Path, text: str) -> None:
        write_cost(tmp_path, "run", 1.0, rank=0)
        next(tmp_path.rglob("run.json")).write_text(text)
        assert read_cost(tmp_path, "run") == 0.0

    def test_no_record(self, tmp_path: Path) -> None:
        assert read_cost(tmp_path, "run") == 0.0
