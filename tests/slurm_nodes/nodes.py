"""One node: power, cable, commands, and what runs on it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dstack_hosts import cgroups, namespaces
from dstack_hosts.client import Client, Entered
from dstack_hosts.hosts import Host
from patience import SLOWER

from . import containers
from .config import SYSTEM_PATH, NodeConfig

_PROGRAM = Path(__file__).with_name("first_process.py")
_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")
_PODMANS = re.compile(r"libpod|containers-user-")  # what podman itself keeps there
_DAEMONS = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged", "sshd", "dockerd", "containerd")


class Node(Host):
    """A node of a Slurm cluster, or the user's own machine. Made by `SlurmNodes`; its disk outlives its power."""

    config: NodeConfig  # type: ignore[assignment] # Host looks at what both have

    def power_on(self) -> None:
        """Start it without waiting for it."""
        if self.config.cgroup:
            cgroups.remove(self.config.cgroup)
        super().power_on()

    def power_off(self) -> None:
        """Take its power away: no connection is seen to close."""
        self.kill()

    def run(
        self,
        *words: str,
        user: str = "root",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        text: str = "",
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as it would in a terminal of the node, to its end.

        Args:
            words: the command.
            user: who types it.
            cwd: a folder of the node; None for the user's home.
            env: beside what a login sets.
            text: its standard input.
            timeout_s: that of a quiet machine; it is killed afterwards. Raises TimeoutExpired.
        """
        command = [*namespaces.enter(self.pid), *login_words(words, user, cwd)]
        with subprocess.Popen(
            command, env=login_environment(user, env), start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                output, errors = process.communicate(text, SLOWER * timeout_s)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # the command too, not only the door to the node
                raise
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def popen(
        self, *words: str, user: str = "root", cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Client:
        """Start a command; `.output`, `.interrupt()`, `.finish(timeout_s)`. Close it before the cluster ends."""
        return Client(
            list(words), Entered(self.pid, login_words(words, user, cwd), Path("/"), login_environment(user, env))
        )

    def processes(self) -> list[tuple[str, ...]]:  # type: ignore[override] # containers are processes of the node
        """The command lines of all that runs on the node, daemons of the system aside."""
        found = []
        for process in self.path("/proc").glob("[0-9]*"):
            try:
                words = tuple((process / "cmdline").read_text(errors="replace").rstrip("\0").split("\0"))
            except OSError:
                continue
            daemon = os.path.basename(words[0].split(":")[0]) in _DAEMONS or str(_PROGRAM) in words
            if words != ("",) and not daemon:
                found.append(words)
        return found

    def remains(self) -> list[str]:
        """What jobs have left: processes, control groups, containers, files where all may write."""
        processes = [f"{self.name}: process {' '.join(words)}" for words in self.processes()]
        groups = self.path("/sys/fs/cgroup").glob("*/slurm_*/uid_*/job_*")
        files = [each for folder in _SCRATCH for each in self.path(folder).iterdir() if not _PODMANS.match(each.name)]
        mounted = {
            self.path(str(each)) for path in containers.program_folders() for each in (path, *Path(path).parents)
        }
        paths = (*groups, *containers.left_on(self.path("/")), *(each for each in files if each not in mounted))
        return [*processes, *(f"{self.name}: {path}" for path in paths)]

    def _answers(self) -> bool:
        if self.console.read_text(errors="replace").count("up\n") < self._starts:
            return False
        if not self.config.port:
            return True
        try:
            with socket.create_connection((self.address, self.config.port), 0.5):
                return True
        except OSError:
            return False

    def _first_program(self) -> list[str]:
        return [str(_PROGRAM), str(self._folder / "host.json"), str(self._disk)]


def login_words(words: Sequence[str], user: str, cwd: str | None = None) -> list[str]:
    """A command as a user types it, in the user's home unless another folder is named."""
    who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
    return [*who, *namespaces.in_folder(cwd or _home(user), list(words))]


def login_environment(user: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a login sets, and more."""
    named = {"HOME": _home(user), "USER": user, "LOGNAME": user, "SHELL": "/bin/bash"}
    return {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "TERM": "dumb", **named, **(more or {})}


def _home(user: str) -> str:
    return "/root" if user == "root" else f"/home/{user}"
