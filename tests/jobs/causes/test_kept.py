"""A job of a cluster that is gone, from the archive of its logs."""

import gzip
import json
from pathlib import Path

import pytest
from recordings import FOLDER, load

from cloudrl.errors import InputError
from cloudrl.jobs.archive import Archive, FolderArchive
from cloudrl.jobs.causes import Cause, Evidence, find_cause
from cloudrl.jobs.causes.kept import kept_evidence, newest_kept_job
from cloudrl.protocol.wire import to_json
from cloudrl.saves.archive import FOLDER as ARCHIVE
from cloudrl.saves.archive import Piece, state_file
from cloudrl.sdk.failures import why


def keep(folder: Path, held: Evidence, *, with_state: bool = True) -> str:
    """Write a recording as the agents of its nodes would; returns the submission id."""
    job = str(held.state.job["submission_id"])
    texts = {(log.rank or 0, f"logs/{log.name}"): "\n".join(log.lines) for log in held.logs}
    if with_state:
        texts[0, state_file(job)] = json.dumps(to_json(held.state))
    for (rank, path), text in texts.items():
        file = folder / ARCHIVE / Piece("run", rank, "session_1", path, 0).where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode() + b"\n"))
    return job


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


def test_nothing_of_the_job(tmp_path: Path):
    archive = Archive(FolderArchive(tmp_path))
    with pytest.raises(InputError, match="no job's log is kept"):
        newest_kept_job(archive)
    with pytest.raises(InputError, match="nothing of job 'x' is kept"):
        kept_evidence(archive, "x")
