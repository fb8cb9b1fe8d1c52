"""What is known of this node and, on rank 0, of all of them."""

from __future__ import annotations

import threading

import pytest

from cloudrl.node.board import Board
from cloudrl.node.failure import Failure, NodeFailed
from cloudrl.node.report import Report


def _report(rank: int, **changes: object) -> Report:
    return Report(rank=rank, ip=f"10.0.0.{rank + 1}", hostname=f"node-{rank}", agent_port=8266, **changes)  # type: ignore[arg-type]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> Board:
    return Board(_report(0), clock=clock)


FIRST, SECOND = Failure("setup", 1, "first"), Failure("lost", 2, "second")


def test_own_changes(board: Board) -> None:
    before = board.own
    board.update(phase="ray", detail="x")
    board.add_seconds("setup", 1.23456)
    board.add_model("m", "/m")
    assert (board.own.phase, board.own.seconds, board.own.models) == ("ray", {"setup": 1.235}, {"m": "/m"})
    assert before == _report(0)


def test_the_first_failure_wins(board: Board) -> None:
    board.raise_failure()
    assert board.fail(FIRST) == FIRST
    assert board.fail(SECOND) == FIRST
    assert board.failure == FIRST
    with pytest.raises(NodeFailed) as caught:
        board.raise_failure()
    assert caught.value.failure == FIRST


def test_a_failure_that_a_worker_reports_counts(board: Board) -> None:
    board.heard(_report(1, failure=FIRST))
    board.heard(_report(2, failure=SECOND))
    assert board.failure == FIRST


def test_reports_are_by_rank_and_the_newest(board: Board) -> None:
    board.heard(_report(2))
    board.heard(_report(1))
    board.heard(_report(2, phase="ray"))
    assert [(each.rank, each.phase) for each in board.reports()] == [(0, "start"), (1, "start"), (2, "ray")]


def test_silence(board: Board, clock: Clock) -> None:
    board.heard(_report(1))
    clock.now += 4
    assert board.silence_s(0) == 0
    assert board.silence_s(1) == 4
    assert board.silence_s(2) == float("inf")
    board.heard(_report(1))
    assert board.silence_s(1) == 0


def test_how_long_a_rank_is_in_its_phase(board: Board, clock: Clock) -> None:
    assert (board.phase_s(0), board.phase_s(1)) == (0.0, 0.0)
    board.heard(_report(1, phase="setup"))
    clock.now += 4
    board.heard(_report(1, phase="setup", detail="another command"))
    clock.now += 3
    assert board.phase_s(1) == 7
    board.heard(_report(1, phase="ray"))
    assert board.phase_s(1) == 0


def test_heartbeats_are_answered_with_what_was_published(board: Board) -> None:
    board.publish(a=1)
    board.publish(b=2, a=3)
    assert board.published == {"a": 3, "b": 2}
    board.update(phase="fetch")
    assert board.answer(1) == {"a": 3, "b": 2, "phase": "fetch", "failure": None}


def test_a_failure_is_told_only_once_it_is_judged(board: Board) -> None:
    board.heard(_report(1))
    board.heard(_report(2))
    board.fail(FIRST)
    assert board.answer(1)["failure"] is None
    assert board.untold() == [1, 2]
    judged = Failure(FIRST.kind, FIRST.rank, FIRST.reason, final=True)
    board.replace_failure(judged)
    board.publish(judged=True)
    assert board.answer(1)["failure"] == judged.to_json()
    assert board.untold() == [2]
    board.answer(2)
    assert board.untold() == []


def test_threads_lose_nothing(board: Board) -> None:
    def work(name: str) -> None:
        for index in range(200):
            board.add_model(f"{name}-{index}", "/")
            board.publish(**{f"{name}-{index}": True})

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(board.own.models) == len(board.published) == 800
