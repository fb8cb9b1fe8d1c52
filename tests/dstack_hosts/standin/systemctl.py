"""`systemctl`, as far as the server's provisioning of an SSH host calls them.

Source: dstack 0.22.5, _internal/server/services/ssh_fleets/provisioning.py.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .config import SYSTEM_PATH

_UNITS = Path("/etc/systemd/system")
_SHIM_PORT = 10998


def systemctl(words: list[str]) -> int:
    """daemon-reload, enable, start, stop, restart and status; the exit status."""
    command, *units = [word for word in words if not word.startswith("-")]
    unit = units[0][: -len(".service")] if units and units[0].endswith(".service") else "".join(units[:1])
    if command in ("restart", "stop"):
        _stop(unit)
    if command in ("restart", "start") and _supervisor(unit) is None:
        _start(unit)
    if command == "enable":
        _enabled(unit).parent.mkdir(parents=True, exist_ok=True)
        _enabled(unit).touch()
    if command == "status":
        active = _supervisor(unit) is not None
        print("     Active: active (running)" if active else "     Active: failed")
        return 0 if active else 3
    return 0


def is_enabled(unit: str) -> bool:
    """Whether the unit starts with the host."""
    return _enabled(unit).exists()


def _enabled(unit: str) -> Path:
    return _UNITS / "multi-user.target.wants" / f"{unit}.service"


def _pid_file(unit: str) -> Path:
    return Path(f"/run/{unit}.pid")


def _supervisor(unit: str) -> int | None:
    try:
        pid = int(_pid_file(unit).read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _stop(unit: str) -> None:
    pid = _supervisor(unit)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        _wait(lambda: _supervisor(unit) is None, 5.0)


def _start(unit: str) -> None:
    settings = _settings(unit)
    if os.fork() == 0:
        os.setsid()
        _pid_file(unit).write_text(str(os.getpid()))
        _detach_output(Path(f"/var/log/{unit}.log"))
        _supervise(settings)
    # The real unit does not wait. This saves the server's retry, 3 s later.
    _wait(_shim_answers, 5.0)


def _settings(unit: str) -> dict[str, str]:
    lines = (_UNITS / f"{unit}.service").read_text().splitlines()
    return dict(line.strip().split("=", 1) for line in lines if "=" in line)


def _environment(settings: dict[str, str]) -> dict[str, str]:
    environment = {"PATH": SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8"}
    for line in Path(settings["EnvironmentFile"]).read_text().splitlines():
        key, _, value = line.partition("=")
        environment[key] = value.strip().strip('"')
    return environment


def _supervise(settings: dict[str, str]) -> NoReturn:
    """Restart=always. SIGTERM ends it with its child; the child's own children go on, as containers do."""
    child: subprocess.Popen[bytes] | None = None

    def end(_signal: int, _frame: FrameType | None) -> None:
        if child is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child.pid, signal.SIGTERM)
                os.waitpid(child.pid, 0)  # not child.wait(), whose lock the interrupted code below holds
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        command = shlex.split(settings["ExecStart"])
        child = subprocess.Popen(command, cwd=settings["WorkingDirectory"], env=_environment(settings))
        child.wait()
        time.sleep(float(settings.get("RestartSec", "3")))


def _detach_output(log: Path) -> None:
    null, out = os.open("/dev/null", os.O_RDWR), os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)


def _shim_answers() -> bool:
    try:
        socket.create_connection(("127.0.0.1", _SHIM_PORT), 0.2).close()
    except OSError:
        return False
    return True


def _wait(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
