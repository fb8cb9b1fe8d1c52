"""A site as a list of nodes: what each finds in its files, and which daemons it starts."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstack_hosts import cgroups
from dstack_hosts.lab import hidden_folders

from . import accounting, containers, slurm_conf
from .config import File, NodeConfig
from .gpus import Gpus

NETWORK = "10.78.0"  # inside the cluster's own network namespace: two clusters may both use it
_SSHD = """\
HostKey /etc/lab/host_key
PidFile none
UsePAM no
UseDNS no
PrintMotd no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""
_START_SSHD = [["mkdir", "-p", "/run/sshd"], ["/usr/sbin/sshd", "-f", "/etc/lab/sshd_config"]]
# Where another machine's address has no answer any more, a connection fails within two seconds, not ten. Slurm goes on
# trying for those ten, and has to try twice (22.05, src/common/slurm_protocol_api.c: slurm_send_addr_recv_msgs).
_TIMES = {"delay_first_probe_time": 1, "retrans_time_ms": 250, "base_reachable_time_ms": 1000}
_WRITE = "; ".join(f"echo {value} >{name}" for name, value in _TIMES.items())
_NOTICE_LOST_NODES = ["sh", "-ec", f"cd /proc/sys/net/ipv4/neigh/eth0; {_WRITE}"]
_START_MUNGED = [
    "munged", "--num-threads=2", "--key-file=/etc/lab/munge.key", "--pid-file=/run/munged.pid",
    "--seed-file=/run/munged.seed", "--log-file=/var/log/munged.log",
]  # fmt: skip


@dataclass(frozen=True)
class Site:
    """What a cluster is made of.

    Attributes:
        folder: where all of it is on this machine.
        names: of the compute nodes.
        users: name -> number.
        gpus: of each compute node.
        settings: of slurm.conf.
        cgroups: whether Slurm tracks jobs by control groups.
        containers: whether compute nodes have docker and podman.
        accounting: whether there is a database of jobs.
        node_ssh: whether users may log in to compute nodes, which many sites refuse.
    """

    folder: Path
    names: Sequence[str]
    users: Mapping[str, int]
    gpus: Gpus
    settings: Mapping[str, str]
    cgroups: bool
    containers: bool
    accounting: bool
    node_ssh: bool

    @property
    def shared(self) -> Path:
        """/shared of all nodes."""
        return self.folder / "shared"

    @property
    def home(self) -> Path:
        """/home of all nodes."""
        return self.folder / "home"

    @property
    def key(self) -> Path:
        """The private key that opens the login node to root and to the users."""
        return self.folder / "key"

    def prepare(self) -> None:
        """Make the shared folders, the users' homes and the keys."""
        for folder, mode in ((self.shared, 0o1777), (self.home, 0o755), (self.folder / "munge", 0o755)):
            folder.mkdir()
            folder.chmod(mode)
        for path in (self.key, self.folder / "host_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
            subprocess.run(words, check=True, timeout=30)
        for name, number in self.users.items():
            keys = self.home / name / ".ssh/authorized_keys"
            keys.parent.mkdir(parents=True)
            keys.write_text(self._public(self.key))
            storage = self.home / name / ".config/containers/storage.conf"
            storage.parent.mkdir(parents=True)
            storage.write_text(containers.storage_conf(name))
            for path in (self.home / name, *(self.home / name).rglob("*")):
                path.chmod(0o700 if path.is_dir() else 0o600)
                os.chown(path, number, number)
        if self.containers:
            containers.write_image(self._image)

    def login(self) -> NodeConfig:
        """The node with the controller, munge and an sshd."""
        folder = ["install", "--directory", "--mode=755", str(Path(slurm_conf.JOB_LOG).parent)]
        files = {"/etc/lab/munge.key": File(secrets.token_hex(64), 0o400), **self._ssh_files()}
        commands = [folder, _NOTICE_LOST_NODES, _START_MUNGED, ["slurmctld"], *_START_SSHD]
        if self.accounting:
            files |= accounting.files()
            commands.insert(3, [accounting.START])
        return self._member("login", slurm_conf.CONTROLLER_PORT, files, commands=commands)

    def compute(self, name: str) -> NodeConfig:
        """A node that jobs run on."""
        files: dict[str, File] = {}
        commands = [["slurmd"]]
        if self.node_ssh:
            files |= self._ssh_files()
            commands += _START_SSHD
        if self.containers:
            files |= containers.files(self.gpus, list(self.users))
            commands.append([containers.START])
        return self._member(
            name, slurm_conf.NODE_PORT, files,
            cgroup=f"{cgroups.name_for(self.folder)}/{name}",
            devices=self.gpus.devices,
            stores=list(containers.STORES) if self.containers else [],
            commands=commands,
        )  # fmt: skip

    def laptop(self) -> NodeConfig:
        """A user's own machine, outside Slurm."""
        host_key = self._public(self.folder / "host_key")
        files = {
            "/root/.ssh/id_ed25519": File(self.key.read_text(), 0o600),
            "/root/.ssh/known_hosts": File(f"login,node*,{NETWORK}.* {host_key}"),
        }
        return self._node("laptop", 0, files)

    @property
    def _image(self) -> Path:
        return self.folder / "image.tar"

    @property
    def _addresses(self) -> dict[str, str]:
        compute = {name: f"{NETWORK}.{10 + index}" for index, name in enumerate(self.names)}
        return {"login": f"{NETWORK}.2", "laptop": f"{NETWORK}.3", **compute}

    def _ssh_files(self) -> dict[str, File]:
        return {
            "/etc/lab/host_key": File((self.folder / "host_key").read_text(), 0o600),
            "/etc/lab/sshd_config": File(_SSHD),
            "/root/.ssh/authorized_keys": File(self._public(self.key), 0o600),
        }

    def _member(self, name: str, port: int, files: Mapping[str, File], **fields: object) -> NodeConfig:
        """A node that Slurm's commands work on."""
        settings = {**(accounting.SETTINGS if self.accounting else {}), **self.settings}
        conf = slurm_conf.slurm_conf("login", self.names, self.gpus, cgroups=self.cgroups, settings=settings)
        own = {
            "/etc/slurm/slurm.conf": File(conf),
            "/etc/slurm/gres.conf": File(self.gpus.gres_conf(",".join(self.names))),
            "/etc/slurm/cgroup.conf": File(slurm_conf.cgroup_conf(cgroups=self.cgroups)),
        }
        shared = ((self.shared, "/shared"), (self.home, "/home"), (self.folder / "munge", "/run/munge"))
        binds = [(str(source), target) for source, target in shared]
        if self.containers:
            binds.append((str(self._image), containers.TAR))
        return self._node(name, port, {**own, **files}, users=dict(self.users), binds=binds, **fields)

    def _node(self, name: str, port: int, files: Mapping[str, File], **fields: Any) -> NodeConfig:
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self._addresses.items())]
        # No name is ever asked of anybody else.
        names = {"/etc/hosts": File("\n".join(lines) + "\n"), "/etc/resolv.conf": File("")}
        hidden = [(folder, folder) for folder in hidden_folders()]
        return NodeConfig(
            name=name, address=self._addresses[name], gateway=f"{NETWORK}.1", port=port,
            read_only=hidden, files={**names, **files}, **fields,
        )  # fmt: skip

    @staticmethod
    def _public(key: Path) -> str:
        return key.with_suffix(".pub").read_text()
