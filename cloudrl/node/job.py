"""The one job of a cluster that was started for it: rank 0 submits it, prints its log, and ends as it does."""

import contextlib
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from cloudrl.errors import InputError
from cloudrl.node.ray import Dashboard
from cloudrl.node.shutdown import Shutdown
from cloudrl.node.tracker import point_at_whole_step

_POLL_S = 1.0
_SUBMIT_S = 120.0
"""Without an answer to the submission; meanwhile it is sent again, as Ray takes an id only once."""
_LOSS_SHOWS_S = 2.0
"""From the end of a job that failed with its node until the agents have seen that something is lost."""
_CHUNK_BYTES = 1 << 20


def read_job(path: Path) -> Dict[str, Any]:
    """The body of `POST /api/jobs/`; the file has the command as words, `argv`.

    Raises:
        InputError: it cannot be read, or has another format.
    """
    try:
        job = json.loads(path.read_text())
        return {"entrypoint": shlex.join(job.pop("argv")), **job, "submission_id": str(job["submission_id"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the job {path} cannot be read: {error}") from error


class ClusterJob:
    """The job, asked for from tick to tick.

    Args:
        request: as `read_job` gives it.
        dashboard: of rank 0.
        write: where its log goes, byte for byte.
        say: Prints a line if the job resumes from another step than a damaged one.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        request: Dict[str, Any],
        dashboard: Dashboard,
        write: Optional[Callable[[bytes], object]] = None,
        *,
        say: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._dashboard = request, dashboard
        self._write, self._say, self._clock = write or _to_stdout, say, clock
        self._id = request["submission_id"]
        self._is_submitted, self._offset = False, 0
        self._sent_at: Optional[float] = None
        self._asked_at = float("-inf")
        self._end: Optional[Shutdown] = None
        self._ended_at = 0.0

    def follow(self, logs: Optional[Path], silence_s: float = 0.0) -> None:
        """Submit it, from the first call on until Ray has it; print what is new in its log, which is in `logs`.

        Where a job has failed because a node is lost, the loss is to be seen first, and ends the cluster otherwise. So
        after a failure everybody has to be heard of once more, or be found lost, before it counts.

        Args:
            logs: Ray's; None while it has none.
            silence_s: for how long some node has not been heard of.

        Raises:
            Shutdown: it has ended; the exit code is that of its command.
        """
        if not self._is_submitted:
            self._is_submitted = self._submit()
        if self._end is None and self._is_submitted and self._clock() - self._asked_at >= _POLL_S:
            self._asked_at = self._clock()
            job = self._dashboard.job(self._id)
            if job is not None and job.get("status") in ("SUCCEEDED", "FAILED", "STOPPED"):
                self._end, self._ended_at = Shutdown(f"job {self._id}: {job['status']}", _exit_code(job)), self._clock()
        if logs is not None:
            self._print_log(logs / f"job-driver-{self._id}.log")
        if self._end is None:
            return
        if self._end.exit_code == 0 or self._clock() - silence_s >= self._ended_at + _LOSS_SHOWS_S:
            raise self._end

    def _submit(self) -> bool:
        """Whether Ray has it. An answer may be lost, and then Ray is asked whether it knows the job.

        After that a refusal may mean that it does: it counts only where nothing was lost.
        """
        if self._sent_at is None:
            point_at_whole_step(self._request, self._say)
        refused = self._dashboard.submit(self._request)
        if refused == "" or self._dashboard.job(self._id) is not None:
            return True
        if refused is not None and self._sent_at is None:
            raise Shutdown(f"Ray refused the job: {refused}", 1)
        self._sent_at = self._clock() if self._sent_at is None else self._sent_at
        if self._clock() - self._sent_at > _SUBMIT_S:
            reason = refused or "its dashboard does not answer"
            raise Shutdown(f"Ray has not taken the job for {_SUBMIT_S:.0f} s: {reason}", 1)
        return False

    def _print_log(self, log: Path) -> None:
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(self._offset)
            while chunk := file.read(_CHUNK_BYTES):
                self._write(chunk)
                self._offset += len(chunk)


def _exit_code(job: Dict[str, Any]) -> int:
    """As a shell gives it: 128 and more for a signal (Ray 2.60, job_supervisor.py: driver_exit_code)."""
    code = job.get("driver_exit_code")
    if job["status"] == "SUCCEEDED":
        return 0
    if not isinstance(code, int):
        return 1
    return 128 - code if -128 < code < 0 else code if 0 < code < 256 else 1


def _to_stdout(data: bytes) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
