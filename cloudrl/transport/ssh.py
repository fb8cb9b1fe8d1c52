"""ssh to a node along a route that somebody else has found, with a configuration of our own.

The user's `~/.ssh` is left alone, and no control socket is shared with another program.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloudrl.errors import CloudrlError, ConnectionFailed
from cloudrl.foreign import Malformed
from cloudrl.private_files import make_folder, write_file
from cloudrl.transport.command import run as run_command
from cloudrl.units import duration_text

_OPTIONS = {
    "BatchMode": "yes",  # never ask for a password
    "StrictHostKeyChecking": "accept-new",  # where a route says nothing else, as that through dstack's ssh proxy
    "ConnectTimeout": "5",
    "ServerAliveInterval": "2",  # silent for 6 s is dead; a tunnel is to be reopened within 10
    "ServerAliveCountMax": "3",
    "ExitOnForwardFailure": "yes",
    "ControlMaster": "no",
    "ControlPath": "none",
    "LogLevel": "ERROR",
}
_AFTER_A_JUMP = ("kex_exchange_identification: ", "Connection closed by UNKNOWN port ")
"""What the ssh behind a jump says when the jump has failed and said why."""
_TIMEOUT_S = 30.0
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "LANG", "LC_ALL")


@dataclass(frozen=True)
class Route:
    """How to reach one node.

    Attributes:
        name: what it is called in `hosts`.
        hosts: host -> its options in an ssh_config. The last one is the node; those before it are jumped through.
        ports: the usual port of a server there -> the port at which it really is; others are where they usually are.
    """

    name: str
    hosts: Mapping[str, Mapping[str, str]]
    ports: Mapping[int, int] = field(default_factory=dict)

    def config(self) -> str:
        """The text of an ssh_config."""
        lines: list[str] = []
        for host, options in self.hosts.items():
            lines += [f"Host {host}", *(f"  {key} {_quoted(key, value)}" for key, value in options.items())]
        everywhere = "\n".join(f"  {key} {value}" for key, value in _OPTIONS.items())
        return "\n".join([*lines, "Host *", everywhere, ""])

    def command(self, folder: Path, *words: str) -> list[str]:
        """`ssh` with `words`, by the ssh_config that this writes into a folder, for this user alone to read."""
        make_folder(folder)
        config = folder / "ssh_config"
        write_file(config, self.config())
        return ["ssh", "-F", str(config), *words]


def environment() -> dict[str, str]:
    """What ssh needs of this environment, and nothing else: no DSTACK_TOKEN, no keys of other services."""
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def ensure_installed() -> None:
    """Raises: CloudrlError: there is no ssh on this machine."""
    if shutil.which("ssh") is None:
        raise CloudrlError("there is no ssh on this machine", hint="apt-get install openssh-client")


def run(route: Route, folder: Path, command: Sequence[str]) -> bytes:
    """The standard output of a command on the node.

    Raises:
        ConnectionFailed: it does not answer in time, or the command fails; the message has ssh's own last words.
    """
    ensure_installed()
    words = route.command(folder, route.name, *command)
    try:
        done = run_command(words, timeout_s=_TIMEOUT_S, env=environment())
    except Malformed as error:
        raise ConnectionFailed(f"ssh to the head of {route.name!r}: {error}") from None
    except TimeoutError:
        raise ConnectionFailed(
            f"the head of {route.name!r} does not answer through SSH within {duration_text(_TIMEOUT_S)}"
        ) from None
    if done.status != 0:
        reason = last_words(done.stderr.decode("utf-8", "replace"))[:4000] or f"status {done.status}"
        hint = f"cloudrl status {route.name}"
        raise ConnectionFailed(f"ssh to the head of {route.name!r}: {reason}", hint=hint)
    return done.stdout


def last_words(output: str) -> str:
    """The last line of ssh; where a jump has failed, that of the jump. Empty when it has said nothing."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith(_AFTER_A_JUMP)), "".join(lines[-1:]))


def _quoted(key: str, value: str) -> str:
    """A proxy's command is the rest of its line, quotes and all (ssh_config(5))."""
    return f'"{value}"' if " " in value and key != "ProxyCommand" else value
