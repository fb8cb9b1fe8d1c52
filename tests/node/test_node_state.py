"""What is known of this node and, on rank 0, of all of them."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_clock import Clock

from cloudrl.node.failure import NodeFailed
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.interruptions import Interruption
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import HeartbeatReply, NodeReport


def _report(rank: int, **changes: object) -> NodeReport:
    return NodeReport(rank=rank, ip=f"10.0.0.{rank + 1}", hostname=f"node-{rank}", agent_port=8266, **changes)  # type: ignore[arg-type]


@pytest.fixture
def state(clock: Clock) -> NodeState:
    return NodeState(_report(0), clock=clock)


FIRST, SECOND = Failure(FailureKind.SETUP, 1, "first"), Failure(FailureKind.LOST, 2, "second")


def test_own_changes(state: NodeState) -> None:
    before = state.own
    state.update(phase="ray", detail="x")
    state.add("seconds", "setup", 1.23456)
    state.add("models", "m", "/m")
    assert (state.own.phase, state.own.seconds, state.own.models) == ("ray", {"setup": 1.23456}, {"m": "/m"})
    assert before == _report(0)


def test_the_first_failure_wins(state: NodeState) -> None:
    state.raise_failure()
    assert state.fail(FIRST) == FIRST
    assert state.fail(SECOND) == FIRST
    assert state.failure == FIRST
    with pytest.raises(NodeFailed) as caught:
        state.raise_failure()
    assert caught.value.failure == FIRST


def test_a_failure_that_a_worker_reports_counts(state: NodeState) -> None:
    state.record_heartbeat(_report(1, failure=FIRST))
    state.record_heartbeat(_report(2, failure=SECOND))
    assert state.failure == FIRST


def test_reports_are_by_rank_and_the_newest(state: NodeState) -> None:
    state.record_heartbeat(_report(2))
    state.record_heartbeat(_report(1))
    state.record_heartbeat(_report(2, phase="ray"))
    assert [(each.rank, each.phase) for each in state.reports()] == [(0, "start"), (1, "start"), (2, "ray")]


@pytest.mark.parametrize("ahead_s", [-1200.0, 0.0, 130.0])
def test_the_time_of_a_notice_is_by_the_clock_of_rank_0(ahead_s: float, clock: Clock) -> None:
    """`ahead_s` is by how much that is ahead of the node's."""
    state = NodeState(_report(0), clock=clock, now=lambda: 1000.0 + clock() + ahead_s)
    notice = Interruption("AWS", "spot", 1120.0)

    def seen(notice: Interruption, transit_s: float) -> Interruption | None:
        sent_at = 1000.0 + clock()
        clock.sleep(transit_s)
        state.record_heartbeat(_report(1, interruption=notice, sent_at=sent_at))
        return state.reports()[1].interruption

    first = seen(notice, 0.01)
    assert first is not None
    assert first.ends_at == pytest.approx(1120.0 + ahead_s, abs=0.1)
    assert seen(notice, 0.5) == first, "heartbeats take longer or shorter, and it stays one notice"
    later = seen(Interruption("AWS", "spot", 1180.0), 0.01)
    assert later is not None
    assert later.ends_at == pytest.approx(1180.0 + ahead_s, abs=0.1)


def test_a_rank_that_is_done_is_ready_when_the_barrier_opens(state: NodeState) -> None:
    """Not only when its next heartbeat says so: a ready cluster has no rank at the barrier."""
    state.record_heartbeat(_report(1, phase=Phase.BARRIER, detail="waiting", ray_up=True, fetched=True))
    state.record_heartbeat(_report(2, phase=Phase.FETCH, ray_up=True, fetched=True))
    state.record_heartbeat(_report(3, phase=Phase.FAILED, ray_up=True, fetched=True))
    state.record_heartbeat(_report(4, phase=Phase.START))
    assert [each.phase for each in state.reports()] == ["start", "barrier", "fetch", "failed", "start"]
    state.publish(ready=True)
    assert [each.phase for each in state.reports()] == ["start", "ready", "ready", "failed", "start"]
    assert state.reports()[1].detail == ""


def test_silence(state: NodeState, clock: Clock) -> None:
    state.record_heartbeat(_report(1))
    clock.sleep(4)
    assert state.heartbeat_age_s(0) == 0
    assert state.heartbeat_age_s(1) == 4
    state.record_heartbeat(_report(1))
    assert state.heartbeat_age_s(1) == 0


def test_how_long_a_rank_is_in_its_phase(state: NodeState, clock: Clock) -> None:
    assert (state.phase_s(0), state.phase_s(1)) == (0.0, 0.0)
    state.record_heartbeat(_report(1, phase="setup"))
    clock.sleep(4)
    state.record_heartbeat(_report(1, phase="setup", detail="another command"))
    clock.sleep(3)
    assert state.phase_s(1) == 7
    state.record_heartbeat(_report(1, phase="ray"))
    assert state.phase_s(1) == 0


def test_heartbeats_are_answered_with_what_was_published(state: NodeState) -> None:
    state.publish(ready=True, markers={"a": "1"})
    state.publish(markers={"b": "2"})
    state.update(phase=Phase.FETCH)
    expected = HeartbeatReply(ready=True, markers={"b": "2"})
    assert state.published == expected
    assert state.heartbeat_reply(1) == dataclasses.replace(expected, phase=Phase.FETCH)


def test_a_failure_is_told_only_once_it_is_judged(state: NodeState) -> None:
    state.record_heartbeat(_report(1))
    state.record_heartbeat(_report(2))
    state.fail(FIRST)
    assert state.heartbeat_reply(1).failure is None
    assert state.uninformed_ranks() == [1, 2]
    judged = Failure(FIRST.kind, FIRST.rank, FIRST.reason, final=True)
    state.judge(judged)
    assert state.heartbeat_reply(1).failure == judged
    assert state.uninformed_ranks() == [2]
    state.heartbeat_reply(2)
    assert state.uninformed_ranks() == []


def test_threads_lose_nothing(state: NodeState) -> None:
    def work(name: str) -> None:
        for index in range(200):
            state.add("models", f"{name}-{index}", "/")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "abcd"))
    assert len(state.own.models) == 800


def test_a_node_that_is_no_rank_is_told_like_the_others_and_counts_nowhere(state: NodeState) -> None:
    state.record_heartbeat(_report(1))
    state.refuse(_report(2), FIRST)
    assert state.failure == FIRST
    assert [each.rank for each in state.reports()] == [0, 1]
    state.judge(FIRST)
    assert state.heartbeat_reply(1).failure == FIRST
    assert state.uninformed_ranks() == [2]  # before, the head ended without it
    assert state.heartbeat_reply(2).failure == FIRST
    assert state.uninformed_ranks() == []
