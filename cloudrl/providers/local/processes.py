"""The processes of one local cluster: started here, and found by the id that each carries, never by name."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloudrl.child_process import marked
from cloudrl.errors import CloudrlError
from cloudrl.node.shutdown import RELEASE
from cloudrl.render.agent import AGENT_FILE

MARK = "CLOUDRL_RUN_ID"
_GRACE_S = 20.0


@dataclass
class AgentProcess:
    """One agent that was started, and the lease that keeps it: our end of a pipe.

    Not a `subprocess.Popen`, which cannot let go of a process that shall outlive it.
    """

    pid: int
    lease: int
    exit_status: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        if self.exit_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit_status = os.waitstatus_to_exitcode(status) if pid else None
        return self.exit_status

    def release(self) -> None:
        """Let the agent outlive this command; one that died a moment ago is left to `status`."""
        with suppress(BrokenPipeError):
            os.write(self.lease, RELEASE)
        self.abandon()

    def abandon(self) -> None:
        """Close the lease; an agent that was not released ends."""
        os.close(self.lease)


def start_agent(command: Sequence[str], env: Mapping[str, str], log: Path) -> AgentProcess:
    """Start one agent in its own session, and return once `agents` finds it.

    It ends by itself when the lease is dropped before its release.
    """
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        pid = os.posix_spawn(
            command[0],
            [*command, f"--lease-fd={reading}"],
            {**os.environ, **env},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), log_flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(reading)
    await_environment(pid)
    return AgentProcess(pid, writing)


def await_environment(pid: int) -> None:
    """Return once the environment of a child, which is not empty, can be read, or the child has ended.

    `posix_spawn` and `Popen` return a moment earlier, on a busy machine noticeably so: the kernel frees the old memory
    and closes descriptors first (Linux 6.12, fs/exec.c: begin_new_exec) and then says where the new arguments and
    environment are (fs/binfmt_elf.c: create_elf_tables).
    """
    while not _read(pid, "environ") and _is_alive(pid):
        time.sleep(0.001)


def of_cluster(cluster_id: str) -> set[int]:
    """Process ids of all that have `CLOUDRL_RUN_ID=<id>` in their environment, and of all below them."""
    return marked(MARK, cluster_id) - {os.getpid()}


def agents(cluster_id: str) -> set[int]:
    """Those among them that are agents."""
    pids = set()
    for pid in of_cluster(cluster_id):
        words = _read(pid, "cmdline").split(b"\0")
        if words[2:3] == [b"run"] and words[1].endswith(AGENT_FILE.encode()):
            pids.add(pid)
    return pids


def end(
    cluster_id: str, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """End all of them: the agents first, which end their own; what is left after a while is killed.

    Returns:
        Whether anything was running.

    Raises:
        CloudrlError: a process outlives SIGKILL, as one does that waits for a dead disk.
    """
    if not of_cluster(cluster_id):
        return False
    for pid in agents(cluster_id):
        _send(pid, signal.SIGTERM)
    deadline = clock() + _GRACE_S
    # without an agent nothing ends the rest: no use in waiting for it
    while agents(cluster_id) and clock() < deadline:
        sleep(0.05)
    deadline = clock() + _GRACE_S
    while remaining := of_cluster(cluster_id):
        if clock() > deadline:
            pids = ", ".join(str(pid) for pid in sorted(remaining))
            raise CloudrlError(
                f"processes {pids} do not end; the kernel holds them, often for a disk that does not answer",
                hint=f"ps -o pid,stat,wchan,args {pids.replace(', ', ' ')}",
            )
        for pid in remaining:
            _send(pid, signal.SIGKILL)
        sleep(0.05)
    return True


def _read(pid: int, file: str) -> bytes:
    try:
        return Path("/proc", str(pid), file).read_bytes()
    except OSError:  # gone, or another user's
        return b""


def _is_alive(pid: int) -> bool:
    return _read(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
