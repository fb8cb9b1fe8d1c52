"""The way to a job's first node, where no port of it can be reached from here, and the key that its tokens come from.

Many sites bar users from their compute nodes. So ssh speaks, through the login node, with an sshd that is a step of
the job itself and serves this one connection: `srun --overlap ... sshd -i`, as the user, with a key of ours. Where that
does not come about, the next try jumps to the node's own sshd.
"""

from __future__ import annotations

import itertools
import shlex
import subprocess
from pathlib import Path

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed
from cloudrl.private_files import write_file
from cloudrl.providers.slurm import queue
from cloudrl.providers.slurm.login import Login
from cloudrl.providers.slurm.queue import JobState, SlurmJob
from cloudrl.providers.slurm.run_folder import Head
from cloudrl.providers.slurm.state import SlurmState, read, root
from cloudrl.providers.state_folder import make_state_folder
from cloudrl.spec.ports import AGENT_PORT, RAY_PORT
from cloudrl.transport import tunnel_daemon
from cloudrl.transport.head_access import HeadAccess, daemon_folder
from cloudrl.transport.ssh import Route

PORTS = (RAY_PORT, AGENT_PORT)
HANDSHAKE_S = "30"
"""Seconds for a step of a job to start; a busy controller takes its time."""
_RELAY = "relay"
_PREPARE = (
    "umask 077 && mkdir -p {folder} && cd {folder} && "
    "{{ [ -s host_key ] || ssh-keygen -q -t ed25519 -N '' -f host_key; }} && touch authorized_keys && "
    "{{ grep -qxF {key} authorized_keys || echo {key} >>authorized_keys; }} && cat host_key.pub && id -un"
)
_SSHD_OPTIONS = (
    "UsePAM=no", "StrictModes=no", "PidFile=none", "PasswordAuthentication=no", "KbdInteractiveAuthentication=no",
    "AllowAgentForwarding=no", "X11Forwarding=no", "PermitTTY=no", "ForceCommand=/bin/false", "LogLevel=ERROR",
)  # fmt: skip


class JobAccess(HeadAccess):
    """The way to a job's first node, and its tokens; a start of the job after the first may be anywhere."""

    ask_every_s = 60.0  # a tunnel lasts for days, and all users of a site share the controller

    def __init__(self, state: SlurmState) -> None:
        super().__init__(state.name, state.target, state.folder, PORTS)
        self._state = state
        self._login = Login(state.login)
        self._ways = itertools.cycle((self._through_a_step, self._to_the_node))
        self._user = ""

    @classmethod
    def of(cls, name: str) -> JobAccess:
        """That to the cluster of a name, for another process."""
        state = read(name)
        if state is None:
            raise ClusterFailed(f"cluster {name!r} is gone")
        return cls(state)

    def update(self) -> None:
        """See `HeadAccess`."""
        ensure_goes_on(self.name, queue.job(self._login, self._state.job_id))

    def route(self) -> Route:
        """See `HeadAccess`."""
        head = self._state.run_folder.head()
        if not self._user:
            self._user = self._prepare()
        options = next(self._ways)(head)
        return Route(self.name, {self.name: options}, {RAY_PORT: head.dashboard, AGENT_PORT: head.agent})

    def read_key(self) -> bytes:
        """See `HeadAccess`."""
        return self._state.run_folder.key()

    def _prepare(self) -> str:
        """Let our key in at the relay, learn its host key, and return the user's name there."""
        key = _public_key()
        folder = f"{self._state.run_dir}/{_RELAY}"
        *_, host_key, user = self._login.shell(_PREPARE.format(folder=folder, key=shlex.quote(key))).splitlines()
        make_state_folder(self._folder)
        write_file(self._folder / "known_hosts", f"{self.name} {' '.join(host_key.split()[:2])}\n")
        return user

    def _through_a_step(self, head: Head) -> dict[str, str]:  # noqa: ARG002  it runs where the job's first node is
        words = " ".join(f"-o {option}" for option in _SSHD_OPTIONS)
        folder = f"{self._state.run_dir}/{_RELAY}"
        sshd = (
            "PATH=$PATH:/usr/sbin:/sbin; command -v sshd >/dev/null || { echo no sshd on this node >&2; exit 1; }; "
            f'exec "$(command -v sshd)" -i -e -f /dev/null -h {folder}/host_key '
            f"-o AuthorizedKeysFile={folder}/authorized_keys {words}"
        )
        step = (
            f"exec srun --jobid={self._state.job_id} --overlap --relative=0 --nodes=1 --ntasks=1 --cpus-per-task=1 "
            f"--mem=0 --gres=none --export=ALL --quiet --unbuffered --input=0 sh -c {shlex.quote(sshd)}"
        )
        return {
            "HostName": "127.0.0.1",
            "HostKeyAlias": self.name,
            "User": self._user,
            "IdentityFile": str(_key_file()),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self._folder / "known_hosts"),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "ConnectTimeout": HANDSHAKE_S,
            "ProxyCommand": _escaped(shlex.join(self._login.words(step))),
        }

    def _to_the_node(self, head: Head) -> dict[str, str]:
        options = {
            "HostName": head.ip,
            "User": self._user,
            # of one job: another day the node may be installed anew
            "UserKnownHostsFile": str(self._folder / f"known_hosts-{self._state.job_id}"),
            "ConnectTimeout": HANDSHAKE_S,
        }
        if self._login.host:
            options["ProxyCommand"] = _escaped(shlex.join(self._login.forward(head.ip, 22)))
        return options


def ensure_goes_on(name: str, job: SlurmJob | None) -> None:
    """Raises: ClusterFailed: the job is over, or Slurm has forgotten it."""
    if job is None or job.is_over:
        state = JobState.UNKNOWN if job is None else job.state
        raise ClusterFailed(f"cluster {name!r} is over: Slurm says {state.value}", hint=f"cloudrl status {name}")


def open_access(state: SlurmState, *, timeout_s: float = 60.0) -> JobAccess:
    """Open the way to a job's first node; see `HeadAccess.open`."""
    access = JobAccess(state)
    access.open(timeout_s)
    return access


def keep_tunnel(state: SlurmState) -> None:
    """Keep the tunnel open in the background until the job is over; one that is there is taken.

    Raises:
        ConnectionFailed: it could not be opened.
    """
    finder = f"{__name__}:JobAccess.of"
    tunnel_daemon.start(daemon_folder(state.folder), state.name, state.target, finder, (state.name,), PORTS)


def close_tunnel(state: SlurmState) -> bool:
    """End the tunnel in the background; False if none is open."""
    return tunnel_daemon.stop(daemon_folder(state.folder))


def _key_file() -> Path:
    return root() / "relay_key"


def _public_key() -> str:
    """The key that this machine shows to relays, of all jobs; created if missing.

    Raises:
        CloudrlError: ssh-keygen cannot.
    """
    file = _key_file()
    if not file.exists():
        make_state_folder(file.parent)
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cloudrl", "-f", str(file)]
        try:
            subprocess.run(words, check=True, capture_output=True, timeout=30, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise CloudrlError(f"no key of ssh can be made: {error}", hint="apt-get install openssh-client") from error
    try:
        return file.with_suffix(".pub").read_text().strip()
    except OSError as error:
        raise ConnectionFailed(f"{file}.pub cannot be read: {error.strerror}", hint=f"rm {file}*") from error


def _escaped(command: str) -> str:
    """For ssh_config, where `%` begins a token."""
    return command.replace("%", "%%")
