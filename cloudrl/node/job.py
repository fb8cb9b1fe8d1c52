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

_POLL_S = 1.0
_CHUNK_BYTES = 1 << 20


def read_job(path: Path) -> Dict[str, Any]:
    """The body of `POST /api/jobs/`; the file has the command as words, `argv`.

    Raises:
        InputError: it cannot be read, or is none.
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
    """

    def __init__(
        self, request: Dict[str, Any], dashboard: Dashboard, write: Optional[Callable[[bytes], object]] = None
    ) -> None:
        self._request, self._dashboard = request, dashboard
        self._write = write or _to_stdout
        self._id = request["submission_id"]
        self._is_submitted, self._asked_at, self._offset = False, 0.0, 0

    def follow(self, logs: Optional[Path]) -> None:
        """Submit it at the first call; print what is new in its log, which lies in `logs`.

        Raises:
            Shutdown: it has ended; the exit code is that of its command.
        """
        if not self._is_submitted:
            refused = self._dashboard.submit(self._request)
            self._is_submitted = True
            if refused:
                raise Shutdown(f"Ray refused the job: {refused}", 1)
        job = None
        if time.monotonic() - self._asked_at > _POLL_S:
            self._asked_at = time.monotonic()
            job = self._dashboard.job(self._id)
        if logs is not None:
            self._print_log(logs / f"job-driver-{self._id}.log")
        if job is not None and job.get("status") in ("SUCCEEDED", "FAILED", "STOPPED"):
            raise Shutdown(f"job {self._id}: {job['status']}", _exit_code(job))

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
