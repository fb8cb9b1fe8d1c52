"""The one job of a cluster that was started for it: the supervisor carries it, and the cluster ends as it does."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional

from cloudrl.errors import InputError
from cloudrl.node.shutdown import Shutdown
from cloudrl.node.supervisor import Supervisor
from cloudrl.protocol.durable_jobs import DurableJob, Result

_RECORDED_WITHIN_S = 60.0
"""The end of the job is on the volumes by then, or the cluster ends without that."""
_CHUNK_BYTES = 1 << 20


def read_job(path: Path) -> DurableJob:
    """The job of a file: the body of `POST /api/jobs/` with its command as words, `argv`, and the plan in `durable`.

    Raises:
        InputError: it cannot be read, or has another format.
    """
    try:
        job = json.loads(path.read_text())
        request = {"entrypoint": shlex.join(job["argv"]), **{name: job[name] for name in ("runtime_env", "metadata")}}
        submission_id = str(job["submission_id"])
        request["submission_id"] = submission_id
        return DurableJob(submission_id, str(job["metadata"]["job_name"]), "", request, 0.0, **job["durable"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the job {path} cannot be read: {error}") from error


class ClusterJob:
    """The job, looked at from tick to tick.

    Args:
        job_id: its id.
        supervisor: has taken it, or is about to.
        details: what Ray knows of a submission.
        write: where its log goes, byte for byte.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        job_id: str,
        supervisor: Supervisor,
        details: Callable[[str], Optional[Mapping[str, Any]]],
        write: Optional[Callable[[bytes], object]] = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._id, self._supervisor, self._details = job_id, supervisor, details
        self._write, self._clock = write or _to_stdout, clock
        self._offsets: Dict[str, int] = {}
        self._ended_at: Optional[float] = None

    def follow(self, logs: Optional[Path]) -> None:
        """Print what is new in the logs of its attempts, one after the other; they are in `logs`.

        Args:
            logs: Ray's; None while it has none.

        Raises:
            Shutdown: it has ended for good; the exit code is that of its last command.
        """
        if self._supervisor.refusal:
            raise Shutdown(f"job {self._id} cannot be started: {self._supervisor.refusal}", 1)
        job = next((job for job in self._supervisor.jobs if job.job_id == self._id), None)
        if job is None:
            return
        for attempt in job.attempts if logs is not None else ():
            self._print_log(attempt.submission_id, Path(str(logs), f"job-driver-{attempt.submission_id}.log"))
        if job.outcome is None:
            return
        if self._ended_at is None:
            self._ended_at = self._clock()
        if self._supervisor.is_settled or self._clock() - self._ended_at > _RECORDED_WITHIN_S:
            code = 0 if job.outcome.result is Result.SUCCEEDED else self._exit_code(job)
            raise Shutdown(f"the cluster ends with its job {self._id}: exit code {code}", code)

    def _exit_code(self, job: DurableJob) -> int:
        """As a shell gives it: 128 and more for a signal (Ray 2.60, job_supervisor.py: driver_exit_code)."""
        code = (self._details(job.submission_id) or {}).get("driver_exit_code")
        if not isinstance(code, int):
            return 1
        return 128 - code if -128 < code < 0 else code if 0 < code < 256 else 1

    def _print_log(self, submission_id: str, log: Path) -> None:
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(self._offsets.get(submission_id, 0))
            while chunk := file.read(_CHUNK_BYTES):
                self._write(chunk)
                self._offsets[submission_id] = self._offsets.get(submission_id, 0) + len(chunk)


def _to_stdout(data: bytes) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
