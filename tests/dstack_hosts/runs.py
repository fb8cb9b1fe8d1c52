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

from patience import SLOWER

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
user: {user}
resources:
  cpu: x86:1..
  memory: 1GB..
  disk: 1GB..
"""
_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0  # the server needs 30 ms of CPU time for an answer


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

        def found() -> str:
            status = self.status(name)
            if status in ENDED and status not in statuses:
                raise TimeoutError(what())
            return status if status in statuses else ""

        def what() -> str:
            return f"run {name} is {self.status(name)}, not {' or '.join(statuses)}:\n{self._story(name)}"

        return str(until(found, timeout_s, what))

    def wait_for_line(self, name: str, text: str, *, rank: int = 0, timeout_s: float = 60.0) -> str:
        """Wait until the job's log has `text`; the log. Raises TimeoutError with the log."""

        def found() -> str:
            run = self._get(name)
            log = self._log(name, run["jobs"][rank]["job_submissions"][-1]["id"])
            if text not in log and run["status"] in ENDED:
                raise TimeoutError(f"run {name} has ended without {text!r} in its log:\n{self._story(name)}")
            return log if text in log else ""

        return str(until(found, timeout_s, lambda: f"no {text!r} in the log of {name}:\n{self._story(name)}"))

    def log(self, name: str, rank: int = 0) -> str:
        """What the newest attempt of a rank has printed, as the server stores it."""
        return self._log(name, self.submissions(name)[rank].id)

    def logs(self, name: str, rank: int = 0) -> str:
        """What all attempts of a rank have printed, one after the other."""
        submissions = self._get(name)["jobs"][rank]["job_submissions"]
        return "".join(self._log(name, submission["id"]) for submission in submissions)

    def stop(self, name: str, timeout_s: float = 70.0) -> str:
        """Stop a run as `dstack stop` does and wait for its end; its last status.

        It takes half a minute where the server cannot reach a runner (JOB_TERMINATION_DEADLINE in 0.22.5). A stop
        that comes while the server changes the run's status may be overwritten by that change and be lost (0.22.5,
        services/runs/__init__.py: stop_runs; pipeline_tasks/runs: _apply_active_result): then it is asked again.
        """

        def ended() -> str:
            status = self.status(name)
            if status not in (*ENDED, "terminating"):
                self._lab.server.call(f"{_PROJECT}/runs/stop", {"runs_names": [name], "abort": False})
            return status if status in ENDED else ""

        return str(until(ended, timeout_s, lambda: f"run {name} has not ended after its stop:\n{self._story(name)}"))

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
    """Look until there is something, less often the longer it takes. Raises TimeoutError with the words of `what`.

    `timeout_s` is that of a quiet machine.
    """
    start = time.monotonic()
    while not (found := look()):
        waited_s = time.monotonic() - start
        if waited_s > SLOWER * timeout_s:
            raise TimeoutError(what())
        time.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S + waited_s / 10))
    return found


def write_task(
    folder: Path,
    name: str,
    commands: Sequence[str],
    *,
    nodes: int = 1,
    image: str = "any",
    user: str = "root",
    more: str = "",
) -> Path:
    """Write a task's file into `folder`; `more` is YAML that is added as it is."""
    block = "".join("  - |-\n" + "".join(f"    {line}\n" for line in command.splitlines()) for command in commands)
    path = folder / f"{name}.dstack.yml"
    path.write_text(f"{_HEAD.format(name=name, nodes=nodes, image=image, user=user)}commands:\n{block}{more}")
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
