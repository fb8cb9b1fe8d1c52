"""Starts `cloudrl ...` and `dstack ...` without the second of imports that each would need.

`python prefork.py SOCKET` imports both command lines once and forks for each command: a process of its own, with
arguments, folder, environment and output of its own, which runs the program's own entry point. Over the connection
come one JSON line with a file descriptor for the output, then a byte a signal; the exit status goes back.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

PROGRAMS = {"cloudrl": "cloudrl.cli.main", "dstack": "dstack._internal.cli.main"}
_BESIDE = (
    "dstack.api", "dstack._internal.core.services.ssh.attach", "dstack._internal.server.schemas.logs",
    "cloudrl.cli.up", "cloudrl.providers.dstack.provider", "cloudrl.jobs.submit", "cloudrl.logs.causes.finder",
    "cloudrl.sdk.training", "cloudrl.transport",
)  # fmt: skip


def serve(path: str) -> None:
    """Until this process is killed."""
    mains = {name: importlib.import_module(module).main for name, module in PROGRAMS.items()}
    for module in _BESIDE:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for a command is a child of its own
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen(16)
        os.rename(f"{path}.new", path)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(connection, mains)
            connection.close()


def _answer(connection: socket.socket, mains: dict[str, Callable[[], Any]]) -> None:
    """Start one command, pass signals on, say its exit status, and end."""
    line, [output], *_ = socket.recv_fds(connection, 1 << 16, 1)
    request = json.loads(line)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(request, output)
        _run(mains[request["words"][0]])
    os.close(output)
    threading.Thread(target=_pass_signals, args=(connection, pid), daemon=True).start()
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _pass_signals(connection: socket.socket, pid: int) -> None:
    while number := connection.recv(1):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number[0])


def _become(request: dict[str, Any], output: int) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["words"]


def _run(main: Callable[[], Any]) -> None:
    """As the console script does: `sys.exit(main())`."""
    status = 1
    try:
        sys.exit(main())
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
