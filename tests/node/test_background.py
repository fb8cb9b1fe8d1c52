"""Threads that fetch: none ends unnoticed."""

import sys
import threading
from collections.abc import Callable

import pytest
from patience import SLOWER

from cloudrl.node.background import repeat, run_parallel, start_thread
from cloudrl.node.failure import NodeFailed
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.report import NodeReport


@pytest.fixture
def state() -> NodeState:
    return NodeState(NodeReport(rank=1, ip="10.0.0.2", hostname="node-1", agent_port=8266))


def _do(state: NodeState, work: Callable[[], object]) -> None:
    thread = start_thread(FailureKind.MODEL, work, state)
    thread.join(10 * SLOWER)
    assert not thread.is_alive()


def test_work_that_is_done(state: NodeState) -> None:
    done: list[str] = []
    run_parallel({FailureKind.MODEL: lambda: done.append("m"), FailureKind.DATA: lambda: done.append("d")}, state)
    assert (sorted(done), state.failure) == (["d", "m"], None)


def test_a_failure_keeps_its_own_kind(state: NodeState) -> None:
    failure = Failure(FailureKind.PULL, 1, "it broke off")

    def fail() -> None:
        raise NodeFailed(failure)

    _do(state, fail)
    assert state.failure == failure


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyError("path"), ValueError("no JSON"), RuntimeError("x")]
)
def test_whatever_else_ends_it_is_a_failure_with_its_text(state: NodeState, error: Exception) -> None:
    def fail() -> None:
        raise error

    _do(state, fail)
    assert (state.failure.kind, state.failure.rank) == ("model", 1)
    assert state.failure.reason == f"{type(error).__name__}: {error}"
    assert "in fail" in state.failure.tail


def test_an_end_without_a_reason_is_a_failure_too(state: NodeState) -> None:
    with pytest.raises(NodeFailed) as caught:
        run_parallel({FailureKind.MODEL: sys.exit}, state)
    failure = caught.value.failure
    assert (failure.kind, failure.rank, failure.reason) == ("model", 1, "SystemExit")


def test_waiting_ends_with_what_another_has_met(state: NodeState) -> None:
    state.fail(Failure(FailureKind.DATA, 1, "first"))
    with pytest.raises(NodeFailed, match="first"):
        run_parallel({FailureKind.MODEL: lambda: None}, state)


def test_an_error_that_nobody_foresaw_is_written_once_and_ends_nothing(capfd: pytest.CaptureFixture[str]):
    looks, enough = [0], threading.Event()

    def look() -> None:
        looks[0] += 1
        if looks[0] < 4:
            raise KeyError("rchar")
        enough.set()

    repeat(look, 0.01)
    assert enough.wait(10 * SLOWER)
    assert capfd.readouterr().err.count("KeyError: 'rchar'") == 1
