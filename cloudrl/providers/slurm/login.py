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
from cloudrl.foreign import Malformed
from cloudrl.providers.state_folder import home, make_state_folder
from cloudrl.transport import ssh
from cloudrl.transport.command import run
from cloudrl.units import duration_text

_MARK = "cloudrl-output"
"""What a site or the user's own profile prints comes before it."""
_PROFILE = "/etc/profile"
"""Some sites have Slurm on the PATH of login shells only, which ssh does not start for a command."""
_OF_THE_SITE = ("SLURM_CONF", "SLURM_CLUSTERS", "LD_LIBRARY_PATH")
"""Variables that Slurm's commands need. All others of Slurm's are of a job in which this program may be running."""
_TIMEOUT_S = 60.0
_ASK_S = 180.0
"""For a person to type a second factor."""
_KEEP_OPEN = "4h"
_NOT_FOUND = 127
"""A shell's status for a command that is not there."""
_SAID, _LOG_BYTES = 4000, 1 << 20
"""Of a failure's words."""
_SSH_FAILED = 255
"""The status of ssh where it fails itself, and no command."""


_CONFIGS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/run/slurm/slurm.conf",
)
"""Of Debian and RPM packages, and where daemons keep the one that the controller gives them."""


def is_here() -> bool:
    """Whether this machine has Slurm's commands, and they have a cluster to talk to. Contacts nothing."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return False
    own = Path(sbatch).resolve().parents[1] / "etc/slurm.conf"  # of a prefix such as /opt/slurm
    return bool(os.environ.get("SLURM_CONF")) or any(Path(path).exists() for path in (*_CONFIGS, own))


class CommandFailed(ConnectionFailed):
    """A command was run and has failed; the message is its own last words."""


@dataclass(frozen=True)
class Login:
    """Where Slurm's commands are run.

    Attributes:
        host: `user@host` or a name in `~/.ssh/config`; "" for this machine.
        asks: whether somebody at a terminal may be asked for a password.
    """

    host: str = ""
    asks: bool = True

    def __str__(self) -> str:
        return self.host or "this machine"

    def words(self, command: str) -> list[str]:
        """The command line, on this machine, that runs a command of sh there; never asks for a password.

        ssh hands it to the user's own shell, which need not be one like sh.
        """
        if self.host:
            find_slurm = f"command -v squeue >/dev/null || . {_PROFILE} >/dev/null 2>&1"
            return [*self._ssh("BatchMode=yes"), "--", self.host, shlex.join(["sh", "-c", f"{find_slurm}; {command}"])]
        exports = [f"export {name}={shlex.quote(os.environ[name])}" for name in _OF_THE_SITE if name in os.environ]
        return ["sh", "-c", "; ".join([*exports, command])]

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
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        try:
            words, env = self.words(f"echo {_MARK}; {command}"), ssh.environment() if self.host else own
            done = run(words, data, timeout_s=timeout_s, env=env)
        except TimeoutError:
            raise ConnectionFailed(f"{name} on {self} does not end within {duration_text(timeout_s)}") from None
        except Malformed as error:
            raise ConnectionFailed(f"{name} on {self} was ended: {error}", hint=self._try_it) from None
        output = done.stdout.decode("utf-8", "replace").partition(f"{_MARK}\n")[2]
        if done.status != 0:
            message = (done.stderr.decode("utf-8", "replace") or output).strip()[-_SAID:] or f"status {done.status}"
            if self.host and done.status == _SSH_FAILED:
                raise ConnectionFailed(f"ssh to {self.host}: {message}", hint=self._try_it)
            missing = "Put Slurm's commands into PATH there, or name a machine that has them: --login user@host"
            raise CommandFailed(f"{name} on {self}: {message}", hint=missing if done.status == _NOT_FOUND else None)
        return output

    @property
    def is_open(self) -> bool:
        """Whether a command can be run now without anybody being asked for anything."""
        if not self.host:
            return True
        ssh.ensure_installed()
        words = [*self._ssh(), "-O", "check", "--", self.host]
        try:
            check = subprocess.run(words, capture_output=True, check=False, timeout=10, env=ssh.environment())
        except subprocess.TimeoutExpired:
            return False
        return check.returncode == 0

    def connect(self) -> None:
        """Open the connection unless it is open.

        Raises:
            ConnectionFailed: ssh cannot; the message has its own last words.
        """
        if self.is_open:
            return
        folder = _control_folder()
        make_state_folder(folder)
        is_asked = self.asks and sys.stdin is not None and sys.stdin.isatty()  # ssh asks at the terminal itself
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
            lines = log.read(_LOG_BYTES).decode("utf-8", "replace").strip().splitlines()
        if status != 0:
            reason = lines[-1] if lines else "no answer in time"
            raise ConnectionFailed(f"ssh to {self.host}: {reason}", hint=self._try_it)

    @property
    def _try_it(self) -> str:
        if not self.asks:
            return "If it wants a password, this asks for it: cloudrl status NAME, of a cluster there"
        return f"Try it: ssh {shlex.quote(self.host)} squeue"

    def close(self) -> None:
        """Close the connection, for all commands."""
        if self.host and self.is_open:
            subprocess.run(
                [*self._ssh(), "-O", "exit", "--", self.host], capture_output=True, check=False, timeout=10,
                env=ssh.environment(),
            )  # fmt: skip

    def _ssh(self, *options: str) -> list[str]:
        every = (
            f"ControlPath={_control_folder()}/%C", "ServerAliveInterval=15", "ConnectTimeout=15", *options,
            # of each option the first counts; these would otherwise be as ~/.ssh/config has them
            "ControlMaster=no", "RemoteCommand=none", "RequestTTY=no",
        )  # fmt: skip
        return ["ssh", *(word for option in every for word in ("-o", option))]


def _control_folder() -> Path:
    """Short: the path of a Unix socket ends at 107 bytes, and `%C` has 40."""
    return home() / "ssh"
