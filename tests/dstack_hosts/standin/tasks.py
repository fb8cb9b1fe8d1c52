"""The tasks of a shim: what the server calls a job, here a container and its status.

Source: dstack, runner/internal/shim/task.go and docker.go.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import bridge, container

PENDING, PREPARING, PULLING, CREATING, RUNNING, TERMINATED = (
    "pending", "preparing", "pulling", "creating", "running", "terminated",
)  # fmt: skip


class Task:
    """One task. Its folder on the host keeps what a shim needs to find it again after its own restart."""

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        self.request = request
        self.id: str = request["id"]
        self.folder = folder
        self.status = PENDING
        self.reason = ""
        self.message = ""
        self.ports: list[dict[str, int]] | None = None  # None makes the server wait
        self.gpus: list[int] = []
        self.address = ""
        self.lock = threading.Lock()
        self._outside: int | None = None

    @property
    def container_name(self) -> str:
        """As Docker's: of the task's name and a hash of name and id."""
        return container_name(self.request["name"], self.id)

    def info(self) -> dict[str, Any]:
        """What GET /api/tasks/{id} answers."""
        return {
            "id": self.id,
            "status": self.status,
            "termination_reason": self.reason,
            "termination_message": self.message,
            "ports": self.ports,
            "image_pull_progress": None,
            "container_name": self.container_name,
            "container_id": str(self._outside or ""),
            "gpus_ids": [str(number) for number in self.gpus],
        }

    def advance(self, status: str) -> bool:
        """Go on to the next status; False when the task was terminated meanwhile."""
        with self.lock:
            if self.status == TERMINATED:
                return False
            self.status = status
            return True

    def terminated(self, reason: str, message: str = "") -> None:
        """End it. The first reason stays: the server terminates each task, also an ended one."""
        with self.lock:
            if self.status != TERMINATED or not self.reason:
                self.reason, self.message = reason, message
            self.status = TERMINATED

    def run(self, spec: container.ContainerSpec, ports: Iterable[str]) -> int:
        """Start the container and wait for its end; its exit status. On the host's own network no port is mapped."""
        process = container.start(spec, self.folder)
        self._outside = process.pid
        mapped: list[dict[str, int]] = []
        if spec.address:
            bridge.connect(self._await_first_process(process))
            mapped = bridge.publish(process.pid, spec.address, ports, self.folder / "container.log")
        self._remember(mapped)
        self.ports = mapped
        return process.wait()

    def last_lines(self, count: int = 5) -> str:
        """The end of the container's output."""
        text = (self.folder / "container.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-count:])

    def stop(self, timeout_s: float) -> None:
        """SIGTERM to the container's first process, SIGKILL after the time-out."""
        for signal_, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, 10.0)):
            for pid in self._first_process():
                os.kill(pid, signal_)
            deadline = time.monotonic() + patience_s
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.02)

    def _remember(self, ports: list[dict[str, int]]) -> None:
        """Note the container's process, for the shim after this one."""
        assert self._outside is not None
        state = {"request": self.request, "pid": self._outside, "started": _start_time(self._outside)}
        state |= {"ports": ports, "gpus": self.gpus, "address": self.address}
        (self.folder / "task.json").write_text(json.dumps(state))

    @classmethod
    def restore(cls, folder: Path) -> Task:
        """A task of an earlier shim: running if its container is, else terminated without a reason."""
        state = json.loads((folder / "task.json").read_text())
        task = cls(state["request"], folder)
        task.ports, task.gpus, task.address = state["ports"], state["gpus"], state["address"]
        if _start_time(state["pid"]) == state["started"]:
            task._outside = state["pid"]
            task.status = RUNNING
        else:
            task.status = TERMINATED
        return task

    def alive(self) -> bool:
        """Whether the container runs."""
        return self._outside is not None and _start_time(self._outside) is not None

    def _await_first_process(self, process: subprocess.Popen[bytes]) -> int:
        while process.poll() is None:
            for pid in self._first_process():
                return pid
            time.sleep(0.005)
        raise ChildProcessError(self.last_lines())

    def _first_process(self) -> list[int]:
        if self._outside is None:
            return []
        try:
            path = f"/proc/{self._outside}/task/{self._outside}/children"
            return [int(pid) for pid in Path(path).read_text().split()]
        except FileNotFoundError:
            return []


def container_name(name: str, task_id: str) -> str:
    """dstack, runner/internal/shim/task.go: generateUniqueName."""
    return f"{name}-{hashlib.sha256(f'{name}/{task_id}'.encode()).hexdigest()[:8]}"


def _start_time(pid: int) -> str | None:
    """In clock ticks since boot; None for a process that has ended, collected or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


def version_of(program: str) -> list[str] | None:
    """The words that `program --version` prints; None where there is no such program."""
    if not os.path.exists(program):
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.split()
