"""All nodes look at the mirror of their own job: a mistake ends the start, an outage does not."""

import errno
import http.client
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from child_processes import until

from cloudrl.errors import ConnectionFailed
from cloudrl.node.job_journal import JobJournal
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.node.mirror_folder import FolderStore
from cloudrl.node.mirror_look import MirrorLook
from cloudrl.node.mirror_outages import is_outage
from cloudrl.node.node_state import NodeState
from cloudrl.node.s3_calls import S3Calls, S3Error, place_of
from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.protocol.failures import FailureKind
from cloudrl.protocol.mirrors import MirrorCheck, parse_mirror
from cloudrl.protocol.report import NodeReport

OUTAGES = [
    S3Error(503, "SlowDown", "PUT probe"), S3Error(500, "InternalError", "PUT probe"),
    OSError(errno.EIO, "Input/output error"), OSError(errno.ESTALE, "Stale file handle"), TimeoutError("timed out"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), http.client.RemoteDisconnected("closed"),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), ssl.SSLEOFError(8, "EOF occurred"),
    OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted in ReadObject)"),
]  # fmt: skip
MISTAKES = [
    S3Error(403, "AccessDenied", "PUT probe"), S3Error(404, "NoSuchBucket", "PUT probe"),
    FileNotFoundError(errno.ENOENT, "No such file or directory"), PermissionError(errno.EACCES, "Permission denied"),
    NotADirectoryError(errno.ENOTDIR, "Not a directory"), OSError(errno.EDQUOT, "Disk quota exceeded"),
    socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    ssl.SSLCertVerificationError(1, "certificate verify failed"),
    OSError("google::cloud::Status(PERMISSION_DENIED: Permanent error in InsertObject: 403)"),
]  # fmt: skip


class Rank0:
    """Rank 0 of some nodes, with the look at a folder."""

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self.errors, self.said, self.slept = list[Exception](), list[str](), list[float]()
        self.mirror = folder / "mirror"
        self.state = NodeState(NodeReport(0, "10.0.0.1"))
        self.answer: Callable[[], MirrorCheck] = MirrorCheck
        self.job = DurableJob("night-1", "night", "run", {"entrypoint": "true"}, 0.0, mirror=str(self.mirror))
        copier = MirrorCopier(folder, {}, store=self._store)
        self.look = MirrorLook(
            self.job, JobJournal(folder), copier, lambda _: _Agent(self.answer), self.state,  # type: ignore[arg-type]
            nodes, say=self.said.append, sleep=self._sleep,
        )  # fmt: skip
        self.while_asleep: Callable[[], object] = lambda: None

    def _store(self, address: str, *_: object) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return FolderStore(Path(address))

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.while_asleep()

    def join(self) -> None:
        self.state.record_heartbeat(NodeReport(1, "10.0.0.2"))

    def finish(self) -> None:
        self.look.start()
        until(lambda: self.said or self.state.failure, "it has looked")  # the folder is on this machine's disk


class _Agent:
    def __init__(self, answer: Callable[[], MirrorCheck]) -> None:
        self._answer = answer

    def request(self, *_: object, **__: object) -> None:
        pass

    def call(self, *_: object) -> MirrorCheck:
        return self._answer()


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
def test_an_outage_ends_no_start(tmp_path: Path, error: Exception) -> None:
    rank_0 = Rank0(tmp_path)
    rank_0.errors = [error, error]
    rank_0.finish()
    until((rank_0.mirror / ".cloudrl" / "probe").exists, "it looks again, so that the mirror can be used")

    assert rank_0.look.is_over
    assert rank_0.state.failure is None
    assert rank_0.slept == [30.0, 30.0]
    assert rank_0.said[0].startswith(f"warning: the mirror {rank_0.mirror} does not answer: ")


@pytest.mark.parametrize("error", MISTAKES, ids=repr)
def test_a_mistake_ends_the_start(tmp_path: Path, error: Exception) -> None:
    rank_0 = Rank0(tmp_path)
    rank_0.errors = [error]
    rank_0.finish()

    failure = rank_0.state.failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.transient) == (FailureKind.PREFLIGHT, 0, False)
    assert str(error) in failure.reason
    assert not rank_0.look.is_over


def test_a_mistake_behind_an_outage_is_a_warning(tmp_path: Path) -> None:
    rank_0 = Rank0(tmp_path, nodes=2)
    rank_0.errors = [OUTAGES[0], MISTAKES[0]]
    rank_0.finish()
    until(lambda: len(rank_0.said) == 2, "it has looked twice")

    assert "AccessDenied (403)" in rank_0.said[1]
    assert rank_0.state.failure is None


def test_a_volume_that_hangs_ends_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.node.mirror_look._ANSWER_S", 0.0)
    rank_0 = Rank0(tmp_path)
    rank_0.finish()

    assert "does not answer: it has not answered for 0 s" in rank_0.said[0]
    assert rank_0.state.failure is None


@pytest.mark.parametrize("error", [MirrorCheck("SlowDown (503)", may_pass=True), ConnectionFailed("rank 1 is silent")])
def test_another_rank_that_cannot_say_ends_no_start(
    tmp_path: Path, error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudrl.node.mirror_look._SILENT", None)
    monkeypatch.setattr("cloudrl.node.mirror_look.retry", lambda ask, _: ask())
    rank_0 = Rank0(tmp_path, nodes=2)

    def answer() -> MirrorCheck:
        if isinstance(error, Exception):
            raise error
        return error

    rank_0.answer = answer
    rank_0.join()
    rank_0.finish()

    assert rank_0.said[0].startswith(f"warning: whether rank 1 can use the mirror {rank_0.mirror} is not known: ")
    until(lambda: rank_0.look.is_over, "the start goes on")
    assert rank_0.state.failure is None


def test_ranks_that_join_late_are_waited_for_and_another_folder_ends_the_start(tmp_path: Path) -> None:
    rank_0 = Rank0(tmp_path, nodes=2)
    rank_0.answer = lambda: MirrorCheck(is_seen=False)
    rank_0.while_asleep = lambda: rank_0.join() if len(rank_0.slept) == 3 else None
    rank_0.finish()

    assert rank_0.slept == [0.2] * 3
    assert rank_0.state.failure is not None
    assert "node 1 has another folder there than node 0" in rank_0.state.failure.reason


def test_a_job_that_has_begun_is_not_held_up_by_its_mirror(tmp_path: Path) -> None:
    rank_0 = Rank0(tmp_path)
    rank_0.errors = [MISTAKES[0]]
    begun = Attempt(1, "night-1", "cluster-1", 0, 1000.0)
    JobJournal(tmp_path).write(replace(rank_0.job, attempts=(begun,)))
    rank_0.look.start()
    until(lambda: rank_0.look.is_over, "it does not look")
    assert rank_0.state.failure is None


@pytest.mark.parametrize(("error", "is_one"), [(OUTAGES[5], True), (OUTAGES[7], True), (MISTAKES[6], False)], ids=repr)
def test_calls_to_s3_tell_outages_from_mistakes(error: OSError, is_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(parse_mirror("s3://runs/x"), {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    calls = S3Calls(place, sleep=lambda _: None)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(calls, "send", fail)
    with pytest.raises(OSError, match="PUT probe: ") as raised:
        calls.call("PUT", "probe")
    assert is_outage(raised.value) == is_one
