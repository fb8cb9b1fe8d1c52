"""A job of a cluster that is gone, from the archive of its logs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kept_logs import keep as keep_piece
from recordings import FOLDER, keep, load
from typed_command import Run

from cloudrl.errors import InputError
from cloudrl.logs.archive import Archive, FolderArchive
from cloudrl.logs.causes import Cause
from cloudrl.logs.causes.finder import find_cause
from cloudrl.logs.causes.kept import kept_evidence, newest_kept_job
from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.wire import to_json
from cloudrl.sdk.failures import why


@pytest.mark.parametrize("name", [path.stem for path in FOLDER.glob("*.json")])
def test_the_same_cause_as_on_the_living_cluster(name: str, tmp_path: Path):
    held = load(name)
    job = keep(tmp_path, held)
    found, living = why(folder=tmp_path), find_cause(held)
    assert (found.submission_id, found.status) == (job, "FAILED")
    assert said(found.cause) == said(living)
    assert found.cause.rank == living.rank


def said(cause: Cause | None) -> tuple[str, str, str | None]:
    return cause.error, cause.process, cause.signature


def test_logs_alone(tmp_path: Path):
    job = keep(tmp_path, load("unknown_key"), with_state=False)
    found = why(job, folder=tmp_path)
    assert (found.status, found.cause.signature) == (None, "unknown-key")


def test_the_time_zone_of_each_node_is_kept(tmp_path: Path):
    keep_piece(tmp_path, "logs/job-driver-x.log", b"one\n")
    keep_piece(tmp_path, "logs/worker-a-01-1.err", b"two\n", rank=1)
    keep_piece(tmp_path, "agent/node.json", b'{"utc_offset_s": 28800}', rank=1)
    logs = kept_evidence(Archive(FolderArchive(tmp_path)), "x").logs
    assert {log.rank: log.utc_offset_s for log in logs} == {0: 0.0, 1: 28800.0}


LOST = "rank 1 (host-b, 10.0.0.2) was lost in phase ready: no heartbeat for 3 s"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome(Phase.FAILED, LOST, final=False, at=1000.0), LOST),
        (Outcome(Phase.ENDED, "ended by SIGTERM", final=False, at=1000.0), None),
        (None, None),
    ],
)
def test_a_job_that_was_running_when_its_cluster_ended(tmp_path: Path, outcome: Outcome | None, error: str | None):
    state = RayState(saved_at=0.0, job={"status": "RUNNING", "submission_id": "x"})
    keep_piece(tmp_path, "logs/job-driver-x.log", b"step:1\n")
    keep_piece(tmp_path, "state/x.json", json.dumps(to_json(state)).encode())
    keep_piece(tmp_path, "agent/agent.log", f"[10:00 rank 0] ready\n{outcome.to_line() if outcome else ''}\n".encode())
    found = why("x", folder=tmp_path)
    assert (found.status, found.cause and found.cause.error) == ("RUNNING", error)


def test_a_job_that_was_submitted_again_has_its_last_log(tmp_path: Path):
    keep_piece(tmp_path, "logs/job-driver-x.log", b"one\n", at=1000)
    keep_piece(tmp_path, "logs/job-driver-x.log~2", b"Traceback (most recent call last):\nKeyError: 2\n", at=1010)
    [log] = kept_evidence(Archive(FolderArchive(tmp_path)), "x").logs
    assert log.lines[-1] == "KeyError: 2"
    assert why("x", folder=tmp_path).cause.error == "KeyError: 2"


def test_a_cluster_that_shares_a_folder_has_its_own_newest_job(tmp_path: Path):
    for at, (run, name) in enumerate((("r1", "mine"), ("r2", "other"), ("r3", None))):
        keep_piece(tmp_path, f"logs/job-driver-{run}.log", b"x\n", run=run, at=1000 + at)
        facts = b"{}" if name is None else b'{"cluster": "%s"}' % name.encode()
        keep_piece(tmp_path, "agent/node.json", facts, run=run, at=1000 + at)
    archive = Archive(FolderArchive(tmp_path))
    assert newest_kept_job(archive) == "r3"
    assert newest_kept_job(archive, "mine", "r0") == "r1"
    assert newest_kept_job(archive, "older", "r3") == "r3", "its nodes did not say its name yet"
    with pytest.raises(InputError, match="no log of a job of cluster 'gone' is kept"):
        newest_kept_job(archive, "gone")


def test_rows_that_are_none(tmp_path: Path):
    held = load("raises")
    keep(tmp_path, replace(held, state=replace(held.state, tasks=(7, None, *held.state.tasks), actors=("x",))))
    assert why(folder=tmp_path).cause.error.startswith("ValueError: rank 1")


def test_nothing_of_the_job(tmp_path: Path):
    archive = Archive(FolderArchive(tmp_path))
    with pytest.raises(InputError, match="no log of a job is kept"):
        newest_kept_job(archive)
    with pytest.raises(InputError, match="nothing of job 'x' is kept"):
        kept_evidence(archive, "x")


def test_running_is_not_said_of_a_cluster_that_is_gone(tmp_path: Path, run: Run):
    state = RayState(saved_at=0.0, job={"status": "RUNNING", "submission_id": "x"})
    keep_piece(tmp_path, "logs/job-driver-x.log", b"step:1\n")
    keep_piece(tmp_path, "state/x.json", json.dumps(to_json(state)).encode())
    done = run("why", "x", "--from", str(tmp_path)).ended(0)
    assert "x was RUNNING when its logs were last kept; its cluster is gone" in done.err
    assert json.loads(run("why", "x", "--from", str(tmp_path), "--json").out)["cluster_is_gone"] is True
