"""One stand-in host: power, cable, and a look inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import namespaces
from .standin.config import HostConfig

_UP_S = 90.0
_ANSWER_S = 20.0


class Host:
    """A host of a lab. Made by `Lab`; its disk outlives its power, as a machine's does.

    Args:
        lab_process: the lab's first process.
        folder: where its configuration and its console's log are.
        disk: a folder of the lab's tmpfs, as the lab sees it.
        index: its number in the lab, which names its end of the cable.
    """

    def __init__(self, lab_process: int, config: HostConfig, folder: Path, disk: Path, index: int) -> None:
        self._lab_process = lab_process
        self._folder = folder
        self._disk = disk
        self._index = index
        self._starts = 0
        self._disks = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.config = config

    @property
    def name(self) -> str:
        """Its host name."""
        return self.config.name

    @property
    def address(self) -> str:
        """Its IPv4 address in the lab's network."""
        return self.config.address

    @property
    def is_up(self) -> bool:
        """Whether it has power."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its first process, by its number outside. Raises ChildProcessError when it is down."""
        if self._process is None:
            raise ChildProcessError(f"{self.name} was never started")
        return namespaces.inside(self._process, depth=2)

    def power_on(self) -> None:
        """Start it without waiting for it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.config.save(self._folder / "host.json")
        self._starts += 1
        new = namespaces.unshare("net", "mount", "uts", "ipc", "pid")
        with self.console.open("ab") as log:
            self._process = namespaces.popen(
                self._lab_process, [*new, sys.executable, "-IS", *self._first_program()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        peer = ["type", "veth", "peer", "name", "eth0", "netns", str(self.pid)]
        self._ip("link", "add", self._cable, *peer)
        self._ip("link", "set", self._cable, "master", "br0", "up")

    def start(self, timeout_s: float = _UP_S) -> None:
        """Start it and wait until its sshd answers. Raises TimeoutError with the console's last lines."""
        if not self.is_up:
            self.power_on()
        self.wait_until_up(timeout_s)

    def wait_until_up(self, timeout_s: float = _UP_S) -> None:
        """Wait until it answers. Raises TimeoutError with the console's last lines."""
        deadline = time.monotonic() + timeout_s
        with namespaces.network_of(self._lab_process):
            while not self._answers():
                if time.monotonic() > deadline or not self.is_up:
                    raise TimeoutError(f"{self.name} is not up:\n{self.console.read_text()[-2000:]}")
                time.sleep(0.02)

    def kill(self) -> None:
        """Take its power away: first the cable, so that no connection is seen to close."""
        if not self.is_up or self._process is None:
            return
        pid = self.pid
        self._ip("link", "delete", self._cable)
        os.kill(pid, signal.SIGKILL)
        self._process.wait(_ANSWER_S)

    def shut_down(self) -> None:
        """Press its power button: its system ends all that runs, and the power stays until `kill`."""
        os.kill(self.pid, signal.SIGTERM)

    def replace_disk(self) -> None:
        """Have another machine's disk, empty, at the next start."""
        self._disks += 1
        self._disk = self._disk.with_name(f"{self.name}-{self._disks}")

    def forget(self) -> None:
        """Collect its process after the lab's end."""
        if self._process is not None:
            self._process.wait(_ANSWER_S)

    def cut(self) -> None:
        """Pull the cable out. The host goes on."""
        self._ip("link", "set", self._cable, "down")

    def restore(self) -> None:
        """Put the cable back."""
        self._ip("link", "set", self._cable, "up")

    def path(self, path: str) -> Path:
        """A file of the host, as the machine's processes can open it; only while the host is up."""
        return Path(f"/proc/{self.pid}/root") / path.lstrip("/")

    def run(self, *words: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, outside any container."""
        enter = ["nsenter", f"--target={self.pid}", "--all", "--"]
        return subprocess.run([*enter, *words], capture_output=True, text=True, timeout=timeout_s, check=False)

    def processes(self, *, containers_only: bool = False) -> list[tuple[str, ...]]:
        """The command lines of what runs on the host, or only in its containers, but for each one's first process."""
        own = _namespace(self.pid, "pid")
        found = []
        for pid in namespaces.members(namespaces.network_id(self.pid)):
            words = _words(pid)
            in_scope = not containers_only or _namespace(pid, "pid") != own
            if words and "-init" not in " ".join(words) and in_scope:
                found.append(words)
        return found

    @property
    def console(self) -> Path:
        """What its first process has printed, in all its lives."""
        return self._folder / "console.log"

    def _first_program(self) -> list[str]:
        """The program that its first process runs, with its arguments."""
        program = str(self._folder.parent.parent / "standin.pyz")
        return [program, "host-init", str(self._folder / "host.json"), str(self._disk), program]

    def _answers(self) -> bool:
        return _greets(self.address, 22)

    @property
    def _cable(self) -> str:
        return f"h{self._index}x{self._starts}"  # a new one each time: the kernel may be slow to take the old away

    def _ip(self, *words: str) -> None:
        command = [*namespaces.enter(self._lab_process, pids=False), "ip", *words]
        subprocess.run(command, check=True, timeout=_ANSWER_S)


def _greets(address: str, port: int) -> bool:
    import socket

    try:
        with socket.create_connection((address, port), 0.5) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _namespace(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def _words(pid: int) -> tuple[str, ...]:
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ()
    return tuple(text.rstrip("\0").split("\0")) if text else ()
