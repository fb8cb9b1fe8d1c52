"""Runs of a lab's server, for tests: submitted with the real CLI, looked at through the server's API."""

from __future__ import annotations

import base64
import subprocess
import time
import urllib.error
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lab import Lab

ENDED = ("done", "failed", "terminated")
_PROJECT = "/api/project/main"
# `user` and an architecture: without them the server asks an image registry. The hosts declare 8 CPUs, 32 GB, 500 GB.
_HEAD = """\
type: task
name: {name}
nodes: {nodes}
image: {image}
user: root
resources:
  cpu: x86:1..
  memory: 1GB..
  disk: 1GB..
"""
_PAUSE_S = 0.3  # the server needs 30 ms of CPU time for an answer


@dataclass(frozen=True)
class Submission:
    """One attempt at one rank's job: its id, its state, and what it ended with."""

    rank: int
    id: str
    number: int
    status: str
    reason: str | None
    message: str | None
    exit_status: int | None
    address: str | None


class Runs:
    """The runs of one lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def apply(self, path: Path, *, check: bool = True, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """`dstack apply -y -d -f`. Raises AssertionError with its words when it fails."""
        words = ("dstack", "apply", "-y", "-d", "-f", path.name)
        done = self._lab.run(*words, cwd=path.parent, timeout_s=timeout_s)
        assert not check or done.returncode == 0, done.stdout
        return done

    def status(self, name: str) -> str:
        """The run's status; "" for a name that the server does not know."""
        try:
            return str(self._get(name)["status"])
        except urllib.error.HTTPError as error:
            if error.code in (400, 404):
                return ""
            raise

    def active(self) -> list[str]:
        """Names of the runs that are not over."""
        runs = self._lab.server.call("/api/runs/list", {"project_name": "main", "only_active": True})
        return [str(run["run_spec"]["run_name"]) for run in runs]

    def submissions(self, name: str) -> list[Submission]:
        """The newest attempt of each rank."""
        return [_submission(job["job_submissions"][-1], job) for job in self._get(name)["jobs"]]

    def attempts(self, name: str) -> int:
        """How often the run was submitted."""
        return max(submission.number for submission in self.submissions(name)) + 1

    def wait(self, name: str, *statuses: str, timeout_s: float = 60.0) -> str:
        """Wait for one of some statuses. Raises TimeoutError, also at another last one."""
        deadline = time.monotonic() + timeout_s
        while (status := self.status(name)) not in statuses:
            if time.monotonic() > deadline or status in ENDED:
                raise TimeoutError(f"run {name} is {status}, not {' or '.join(statuses)}:\n{self._story(name)}")
            time.sleep(_PAUSE_S)
        return status

    def wait_for_line(self, name: str, text: str, *, rank: int = 0, timeout_s: float = 60.0) -> str:
        """Wait until the job's log has `text`; the log. Raises TimeoutError with the log."""

        def found() -> str:
            log = self.log(name, rank)
            if text not in log and self.status(name) in ENDED:
                raise TimeoutError(f"run {name} has ended without {text!r} in its log:\n{self._story(name)}")
            return log if text in log else ""

        return until(found, timeout_s, lambda: f"no {text!r} in the log of {name}:\n{self._story(name)}")

    def log(self, name: str, rank: int = 0) -> str:
        """What the newest attempt of a rank has printed, as the server stores it."""
        return self._log(name, self.submissions(name)[rank].id)

    def stop(self, name: str, timeout_s: float = 70.0) -> str:
        """Stop a run as `dstack stop` does and wait for its end; its last status.

        It takes half a minute where the server cannot reach a runner (JOB_TERMINATION_DEADLINE in 0.22.5). A stop
        that comes while the server changes the run's status may be overwritten by that change and be lost (0.22.5,
        services/runs/__init__.py: stop_runs; pipeline_tasks/runs: _apply_active_result): then it is asked again.
        """
        deadline = time.monotonic() + timeout_s
        while (status := self.status(name)) not in ENDED:
            if status != "terminating":
                self._lab.server.call(f"{_PROJECT}/runs/stop", {"runs_names": [name], "abort": False})
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {name} is {status} after its stop:\n{self._story(name)}")
            time.sleep(_PAUSE_S)
        return status

    def _get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._lab.server.call(f"{_PROJECT}/runs/get", {"run_name": name})
        return found

    def _log(self, name: str, submission: str) -> str:
        parts: list[bytes] = []
        request: dict[str, Any] = {"run_name": name, "job_submission_id": submission, "limit": 1000}
        while True:
            page = self._lab.server.call(f"{_PROJECT}/logs/poll", request)
            parts += [base64.b64decode(event["message"]) for event in page["logs"]]
            if not page.get("next_token"):
                return b"".join(parts).decode(errors="replace")
            request["next_token"] = page["next_token"]

    def _story(self, name: str) -> str:
        if not self.status(name):
            return "no such run"
        lines = []
        for submission in self.submissions(name):
            lines += [str(submission), self._log(name, submission.id)[-800:]]
        return "\n".join(lines)


def until(look: Callable[[], Any], timeout_s: float, what: Callable[[], str]) -> Any:
    """Look until there is something. Raises TimeoutError with the words of `what`."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(what())
        time.sleep(_PAUSE_S)
    return found


def write_task(
    folder: Path, name: str, commands: Sequence[str], *, nodes: int = 1, image: str = "any", more: str = ""
) -> Path:
    """Write a task's file into `folder`; `more` is YAML that is added as it is."""
    block = "".join("  - |-\n" + "".join(f"    {line}\n" for line in command.splitlines()) for command in commands)
    path = folder / f"{name}.dstack.yml"
    path.write_text(f"{_HEAD.format(name=name, nodes=nodes, image=image)}commands:\n{block}{more}")
    return path


def _submission(found: dict[str, Any], job: dict[str, Any]) -> Submission:
    where = found.get("job_provisioning_data") or {}
    return Submission(
        rank=job["job_spec"]["job_num"],
        id=found["id"],
        number=found["submission_num"],
        status=found["status"],
        reason=found.get("termination_reason"),
        message=found.get("termination_reason_message"),
        exit_status=found.get("exit_status"),
        address=where.get("hostname"),
    )
