"""Commands where Slurm's own are: on this machine, or on a login node through ssh.

One ssh connection, a control socket, carries all commands to a login node: whoever has to type a password or a second
factor does so once, and it stays open for a while after the last command. Of the user's `~/.ssh` everything counts.
"""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cloudrl.errors import ConnectionFailed
from cloudrl.providers.model import home
from cloudrl.transport import ssh

_TIMEOUT_S = 60.0
_ASK_S = 180.0
"""For a person to type a second factor."""
_KEEP_OPEN = "4h"


_CONFIGS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/run/slurm/slurm.conf",
)
"""Of Debian and RPM packages, and where daemons keep the one that the controller gives them."""


def is_here() -> bool:
    """Whether this machine has Slurm's commands, and they have a cluster to talk to. Asks nobody."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return False
    own = Path(sbatch).resolve().parents[1] / "etc/slurm.conf"  # of a prefix such as /opt/slurm
    return bool(os.environ.get("SLURM_CONF")) or any(Path(each).exists() for each in (*_CONFIGS, own))


class CommandFailed(ConnectionFailed):
    """A command was run and has failed; the message is its own last words."""


@dataclass(frozen=True)
class Login:
    """Where Slurm's commands are run.

    Attributes:
        host: `user@host` or a name in `~/.ssh/config`; "" for this machine.
    """

    host: str = ""

    def __str__(self) -> str:
        return self.host or "this machine"

    def words(self, command: str) -> list[str]:
        """The command line, on this machine, that runs a shell command there; asks nobody for anything."""
        return [*self._ssh("BatchMode=yes"), "--", self.host, command] if self.host else ["sh", "-c", command]

    def forward(self, host: str, port: int) -> list[str]:
        """The command line whose standard input and output are a connection from there to another host."""
        return [*self._ssh("BatchMode=yes"), "-W", f"{host}:{port}", "--", self.host]

    def run(self, *words: str, text: str = "", timeout_s: float = _TIMEOUT_S) -> str:
        """The standard output of a command with this standard input.

        Raises:
            CommandFailed: its status is not 0.
            ConnectionFailed: the login node cannot be reached, or the command does not end in time.
        """
        return self.shell(shlex.join(words), text.encode(), timeout_s=timeout_s)

    def shell(self, command: str, data: bytes = b"", *, timeout_s: float = _TIMEOUT_S) -> str:
        """Likewise, of a shell command."""
        self.connect()
        name = command.split(maxsplit=1)[0]
        try:
            done = subprocess.run(
                self.words(command), input=data, capture_output=True, check=False, timeout=timeout_s,
                env=ssh.environment() if self.host else None,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ConnectionFailed(f"{name} on {self} does not end within {timeout_s:.0f} s") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip() or f"status {done.returncode}"
            raise CommandFailed(f"{name} on {self}: {said}")
        return done.stdout.decode("utf-8", "replace")

    @property
    def is_open(self) -> bool:
        """Whether a command can be run now without anybody being asked for anything."""
        if not self.host:
            return True
        check = subprocess.run(
            [*self._ssh(), "-O", "check", self.host],
            capture_output=True,
            check=False,
            timeout=10,
            env=ssh.environment(),
        )
        return check.returncode == 0

    def connect(self) -> None:
        """Open the connection unless it is open.

        Raises:
            ConnectionFailed: ssh cannot; the message has its own last words.
        """
        if self.is_open:
            return
        ssh.ensure_installed()
        folder = _control_folder()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        is_asked = sys.stdin is not None and sys.stdin.isatty()  # ssh asks at the terminal itself
        options = ("ControlMaster=yes", f"ControlPersist={_KEEP_OPEN}", f"BatchMode={'no' if is_asked else 'yes'}")
        # the connection that stays would hold a pipe open for ever
        with (folder / "log").open("w+b") as log:
            try:
                done = subprocess.run(
                    [*self._ssh(*options), "-fN", "--", self.host], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    check=False, timeout=_ASK_S if is_asked else _TIMEOUT_S, env=ssh.environment(),
                )  # fmt: skip
                status = done.returncode
            except subprocess.TimeoutExpired:
                status = -1
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip().splitlines()
        if status != 0:
            reason = said[-1] if said else "no answer in time"
            raise ConnectionFailed(f"ssh to {self.host}: {reason}", hint=f"Try it: ssh {shlex.quote(self.host)} squeue")

    def close(self) -> None:
        """Close the connection, for all commands."""
        if self.host and self.is_open:
            subprocess.run(
                [*self._ssh(), "-O", "exit", self.host], capture_output=True, check=False, timeout=10,
                env=ssh.environment(),
            )  # fmt: skip

    def _ssh(self, *options: str) -> list[str]:
        every = (f"ControlPath={_control_folder()}/%C", "ServerAliveInterval=15", "ConnectTimeout=15", *options)
        return ["ssh", *(word for each in every for word in ("-o", each))]


def _control_folder() -> Path:
    """Short: the path of a Unix socket ends at 107 bytes, and `%C` has 40."""
    return home() / "ssh"
