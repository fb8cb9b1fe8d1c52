"""The first process of a host: network, root file system, sshd, and the shim if a reboot finds it enabled."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import NoReturn

from . import bridge, config, gpus, sshd, systemctl
from .config import HostConfig
from .root import enter_root, reap_until, run

_DOCKER_GRACE_S = 10.0
_AS_ROOT = Path("/usr/local/lib/as-root")  # setpriv, with root's rights for whoever calls it
_SUDO = f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
exec {_AS_ROOT} --reuid=0 --regid=0 --clear-groups -- "$@"
"""


def host_init(words: list[str]) -> int:
    """Be the host until its sshd ends. Must be the first process of new namespaces of all kinds."""
    config_path, disk, program = words
    host = HostConfig.load(Path(config_path))
    socket.sethostname(host.name)
    bridge.configure(host.address, host.network_bits, host.gateway)
    agent = Path(program).read_bytes()
    folders = [(folder, folder) for folder in host.binds]
    enter_root(Path(disk), Path("/"), read_only=[("/", str(config.IMAGE)), *folders])
    _write_files(host, agent)
    server = _start_sshd(host)
    print(f"host {host.name} is up", flush=True)
    if systemctl.is_enabled("dstack-shim"):
        subprocess.run(["/usr/local/bin/systemctl", "start", "dstack-shim"], check=True, timeout=30)
    _run_user_data(host)
    signal.signal(signal.SIGTERM, lambda *_: _shut_down())
    return reap_until(server)


def _shut_down() -> NoReturn:
    """What systemd and Docker do when a cloud presses the power button: ssh ends at once, containers later.

    Docker sends SIGTERM to their first process, which ignores it (see `container.py`), waits and kills. Then the
    network is still there: who asks at a port of theirs is refused, until the power is gone.
    """
    own = os.readlink("/proc/self/ns/pid")
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (each / "comm").read_text().startswith("sshd") and os.readlink(each / "ns/pid") == own:
                os.kill(int(each.name), signal.SIGKILL)
    time.sleep(_DOCKER_GRACE_S)
    os.kill(-1, signal.SIGKILL)  # all but this process
    while True:
        signal.pause()


def _let_in(user: str, new: list[str]) -> None:
    """Keys of a user, who is created if missing.

    They are kept over a reboot: the server adds its project's key once, when it provisions the host.
    """
    if user not in {each.pw_name for each in pwd.getpwall()}:
        run("useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", user)
    there = pwd.getpwnam(user)
    keys = Path(there.pw_dir) / ".ssh/authorized_keys"
    keys.parent.mkdir(mode=0o700, exist_ok=True)
    known = keys.read_text() if keys.exists() else ""
    keys.write_text("".join([known, *(f"{key.strip()}\n" for key in new if key.split()[1] not in known)]))
    keys.chmod(0o600)
    for path in (keys.parent, keys):
        os.chown(path, there.pw_uid, there.pw_gid)


def _write_files(host: HostConfig, agent: bytes) -> None:
    commands = Path("/usr/local/bin")
    for target, content in (
        (config.PROGRAM, agent),
        (commands / "systemctl", agent),
        (commands / "sudo", _SUDO.encode()),
    ):
        target.write_bytes(content)
        target.chmod(0o755)
    shutil.copy("/usr/bin/setpriv", _AS_ROOT)
    _AS_ROOT.chmod(0o4755)
    host.save(config.PATH)
    gpus.install(host)
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in host.hosts.items())]
    Path("/etc/hosts").write_text("\n".join(lines) + "\n")
    Path("/etc/hostname").write_text(host.name + "\n")
    Path("/etc/resolv.conf").unlink(missing_ok=True)  # often a link into what is not here
    Path("/etc/resolv.conf").write_text("")  # no name is ever asked of anybody


def _run_user_data(host: HostConfig) -> None:
    """What cloud-init does at the first boot."""
    environment = {"PATH": config.SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8"}
    with Path("/var/log/cloud-init-output.log").open("ab") as log:
        for words in host.commands:
            subprocess.run(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, timeout=60
            )


def _start_sshd(host: HostConfig) -> int:
    folder = Path("/etc/ssh/standin")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ssh_host_ed25519_key").exists():
        sshd.make_host_keys(folder, ("ed25519",))
    _let_in(host.admin, [host.admin_key])
    _let_in("root", host.keys)
    lines = [
        f"ListenAddress {host.address}", "Port 22", "UsePAM no", "UseDNS no", "PrintMotd no",
        "PermitRootLogin prohibit-password", "MaxStartups 100", "MaxSessions 100",
        f"SetEnv PATH={config.SYSTEM_PATH}",
    ]  # fmt: skip
    return sshd.start(folder, lines, Path("/var/log/sshd-host.log")).pid
