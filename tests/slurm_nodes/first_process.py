"""The first process of a node. When it dies, everything on the node dies.

`python first_process.py CONFIG DISK`, in new namespaces: joins the node's control groups, makes DISK over the machine's
files its root, starts the daemons, prints "up" and collects orphans.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

# A script, not a module: it must not import the packages.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "dstack_hosts"))

import cgroups
from config import SYSTEM_PATH, NodeConfig
from standin.bridge import configure
from standin.root import enter_root, run

_NEW_CGROUP = 0x02000000  # CLONE_NEWCGROUP
_GROUPS = Path("/sys/fs/cgroup")
_NULL = os.makedev(1, 3)
_FUSE, _TUN = os.makedev(10, 229), os.makedev(10, 200)


def main(config: Path, disk: Path) -> None:
    """Be the node until it is killed."""
    node = NodeConfig.load(config)
    socket.sethostname(node.name)
    hierarchies = _join_cgroups(node.cgroup) if node.cgroup else []
    configure(node.address, 24, node.gateway)
    stores = [(f"{disk}/store/{name}", f"/var/lib/{name}") for name in node.stores]
    for source, _ in stores:
        os.makedirs(source, exist_ok=True)
        os.chmod(source, 0o1777)
    enter_root(disk, Path("/"), read_only=node.read_only, binds=[*node.binds, *stores])
    _mount_cgroups(hierarchies)
    run("mount", "--make-rshared", "/")  # as systemd has it; podman asks for it
    Path("/root").chmod(0o711)  # this Python may be there, and users need it
    _make_devices(node.devices)
    _add_users(node.users)
    Path("/usr/local/bin/docker").unlink(missing_ok=True)  # not Debian's, and perhaps not of the daemon's age
    for path, file in node.files.items():
        _write(Path(path), file.text, file.mode)
    environment = {"PATH": SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8"}
    for words in node.commands:
        subprocess.run(words, env=environment, cwd="/", stdin=subprocess.DEVNULL, check=True, timeout=60)
    signal.signal(signal.SIGCHLD, _collect)
    print("up", flush=True)
    _collect()
    while True:
        signal.pause()


def _join_cgroups(name: str) -> list[str]:
    """Enter a group of the node's own in each hierarchy, and make it the root of all that the node sees."""
    found: list[str] = cgroups.hierarchies()
    for hierarchy in found:
        group = _GROUPS / hierarchy
        for part in name.split("/"):
            group /= part
            group.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, which then takes no process
                if (group / file).exists():
                    (group / file).write_text((group.parent / file).read_text())
        (group / "cgroup.procs").write_text("0")
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_CGROUP):
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
    return found


def _mount_cgroups(hierarchies: list[str]) -> None:
    if not hierarchies:
        return
    run("umount", "--recursive", "--lazy", str(_GROUPS))
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(_GROUPS))
    for hierarchy in hierarchies:
        (_GROUPS / hierarchy).mkdir()
        options = "none,name=systemd" if hierarchy == "systemd" else hierarchy
        run("mount", "-t", "cgroup", "-o", options, "cgroup", str(_GROUPS / hierarchy))


def _make_devices(paths: list[str]) -> None:
    for path in paths:
        _make_device(Path(path), _NULL)
    _make_device(Path("/dev/fuse"), _FUSE)
    _make_device(Path("/dev/net/tun"), _TUN)


def _make_device(path: Path, number: int) -> None:
    path.parent.mkdir(exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, number)
    path.chmod(0o666)


def _add_users(users: dict[str, int]) -> None:
    """Users without a password, in the group `docker` where there is one."""
    lines = Path("/etc/group").read_text().splitlines()
    names = ",".join(users)
    lines = [f"{line},{names}".replace(":,", ":") if line.startswith("docker:") else line for line in lines]
    known = Path("/etc/passwd").read_text()
    for name, number in users.items():
        for folder in (f"/run/user/{number}", f"/run/rootless/{name}"):  # what a login makes, and podman's own
            os.makedirs(folder)
            os.chmod(folder, 0o700)
            os.chown(folder, number, number)
        if f"\n{name}:" not in known:
            lines.append(f"{name}:x:{number}:")
            _append(Path("/etc/passwd"), f"{name}:x:{number}:{number}::/home/{name}:/bin/bash\n")
            _append(Path("/etc/shadow"), f"{name}:*:19000:0:99999:7:::\n")
    Path("/etc/group").write_text("\n".join(lines) + "\n")


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode)
    path.write_text(text)
    path.chmod(mode)


def _collect(*_: object) -> None:
    """Collect all children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


main(Path(sys.argv[1]), Path(sys.argv[2]))
