"""A permanent failure is not retried for ever."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING

import pytest

from cloudrl.node.attempts import classify_failure, clear, known_failures, record
from cloudrl.protocol.failures import Failure, FailureKind

if TYPE_CHECKING:
    from pathlib import Path

FAILURE = Failure(FailureKind.PREFLIGHT, 1, "no Ray in this Python", "a line of log", subject="ray")


CLOCK = itertools.count()


def _judge(
    folder: Path, failure: Failure = FAILURE, run_id: str = "run", *elsewhere: dict[str, float]
) -> bool:
    judged = classify_failure(
        failure, folder=folder, run_id=run_id, elsewhere=elsewhere, now=float(next(CLOCK))
    )
    assert judged == dataclasses.replace(failure, final=judged.final)
    return judged.final


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if Failure(kind, 0, "").permanent])
def test_the_second_equal_failure_is_final(tmp_path: Path, kind: str) -> None:
    failure = Failure(kind, 0, "reason")
    assert [_judge(tmp_path, failure) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize("kind", ["ray", "lost", "join", "pull"])
def test_what_a_retry_may_cure_is_never_final(tmp_path: Path, kind: str) -> None:
    assert not any(_judge(tmp_path, Failure(kind, 0, "reason")) for _ in range(4))


def _network_error(code: str, reason: str = "") -> Failure:
    reason = f"model owner/name: {reason or code}"
    return Failure(FailureKind.MODEL, 0, reason, transient=True, subject="owner/name", code=code)


TIMED_OUT = _network_error("ReadTimeout", "ReadTimeout: timed out after 10.2 s")


def test_what_the_network_did_twice_in_a_row_is_final(tmp_path: Path) -> None:
    """A node without a way to the hub would be tried for ever, and each time the user pays."""
    assert not _judge(tmp_path, TIMED_OUT)
    assert _judge(tmp_path, _network_error("ReadTimeout", "ReadTimeout: 10.4 s are over"))


@pytest.mark.parametrize(
    "other",
    [
        _network_error("ConnectError"),
        FAILURE,
        Failure(FailureKind.LOST, 1, "no heartbeat"),
    ],
)
def test_other_failures_between_two_equal_ones_end_nothing(tmp_path: Path, other: Failure) -> None:
    assert [_judge(tmp_path, each) for each in (TIMED_OUT, other, TIMED_OUT)] == [False] * 3


def test_two_statuses_of_a_server_are_two_failures(tmp_path: Path) -> None:
    for status in (502, 503, 504):
        assert not _judge(tmp_path, _network_error(f"HfHubHTTPError {status}", "Server error (Request 7a)"))
    assert _judge(tmp_path, _network_error("HfHubHTTPError 504", "Server error (Request 9f)"))


def test_a_network_that_failed_without_a_memory_is_not_final(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not _judge(tmp_path / "file" / "checkpoints", TIMED_OUT)


def test_a_run_that_was_ready_starts_afresh(tmp_path: Path) -> None:
    assert not _judge(tmp_path)
    assert not _judge(tmp_path, run_id="another")
    clear(tmp_path, "run")
    clear(tmp_path, "run")
    assert not _judge(tmp_path)
    assert _judge(tmp_path, run_id="another")


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(FAILURE, kind=FailureKind.SETUP),
        dataclasses.replace(FAILURE, subject="shm"),
        dataclasses.replace(FAILURE, code="ENOENT"),
    ],
)
def test_another_failure_is_another(tmp_path: Path, other: Failure) -> None:
    assert not _judge(tmp_path)
    assert not _judge(tmp_path, other)
    assert _judge(tmp_path)


def test_another_rank_is_not_another_failure(tmp_path: Path) -> None:
    """Where all nodes fail alike, chance decides which is the first."""
    assert not _judge(tmp_path)
    assert _judge(tmp_path, dataclasses.replace(FAILURE, rank=0))


def test_another_run_starts_afresh(tmp_path: Path) -> None:
    assert not _judge(tmp_path)
    assert not _judge(tmp_path, run_id="another")
    assert _judge(tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("the disk is 96% full (3.1 GiB free)", "the disk is 97% full (2.9 GiB free)"),
        ("/data-a/gsm8k on 10.0.0.7 at noon", "/mnt/data/gsm8k on node-b at eight"),
    ],
)
def test_other_words_for_it_do_not_make_it_another(tmp_path: Path, first: str, second: str) -> None:
    assert not _judge(tmp_path, Failure(FailureKind.DATA, 0, first, subject="gsm8k"))
    assert _judge(tmp_path, Failure(FailureKind.DATA, 1, second, subject="gsm8k"))


def test_without_a_memory_it_is_final_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert _judge(file / "checkpoints")
    assert not _judge(file / "checkpoints", Failure(FailureKind.LOST, 0, "gone"))


def test_a_line_that_broke_off_hides_neither_what_was_before_nor_what_comes(tmp_path: Path) -> None:
    _judge(tmp_path, Failure(FailureKind.SETUP, 0, "", subject="first"))
    [record] = (tmp_path / ".cloudrl" / "attempts").iterdir()
    with record.open("a") as file:
        file.write('{"at": 1, "signa')
    assert not _judge(tmp_path, Failure(FailureKind.SETUP, 0, "", subject="second"))
    assert _judge(tmp_path, Failure(FailureKind.SETUP, 0, "", subject="second"))
    assert _judge(tmp_path, Failure(FailureKind.SETUP, 0, "", subject="first"))


@pytest.mark.parametrize("line", ["[]", "null", "7", '"text"', "{}", "\0\0\0", "\udcff\udcfe"])
def test_lines_of_something_else_are_passed_over(tmp_path: Path, line: str) -> None:
    _judge(tmp_path)
    [record] = (tmp_path / ".cloudrl" / "attempts").iterdir()
    record.write_text(f"{line}\n{record.read_text()}", errors="surrogateescape")
    assert _judge(tmp_path)


def test_a_run_id_stays_inside_the_folder(tmp_path: Path) -> None:
    _judge(tmp_path / "volume", run_id="../../../outside/é")
    [record] = (tmp_path / "volume" / ".cloudrl" / "attempts").iterdir()
    assert [each.name for each in tmp_path.iterdir()] == ["volume"]
    assert json.loads(record.read_text())["signature"] == FAILURE.signature


def test_other_machines_remember(tmp_path: Path) -> None:
    """The next attempt begins on a spare host, and a host of the last one is a worker now."""
    assert not _judge(tmp_path / "head")
    record(FAILURE, folder=tmp_path / "worker", run_id="run")
    assert list(known_failures(tmp_path / "worker", "run")) == [FAILURE.signature]
    assert _judge(tmp_path / "spare", FAILURE, "run", {}, known_failures(tmp_path / "worker", "run"))
    assert known_failures(tmp_path / "nowhere", "run") == {}


def test_the_last_failure_of_all_machines_counts(tmp_path: Path) -> None:
    signature, now = TIMED_OUT.signature, float(next(CLOCK))
    assert _judge(tmp_path / "a", TIMED_OUT, "run", {"model|older": now - 2, signature: now - 1})
    assert not _judge(tmp_path / "b", TIMED_OUT, "run", {signature: now - 2}, {"lost|newer": now - 1})


def test_what_was_before_the_run_was_ready_counts_nowhere(tmp_path: Path) -> None:
    """A machine that missed the start that went well remembers the failures before it."""
    for node in ("a", "b"):
        _judge(tmp_path / node)
    clear(tmp_path / "b", "run", now=float(next(CLOCK)))
    assert not _judge(tmp_path / "a", FAILURE, "run", known_failures(tmp_path / "b", "run"))
    clear(tmp_path / "c", "run")
    assert not (tmp_path / "c").exists()  # nothing is written down where nothing was


def test_the_same_failure_seen_by_another_node_is_no_earlier_one(tmp_path: Path) -> None:
    """All nodes share the folder, and one of them was quicker."""
    began = float(next(CLOCK))
    record(FAILURE, folder=tmp_path, run_id="run", now=float(next(CLOCK)))
    assert not classify_failure(
        FAILURE, folder=tmp_path, run_id="run", since=began, now=float(next(CLOCK))
    ).final
