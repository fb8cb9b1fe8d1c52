"""A permanent failure is not retried for ever."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from cloudrl.node.attempts import Attempts
from cloudrl.protocol.failures import Failure, FailureKind, PastFailure

FAILURE = Failure(FailureKind.PREFLIGHT, 1, "no Ray in this Python", "a line of log", subject="ray")
CLOCK = itertools.count()


def attempts(folder: Path, run_id: str = "run") -> Attempts:
    return Attempts(folder, run_id, rank=0, attempt="2", clock=lambda: float(next(CLOCK)))


def is_final(folder: Path, failure: Failure = FAILURE, run_id: str = "run", *elsewhere: dict[str, PastFailure]) -> bool:
    judged = attempts(folder, run_id).classify(failure, elsewhere=elsewhere, since=float(next(CLOCK)))
    assert judged == dataclasses.replace(failure, final=judged.final, times=judged.times, reason=judged.reason)
    return judged.final


def record_of(folder: Path) -> Path:
    [record] = (folder / ".cloudrl" / "attempts").iterdir()
    return record


@pytest.mark.parametrize("kind", list(FailureKind))
def test_only_what_comes_back_is_final_at_its_second_time(tmp_path: Path, kind: FailureKind) -> None:
    failure = Failure(kind, 0, "reason")
    assert [is_final(tmp_path, failure) for _ in range(3)] == [False, failure.permanent, failure.permanent]


RAY = Failure(FailureKind.RAY, 0, "`ray start` exited with 1", subject="ray start")


@pytest.mark.parametrize("kind", list(FailureKind))
def test_whatever_it_is_its_fifth_time_is_final_unless_a_node_was_lost(tmp_path: Path, kind: FailureKind) -> None:
    """It was retried without end, at the user's cost. A lost spot node is no fault of it, and will be replaced."""
    for _ in range(4):
        judged = attempts(tmp_path).classify(Failure(kind, 0, "reason"), since=float(next(CLOCK)))
        assert judged.reason == "reason"
    judged = attempts(tmp_path).classify(Failure(kind, 0, "reason"), since=float(next(CLOCK)))
    if kind is FailureKind.LOST:
        assert (judged.final, judged.reason) == (False, "reason")
    else:
        assert (judged.final, judged.reason) == (True, "reason; 5 attempts ended like this")


def test_failures_between_do_not_start_the_count_anew_and_a_ready_cluster_does(tmp_path: Path) -> None:
    lost = Failure(FailureKind.LOST, 1, "no heartbeat")
    for _ in range(2):
        assert not any(is_final(tmp_path, each) for each in (RAY, lost, RAY, lost, RAY, lost, RAY))
        attempts(tmp_path).clear()
    assert [is_final(tmp_path, RAY) for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("shared", [True, False])
def test_an_attempt_counts_once_however_many_nodes_record_it(tmp_path: Path, shared: bool) -> None:
    """Rank 0 judges, and each worker records the verdict; on one machine or share they write the same file."""
    folders = [tmp_path / ("all" if shared else f"node-{rank}") for rank in range(4)]
    for number in range(1, 6):
        began = float(next(CLOCK))
        memory = [attempts(folder).known() for folder in folders]
        judged = attempts(folders[0]).classify(RAY, elsewhere=memory, since=began)
        for folder in folders[1:]:
            attempts(folder).record(judged)
        # and a worker whom the head could not tell judges alone
        alone = attempts(folders[3]).classify(RAY, since=began)
        assert (judged.times, alone.times, judged.final, alone.final) == (number, number, number == 5, number == 5)
        folders = [*folders[1:], folders[0]]  # the next attempt has other machines


def network_error(code: str, reason: str = "") -> Failure:
    reason = f"model owner/name: {reason or code}"
    return Failure(FailureKind.MODEL, 0, reason, transient=True, subject="owner/name", code=code)


TIMED_OUT = network_error("ReadTimeout", "ReadTimeout: timed out after 10.2 s")


def test_what_the_network_did_twice_in_a_row_is_final(tmp_path: Path) -> None:
    """A node without a way to the hub would be tried for ever, and each time the user pays."""
    assert not is_final(tmp_path, TIMED_OUT)
    assert is_final(tmp_path, network_error("ReadTimeout", "ReadTimeout: 10.4 s are over"))


@pytest.mark.parametrize(
    "other", [network_error("ConnectError"), FAILURE, Failure(FailureKind.LOST, 1, "no heartbeat")]
)
def test_other_failures_between_two_equal_ones_end_nothing(tmp_path: Path, other: Failure) -> None:
    assert [is_final(tmp_path, each) for each in (TIMED_OUT, other, TIMED_OUT)] == [False] * 3


def test_two_statuses_of_a_server_are_two_failures(tmp_path: Path) -> None:
    for status in (502, 503, 504):
        assert not is_final(tmp_path, network_error(f"HfHubHTTPError {status}", "Server error (Request 7a)"))
    assert is_final(tmp_path, network_error("HfHubHTTPError 504", "Server error (Request 9f)"))


def test_a_run_that_was_ready_starts_afresh_and_each_run_has_its_own_record(tmp_path: Path) -> None:
    assert not is_final(tmp_path)
    assert not is_final(tmp_path, run_id="another")
    attempts(tmp_path).clear()
    attempts(tmp_path).clear()
    assert not is_final(tmp_path)
    assert is_final(tmp_path)
    assert is_final(tmp_path, run_id="another")


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"kind": FailureKind.SETUP}, False),
        ({"subject": "shm"}, False),
        ({"code": "ENOENT"}, False),
        ({"rank": 0}, True),  # where all nodes fail alike, chance decides which is the first
        ({"reason": "the disk is 97% full (2.9 GiB free)", "tail": ""}, True),
    ],
)
def test_what_makes_another_failure(tmp_path: Path, changes: dict[str, object], same: bool) -> None:
    assert not is_final(tmp_path)
    assert is_final(tmp_path, dataclasses.replace(FAILURE, **changes)) is same  # type: ignore[arg-type]
    assert is_final(tmp_path)


def test_without_a_memory_what_comes_back_is_final_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finals = [
        is_final(tmp_path / "file" / "x", each) for each in (FAILURE, TIMED_OUT, Failure(FailureKind.LOST, 0, ""))
    ]
    assert finals == [True, False, False]


def test_a_line_that_broke_off_hides_neither_what_was_before_nor_what_comes(tmp_path: Path) -> None:
    first, second = (Failure(FailureKind.SETUP, 0, "", subject=each) for each in ("first", "second"))
    is_final(tmp_path, first)
    with record_of(tmp_path).open("a") as file:
        file.write('{"at": 1, "signa')
    assert [is_final(tmp_path, each) for each in (second, second, first)] == [False, True, True]


@pytest.mark.parametrize("line", ["[]", "null", "7", '"text"', "{}", "\0\0\0", "\udcff\udcfe"])
def test_lines_of_something_else_are_passed_over(tmp_path: Path, line: str) -> None:
    is_final(tmp_path)
    record = record_of(tmp_path)
    record.write_text(f"{line}\n{record.read_text()}", errors="surrogateescape")
    assert is_final(tmp_path)


def test_a_run_id_stays_inside_the_folder(tmp_path: Path) -> None:
    is_final(tmp_path / "volume", run_id="../../../outside/é")
    assert [each.name for each in tmp_path.iterdir()] == ["volume"]
    assert json.loads(record_of(tmp_path / "volume").read_text())["signature"] == FAILURE.signature


def test_other_machines_remember(tmp_path: Path) -> None:
    """The next attempt begins on a spare host, and a host of the last one is a worker now."""
    worker = attempts(tmp_path / "worker")
    assert not is_final(tmp_path / "head")
    worker.record(FAILURE)
    assert list(worker.known()) == [FAILURE.signature]
    assert is_final(tmp_path / "spare", FAILURE, "run", {}, worker.known())
    assert attempts(tmp_path / "nowhere").known() == {}


def test_the_last_failure_of_all_machines_counts(tmp_path: Path) -> None:
    signature, now = TIMED_OUT.signature, float(next(CLOCK))
    before, last = PastFailure(now - 2), PastFailure(now - 1)
    assert is_final(tmp_path / "a", TIMED_OUT, "run", {"model|older": before, signature: last})
    assert not is_final(tmp_path / "b", TIMED_OUT, "run", {signature: before}, {"lost|newer": last})


def test_what_was_before_the_run_was_ready_counts_nowhere(tmp_path: Path) -> None:
    """A machine that missed the start that went well remembers the failures before it."""
    for node in ("a", "b"):
        is_final(tmp_path / node)
    attempts(tmp_path / "b").clear()
    assert not is_final(tmp_path / "a", FAILURE, "run", attempts(tmp_path / "b").known())
    old = {FAILURE.signature: PastFailure(0, 4)}
    assert [attempts(tmp_path / "b").classify(FAILURE, elsewhere=[old]).times for _ in range(2)] == [1, 2]
    attempts(tmp_path / "c").clear()
    assert not (tmp_path / "c").exists()  # nothing is written down where nothing was


def test_the_same_failure_seen_by_another_node_is_no_earlier_one(tmp_path: Path) -> None:
    """All nodes share the folder, and one of them was quicker."""
    began = float(next(CLOCK))
    attempts(tmp_path).record(FAILURE)
    assert not attempts(tmp_path).classify(FAILURE, since=began).final


def test_what_was_paid_comes_back(tmp_path: Path) -> None:
    for rank, amount in enumerate((12.34567, 13.0)):
        Attempts(tmp_path, "run/1", rank=rank, attempt="1").write_cost(amount, 2.5)
    assert attempts(tmp_path, "run/1").read_cost() == 13.0
    assert attempts(tmp_path, "another").read_cost() == 0.0
    assert not list(tmp_path.rglob("*.part"))


def test_what_this_attempt_costs_is_not_counted_as_an_earlier_one(tmp_path: Path) -> None:
    """A worker that starts late, on a folder that all share, finds what the head has written of this attempt."""
    Attempts(tmp_path, "run/1", rank=0, attempt="1").write_cost(13.0, 2.5)
    assert Attempts(tmp_path, "run/1", rank=1, attempt="1").read_cost() == 2.5
    assert Attempts(tmp_path, "run/1", rank=1, attempt="2").read_cost() == 13.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cost_before": "much"}', '{"at": 3}'])
def test_a_broken_record_of_the_cost_is_none(tmp_path: Path, text: str) -> None:
    attempts(tmp_path).write_cost(1.0, 0.0)
    next(tmp_path.rglob("run.json")).write_text(text)
    assert attempts(tmp_path).read_cost() == 0.0
