"""Debuggers of a cluster at ports of this machine, for VS Code and other clients of the Debug Adapter Protocol."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from cloudrl.debug import launch
from cloudrl.debug.front import Front
from cloudrl.debug.relay import Relay
from cloudrl.errors import CloudrlError
from cloudrl.private_files import write_file
from cloudrl.protocol.exchange import Response
from cloudrl.protocol.stops import DEBUGPY, Stop
from cloudrl.sdk.callbacks import Notice, OnProgress, silent
from cloudrl.sdk.debugging import PausedTasks, describe

if TYPE_CHECKING:
    from typing_extensions import Self

LAUNCH_FILE = Path(".vscode/launch.json")
_FRONT_PORT = 8267
"""So that the extension finds it again, if it is free."""
_LOOK_S = 3.0


class DebugPorts:
    """A port for each stop, an entry for each in VS Code's launch.json, and a front for Ray's extension.

    A context manager: at its end the ports are closed and the entries gone.

    Args:
        tasks: of the cluster.
        folder: which VS Code has open; its launch.json gets the entries.
        on_progress: receives each new stop, and what to do.
    """

    def __init__(self, tasks: PausedTasks, folder: Path, on_progress: OnProgress = silent) -> None:
        self._tasks, self._on_progress = tasks, on_progress
        self._file = folder / LAUNCH_FILE
        self._relays: dict[tuple[int, int, int], Relay] = {}
        self._stops: dict[tuple[int, int, int], Stop] = {}
        self._addresses = tasks.addresses()
        self._has_failed = self._has_looked = self._has_entries = self._is_new_file = False
        self.front = self._open_front()
        Thread(target=self.front.serve_forever, args=(0.2,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.front.shutdown()
        self.front.server_close()
        for relay in self._relays.values():
            relay.close()
        self._stops = {}
        self._write_entries()

    def keep(self, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Look for new stops until Ctrl-C."""
        while True:
            try:
                self.refresh()
            except CloudrlError as error:
                if not self._has_failed:
                    self._on_progress(Notice(f"{error.message}; asking again", error.hint or ""))
                self._has_failed = True
            else:
                self._has_failed = False
            sleep(_LOOK_S)

    def refresh(self) -> None:
        """Look once: open ports for what is new, and write the entries anew if anything has changed."""
        stops = {_key(stop): stop for stop in self._tasks.stops() if stop.debugger == DEBUGPY}
        # a process that somebody steps through is another stop each time
        new = [
            stop
            for key, stop in stops.items()
            if key not in self._stops or (self._stops[key].id != stop.id and not stop.attached)
        ]
        for stop in new:
            if _key(stop) not in self._relays:
                self._relays[_key(stop)] = Relay(partial(self._tasks.dial, stop))
            self._on_progress(Notice(f"127.0.0.1:{self._relays[_key(stop)].port} leads to {describe(stop)}"))
        # the first time also those go that a session has left which was killed
        changed = stops.keys() != self._stops.keys() or not self._has_looked
        self._stops, self._has_looked = stops, True
        if changed:
            self._write_entries()

    def local_port(self, ip: str, pid: int, port: int) -> int | None:
        """Of the relay that leads to a worker which Ray's dashboard names; None where it is not paused."""
        for (node, its_pid, its_port), relay in self._relays.items():
            if (its_pid, its_port) == (pid, port) and self._addresses.get(node, ip) == ip:
                return relay.port
        return None

    def _open_front(self) -> Front:
        def get(path: str) -> Response:
            return self._tasks.ray().get(path)

        try:
            return Front(get, self.local_port, _FRONT_PORT)
        except OSError:
            return Front(get, self.local_port)

    def _write_entries(self) -> None:
        """A file that cannot be read or written is left alone, and the entries are said."""
        ref = self._tasks.ref
        entries = [launch.entry(stop, self._relays[key].port, ref) for key, stop in self._stops.items()]
        try:
            why = self._write(entries)
        except (OSError, UnicodeDecodeError, RuntimeError) as error:  # the last for links in a circle
            why = getattr(error, "strerror", None) or (
                "it is not text" if isinstance(error, ValueError) else f"{error}"
            )
        if not why:
            self._has_entries = bool(entries)
        elif entries:
            text = json.dumps(entries, indent=4)
            self._on_progress(Notice(f"{self._file} is left as it is ({why}). Add to its configurations:\n{text}"))
        elif self._has_entries:
            name = f"{launch.OURS}{ref}, ..."
            self._on_progress(Notice(f"{self._file} is left as it is ({why}). Remove from its configurations: {name}"))

    def _write(self, entries: Sequence[dict[str, Any]]) -> str:
        """Whole or not at all; returns why not."""
        ports, listens = {relay.port for relay in self._relays.values()}, cache(_listens)

        def is_old(value: Any) -> bool:
            """Ours, or of a session with this cluster that is no more."""
            port = launch.port_of(value, self._tasks.ref)
            return port is not None and (port in ports or not listens(port))

        try:
            old, is_there = self._file.read_bytes().decode(), True
        except FileNotFoundError:
            old, is_there = "", False
        new = launch.merged(old, entries, is_old)
        target = self._file.resolve()  # of a link what it leads to
        if new is None:
            return "it is not JSON as VS Code writes it"
        if new == old:
            return ""
        if is_there and not (target.stat().st_mode & 0o222 and os.access(target, os.W_OK)):
            return "it is read-only"
        if new == launch.EMPTY and self._is_new_file:
            target.unlink()
            return ""
        self._is_new_file = self._is_new_file or not is_there
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if is_there else 0o644
        write_file(target, new, mode=mode)
        if is_there:
            target.chmod(mode)  # whatever the umask
        return ""


def _listens(port: int) -> bool:
    """Whether there is still a relay behind a port; it passes on nothing of this."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _key(stop: Stop) -> tuple[int, int, int]:
    return stop.node, stop.pid, stop.port
