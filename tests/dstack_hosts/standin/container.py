"""A container: new mount, pid and ipc namespaces over the image, the host's network or its own; its first process.

Docker's part in the true shim. Its first process there is `/bin/sh -c "... && dstack-runner start"`, which
ignores SIGTERM, so that a stop waits for its whole time-out and then kills. Source: dstack,
runner/internal/shim/docker.go (DockerShellCommands, createContainer).
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import bridge, config
from .root import enter_root, reap_until, run

DEFAULT_SHM_BYTES = 64 << 20  # Docker's
CAPABILITIES = (
    "chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid", "setfcap", "setpcap",
    "net_bind_service", "sys_chroot", "kill", "audit_write",
)  # fmt: skip
"""Docker's defaults (moby, oci/caps/defaults.go)."""


@dataclass(frozen=True)
class ContainerSpec:
    """What is started: a command with its environment, folders of the host bound into it, size of /dev/shm.

    Attributes:
        capabilities: what its processes can at most do; None for everything.
        address: in the host's bridge network; empty for the network of the host itself.
        host_name: with a network of its own.
    """

    disk: str
    command: list[str]
    environment: dict[str, str]
    binds: list[tuple[str, str]] = field(default_factory=list)
    read_only: list[str] = field(default_factory=list)
    shm_bytes: int = DEFAULT_SHM_BYTES
    capabilities: list[str] | None = None
    address: str = ""
    host_name: str = ""


def start(spec: ContainerSpec, folder: Path) -> subprocess.Popen[bytes]:
    """Start a container. The process is its outside; `first_process` finds its inside."""
    path = folder / "container.json"
    path.write_text(json.dumps(asdict(spec)))
    own = ["--net", "--uts"] if spec.address else []
    with (folder / "container.log").open("ab") as log:
        return subprocess.Popen(
            [
                "unshare", *own, "--mount", "--pid", "--ipc", "--fork", "--propagation", "private", "--",
                sys.executable, "-IS", str(config.PROGRAM), "container-init", str(path),
            ],
            env={**spec.environment, "PATH": config.SYSTEM_PATH}, cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def container_init(words: list[str]) -> int:
    """Be the container until its command ends."""
    [spec_path] = words
    spec = ContainerSpec(**json.loads(Path(spec_path).read_text()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if spec.address:
        bridge.configure(spec.address, bridge.BITS, bridge.GATEWAY)
        socket.sethostname(spec.host_name)
    disk = Path(spec.disk)
    disk.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "tmpfs", str(disk))
    _write_names(disk, spec)
    folders = [(folder, folder) for folder in spec.read_only]
    binds = [(source, target) for source, target in spec.binds]  # JSON has made lists of them
    enter_root(disk, config.IMAGE, read_only=folders, binds=binds, shm_bytes=spec.shm_bytes)
    words = [*_limits(spec.capabilities), *spec.command]
    command = subprocess.Popen(words, cwd="/", env=spec.environment, preexec_fn=_default_signals)  # noqa: PLW1509
    return reap_until(command.pid)


def _write_names(disk: Path, spec: ContainerSpec) -> None:
    """Docker copies the host's files, or writes some for a network of its own; the machine's own do not show."""
    etc = disk / "upper/etc"
    etc.mkdir(parents=True)
    for name in ("hosts", "hostname", "resolv.conf"):
        shutil.copy(f"/etc/{name}", etc / name)
    if spec.address:
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{spec.address} {spec.host_name}\n")
        (etc / "hostname").write_text(f"{spec.host_name}\n")


def _limits(capabilities: list[str] | None) -> list[str]:
    if capabilities is None:
        return []
    return ["/usr/bin/setpriv", f"--bounding-set=-all,{','.join(f'+{name}' for name in capabilities)}", "--"]


def _default_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
