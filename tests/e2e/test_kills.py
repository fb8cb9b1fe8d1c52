"""Each kind of process of a real cluster, killed with signal 9 while a job runs: what `cloudrl why` says of it.

The kernel kills one, too: a worker of a cluster whose processes may have little memory together.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from limited_memory import little_memory, until
from patience import SLOWER

from cloudrl.errors import CloudrlError
from cloudrl.jobs import find_job
from cloudrl.providers.local import processes
from cloudrl.sdk.running import attach
from cloudrl.transport import Connection

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME = "kills"
MEMORY_BYTES = 6 << 30
"""Enough for a cluster of two nodes without a model."""


@dataclass(frozen=True)
class Kill:
    """Which processes are killed, by their command lines and ranks, and what is to be said.

    Attributes:
        command: matches the command lines.
        rank: of their node; None for any.
    """

    command: str
    rank: int | None
    signature: str
    process: str
    said_rank: int | None


JOB = r"failing_ranks\.py waits"
KILLS = {
    "shell": Kill(rf"sh -c .*{JOB}", None, "process-killed", "driver", 0),
    "driver": Kill(rf"^\S*python\S* \S*{JOB}", None, "process-killed", "driver", 0),
    "worker": Kill(r"^ray::Rank\b", 1, "process-killed", "Rank", 1),
    "raylet": Kill(r"/raylet/raylet ", 1, "process-killed", "raylet", 1),
    "gcs": Kill(r"/gcs_server ", 0, "process-killed", "gcs_server", 0),
    "agent": Kill(r"cloudrl-node\S*\.pyz\S* run", 1, "node-lost", "agent", 1),
    "head-agent": Kill(r"cloudrl-node\S*\.pyz\S* run", 0, "node-lost", "agent", 0),
    "everything": Kill("", None, "node-lost", "agent", None),
}


class Lab:
    """The cluster, which is started again after it has ended."""

    def __init__(self, shell) -> None:
        self.shell = shell
        self.places: dict[int, int] = {}

    def submit(self, job: str, way: str) -> None:
        """A job of two ranks, once both are there; its driver stays below a shell."""
        connection = self._connection()
        script = Path(__file__).with_name("failing_ranks.py")
        command = f"{shlex.join([sys.executable, str(script), way])}; exit $?"
        connection.ray().submit_job({"entrypoint": command, "submission_id": job})
        until(lambda: len(self._places(connection, job)) == 2, 120)
        self.places = self._places(connection, job)

    def _places(self, connection: Connection, job: str) -> dict[int, int]:
        """The process id of each rank, once it says where it is."""
        said = re.findall(r"PLACE (\{.*?\})", "\n".join(find_job(connection, job).logs()))
        return {place["rank"]: place["pid"] for place in map(json.loads, said)}

    def _connection(self) -> Connection:
        """To the cluster, which is started again if it has ended, or is about to."""
        deadline = time.monotonic() + 300 * SLOWER
        while True:
            if '"ready"' not in self.shell.run("status", NAME, "--json", check=False).stdout:
                self.shell.run("up", NAME, "--on", "local", "--nodes", "2", "--env", "RAY_memory_monitor_refresh_ms=0")
            with pytest.MonkeyPatch.context() as patch, suppress(CloudrlError):
                patch.setenv("CLOUDRL_HOME", str(self.shell.home / "home"))
                connection = attach(NAME).connection
                connection.ray().list_jobs()
                return connection
            assert time.monotonic() < deadline
            time.sleep(2)

    def kill(self, kill: Kill) -> None:
        """All processes that it means, until none of them is left."""
        deadline = time.monotonic() + 30
        while found := [pid for pid in processes.of_cluster(self._cluster_id()) if _is_meant(pid, kill)]:
            assert time.monotonic() < deadline
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if kill.command:
                return
        assert not kill.command, "no such process"

    def why(self, job: str) -> dict[str, object]:
        """The cause, once the job or its cluster has failed."""
        asked = ("why", f"ray://{NAME}/{job}", "--json")
        found: list[dict[str, object]] = []

        def has_failed() -> bool:
            said = self.shell.run(*asked, check=False).stdout
            cause = json.loads(said)["cause"] if said else None
            is_known = cause and cause["signature"] != "process-asked-to-end"  # until the loss of a node is noticed
            found.extend([cause] if is_known else [])
            return bool(found)

        until(has_failed, 120)
        return found[0]

    def _cluster_id(self) -> str:
        [state] = self.shell.states()
        return str(state["id"])


def _is_meant(pid: int, kill: Kill) -> bool:
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
        environment = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    is_there = kill.rank is None or f"CLOUDRL_NODE_RANK={kill.rank}".encode() in environment
    return is_there and re.search(kill.command, command) is not None


@pytest.fixture(scope="module")
def lab(shell) -> Lab:
    return Lab(shell)


@pytest.mark.parametrize("name", KILLS)
def test_the_process_that_was_killed(name: str, lab: Lab):
    kill = KILLS[name]
    lab.submit(name, "waits")
    lab.kill(kill)
    cause = lab.why(name)
    assert cause["signature"] == kill.signature, cause
    assert (str(cause["process"]).partition(" ")[0], cause["rank"]) == (kill.process, kill.said_rank), cause


@pytest.mark.root
def test_a_worker_that_the_kernel_killed_for_lack_of_memory(lab: Lab, shell):
    shell.run("down", NAME, "-y", check=False)
    with little_memory(MEMORY_BYTES):
        lab.submit("memory", "takes_all_memory")
        cause = lab.why("memory")
        shell.run("down", NAME, "-y")
    assert cause["signature"] == "kernel-memory", cause
    assert cause["process"] == f"Rank (pid {lab.places[1]})", cause
