"""Threads that fetch: none ends unnoticed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from cloudrl.node.board import Board
from cloudrl.node.failure import Failure, NodeFailed
from cloudrl.node.report import Report
from cloudrl.node.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def board() -> Board:
    return Board(Report(rank=1, ip="10.0.0.2", hostname="node-1", agent_port=8266))


def _do(board: Board, work: Callable[[], object]) -> Work:
    thread = Work("model", work, board)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return thread


def test_work_that_is_done(board: Board) -> None:
    done: list[str] = []
    work = _do(board, lambda: done.append("x"))
    work.result()
    assert (work.done, done, board.failure) == (True, ["x"], None)


def test_a_failure_keeps_its_own_kind(board: Board) -> None:
    failure = Failure("pull", 1, "it broke off")

    def fail() -> None:
        raise NodeFailed(failure)

    work = _do(board, fail)
    assert (work.done, board.failure) == (False, failure)


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), KeyError("path"), ValueError("no JSON"), RuntimeError("x")],
)
def test_whatever_else_ends_it_is_a_failure_with_its_text(board: Board, error: Exception) -> None:
    def fail() -> None:
        raise error

    work = _do(board, fail)
    assert not work.done
    assert board.failure is not None
    assert (board.failure.kind, board.failure.rank) == ("model", 1)
    assert board.failure.reason == f"{type(error).__name__}: {error}"
    assert "in fail" in board.failure.tail
    with pytest.raises(NodeFailed):
        work.result()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_end_without_a_reason_is_a_failure_too(board: Board) -> None:
    work = _do(board, sys.exit)
    assert board.failure is None
    with pytest.raises(NodeFailed) as caught:
        work.result()
    assert caught.value.failure == Failure("model", 1, "the work on the model has stopped half-way")


def test_waiting_ends_with_what_another_has_met(board: Board) -> None:
    work = _do(board, lambda: None)
    board.fail(Failure("data", 1, "first"))
    with pytest.raises(NodeFailed, match="first"):
        work.result()
