"""Jobs, for tests: submitted and looked at with Slurm's own commands on the login node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from dstack_hosts.runs import until

from .nodes import Node

ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")


@dataclass(frozen=True)
class Job:
    """What `scontrol show job` says.

    Attributes:
        id: its number.
        state: such as PENDING, RUNNING, COMPLETING, or one of `ENDED`.
        reason: why it waits, or has ended.
        exit_code: of the batch script.
        restarts: how often it was requeued.
        nodes: names of its nodes, none while it waits.
        output: the file of its standard output, as nodes see it.
    """

    id: int
    state: str
    reason: str
    exit_code: int
    restarts: int
    nodes: tuple[str, ...]
    output: str


class Jobs:
    """The jobs of one cluster. Made by `SlurmNodes`."""

    def __init__(self, login: Node, nodes: Sequence[Node]) -> None:
        self._login, self._nodes = login, nodes

    def sbatch(self, script: str, *options: str, user: str = "alice", cwd: str | None = None) -> int:
        """Submit a script; the number of the job. Raises AssertionError with what sbatch says when it fails.

        Args:
            script: its text; a line `#!/bin/bash` is put before it where it has none.
            options: of sbatch.
            user: whose job it is.
            cwd: where it is submitted, and where its output is unless the script or the options say otherwise; None
                for the user's home.
        """
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        done = self._login.run("sbatch", "--parsable", *options, user=user, cwd=cwd, text=text)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split(";")[0])

    def show(self, job: int) -> Job:
        """Look at a job. Raises AssertionError for one that Slurm does not know, or no more."""
        done = self._login.run("scontrol", "--oneliner", "show", "job", str(job), timeout_s=20)
        assert done.returncode == 0, done.stderr
        fields = dict(re.findall(r"(?:^| )([A-Za-z/:]+)=(\S*)", done.stdout))
        nodes = fields.get("NodeList", "")
        return Job(
            id=job,
            state=fields["JobState"],
            reason=fields["Reason"],
            exit_code=int(fields["ExitCode"].split(":")[0]),
            restarts=int(fields["Restarts"]),
            nodes=tuple(self._names(nodes)) if nodes not in ("", "(null)") else (),
            output=fields.get("StdOut", ""),
        )

    def wait(self, job: int, *states: str, timeout_s: float = 60.0) -> Job:
        """Wait for one of the states, or for any end when none is given; the job.

        Raises:
            TimeoutError: it is not so in time, with its last state and its output.
        """
        wanted = states or ENDED

        def reached() -> Job | None:
            found = self.show(job)
            return found if found.state in wanted else None

        told = lambda: f"{self.show(job)}, not {wanted}, after {timeout_s:.0f} s:\n{self.output(job)}"  # noqa: E731
        return cast("Job", until(reached, timeout_s, told))

    def wait_for(self, job: int, text: str, timeout_s: float = 60.0) -> str:
        """Wait for a text in a job's output; all of the output. Raises TimeoutError when it does not come."""
        told = lambda: f"no {text!r} in {self.show(job)}:\n{self.output(job)}"  # noqa: E731
        until(lambda: text in self.output(job), timeout_s, told)
        return self.output(job)

    def output(self, job: int) -> str:
        """What a job's batch script has printed so far."""
        path = self._login.path(self.show(job).output)
        return path.read_text(errors="replace") if path.is_file() else ""

    def release_now(self, job: int) -> None:
        """Let a requeued job start where Slurm would wait for two minutes; a node refuses it while it runs there."""
        until(lambda: not self._daemons(job), 30, lambda: str(self._daemons(job)))
        done = self._login.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        assert done.returncode == 0, done.stderr

    def limit_soon(self, job: int) -> None:
        """Set the time limit of a running job so that one to two minutes are left: Slurm counts in whole minutes."""
        shown = self._login.run("scontrol", "--oneliner", "show", "job", str(job)).stdout
        hours, minutes = map(int, re.findall(r" RunTime=(\d+):(\d+):", shown)[0])
        done = self._login.run("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * hours + minutes + 2}")
        assert done.returncode == 0, done.stderr

    def cancel_all(self, timeout_s: float = 30.0) -> None:
        """Cancel whatever there is and wait until all have ended. Raises TimeoutError when they do not."""
        for state in ("PENDING", "RUNNING"):  # what waits would start
            self._login.run("scancel", f"--state={state}")

        def listed() -> str:
            return self._login.run("squeue", "-h").stdout

        until(lambda: not listed(), timeout_s, listed)

    def _daemons(self, job: int) -> list[tuple[str, ...]]:
        """Those of Slurm that run a step of a job."""
        running = [words for node in self._nodes if node.is_up for words in node.processes()]
        return [words for words in running if words[0].startswith(f"slurmstepd: [{job}.")]

    def _names(self, nodes: str) -> list[str]:
        return self._login.run("scontrol", "show", "hostnames", nodes).stdout.split()
