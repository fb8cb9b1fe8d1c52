"""The stops of this node: notes that processes of its jobs leave while they wait for a debugger."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pkgutil
import re
import shutil
import socket
import stat
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from cloudrl.child_process import descendants
from cloudrl.node.startup_hook import write_sitecustomize
from cloudrl.node.stop_hook.stop_notes import started_at
from cloudrl.private_files import make_folder
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.stops import DEBUGPY, PDB, Stop
from cloudrl.protocol.wire import from_json

MAX_NOTES = 1000
"""Of processes that live; a node has some hundred."""
_MAX_ENTRIES = 10_000
_OLD_S = 10.0
_MAX_RANKS = 1 << 20
_MAX_BYTES = 16 * 1024
_CONNECT_S = 5.0
_HOOK = ("__init__.py", "stop_notes.py", "stop_dap.py", "stop_pdb.py", "stop_peer.py")
_LOOPBACK = "0100007F"  # as /proc/net/tcp writes 127.0.0.1
_ESTABLISHED, _LISTEN = "01", "0A"


def debuggers() -> Tuple[str, ...]:
    """Those that a job can be debugged with on this node: pdb is Python's own."""
    try:
        version = metadata.version("debugpy") or ""  # None where the metadata have none
    except (metadata.PackageNotFoundError, KeyError, ValueError, OSError):
        return (PDB,)
    match = re.match(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?", version)
    is_new = match is not None and (int(match[1]), int(match[2] or 0)) >= (1, 8)  # as Ray asks for
    return (DEBUGPY, PDB) if is_new else (PDB,)


def ready(
    stops: Stops, env: Mapping[str, str], *, tell: Callable[..., object], warn: Callable[[str], object]
) -> Dict[str, str]:
    """Prepare for jobs that are debugged; what fails in it costs debuggers alone.

    Args:
        stops: of the node.
        env: of the node, too.
        tell: takes the debuggers that there are, for the node's report.
        warn: gets the reason for an empty list.
    """
    try:
        variables = stops.prepare(env)
    except OSError as error:
        tell(debuggers=())
        warn(f"warning: jobs cannot be debugged on this node: {error}")
        return {}
    tell(debuggers=debuggers())
    return variables


class Stops:
    """The folder with the notes, and what stands beside it for the jobs.

    Args:
        folder: of this node alone.
        rank: of the node.
        belongs: process ids of the cluster on this node.
    """

    def __init__(
        self, folder: Path, rank: int, *, belongs: Callable[[], Set[int]] = lambda: descendants(os.getpid())
    ) -> None:
        self._notes, self._hook = folder / f"stops-{rank}", folder / f"debug-{rank}"
        self._rank, self._belongs = rank, belongs

    def prepare(self, env: Mapping[str, str]) -> Dict[str, str]:
        """Make the folders; returns the variables of Ray that a job with `--debug` refers to.

        Raises:
            OSError: they cannot be written.
        """
        for folder in (self._notes, self._hook):
            make_folder(folder)
        for left in self._notes.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        package = self._hook / "cloudrl_stop_hook"
        package.mkdir(exist_ok=True)
        for name in _HOOK:
            (package / name).write_bytes(pkgutil.get_data("cloudrl.node.stop_hook", name) or b"")
        write_sitecustomize(self._hook, "cloudrl_stop_hook", "this process cannot be debugged")
        path = os.pathsep.join(filter(None, [str(self._hook), env.get("PYTHONPATH")]))
        return {
            "CLOUDRL_STOPS_DIR": str(self._notes),
            "CLOUDRL_DEBUGGER_DIR": str(self._hook),
            "CLOUDRL_DEBUGGER_PYTHONPATH": path,
        }

    def listing(self) -> Tuple[Stop, ...]:
        """Those that wait now, the oldest first."""
        sockets = _sockets()
        listening = {port for port, state in sockets if state == _LISTEN}
        connected = {port for port, state in sockets if state == _ESTABLISHED}
        stops = [self._stop(note, connected) for note in self._living() if note["port"] in listening]
        return tuple(sorted(filter(None, stops), key=lambda stop: stop.since))

    @property
    def has_notes(self) -> bool:
        """Whether a process may wait for a debugger: cheaper than `listing`, and also true for a moment longer."""
        return bool(self._paths())

    def connect(self, port: int) -> socket.socket:
        """A connection to the debugger at a port of the loopback, for which a process of this cluster waits.

        Raises:
            ApiError: no stop names this port, or it does not answer.
        """
        if not any(stop.port == port for stop in self.listing()):
            raise ApiError(ErrorCode.NO_DEBUGGER, f"no process waits for a debugger at port {port} of this node")
        try:
            return socket.create_connection(("127.0.0.1", port), _CONNECT_S)
        except OSError as error:
            raise ApiError(ErrorCode.NO_DEBUGGER, f"the debugger at port {port} does not answer: {error}") from error

    def _living(self) -> Iterable[Dict[str, Any]]:
        """Notes of processes that live and are ours; those of the dead, and what is not a note, are removed."""
        ours: Optional[Set[int]] = None
        count = 0
        for path in self._paths():
            note = _read(path)
            if note is None:
                _remove_if_old(path)
                continue
            ours = self._belongs() if ours is None else ours
            try:
                is_alive = started_at(note["pid"]) == note.get("started")
            except (FileNotFoundError, ProcessLookupError):
                is_alive = False
            except (OSError, ValueError, IndexError):
                continue  # one look says too little to remove it
            if not is_alive:
                with contextlib.suppress(OSError):
                    path.unlink()
            elif note["pid"] in ours:
                count += 1
                yield note
            if count == MAX_NOTES:
                return

    def _paths(self) -> List[Path]:
        try:
            with os.scandir(self._notes) as entries:
                return sorted(Path(entry.path) for entry in itertools.islice(entries, _MAX_ENTRIES))
        except OSError:
            return []

    def _stop(self, note: Dict[str, Any], connected: Set[int]) -> Optional[Stop]:
        fields = {**note, "node": self._rank, "attached": note["port"] in connected}
        try:
            stop = from_json(Stop, fields)
        except ValueError:
            return None
        is_port, is_time = 0 < stop.port < 1 << 16, 0 < stop.since <= time.time() + 60
        is_rank = stop.rank is None or 0 <= stop.rank < _MAX_RANKS
        return stop if is_port and is_time and is_rank else None


def _remove_if_old(path: Path) -> None:
    """What is not a note, unless it is being written, or another user's."""
    with contextlib.suppress(OSError):
        about = path.lstat()
        if about.st_uid == os.getuid() and time.time() - about.st_mtime > _OLD_S:
            path.unlink()


def _read(path: Path) -> Optional[Dict[str, Any]]:
    """A note as a process has left it: a small regular file of our own user's."""
    if path.suffix != ".json":
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_size > _MAX_BYTES:
            return None
        try:
            note = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
    is_note = isinstance(note, dict) and type(note.get("pid")) is int and type(note.get("port")) is int
    return note if is_note else None


def _sockets() -> Set[Tuple[int, str]]:
    """Port and state of all sockets of this user that are bound to 127.0.0.1 (proc(5), /proc/net/tcp)."""
    sockets: Set[Tuple[int, str]] = set()
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return sockets
    for line in lines:
        words = line.split()
        address, _, port = words[1].partition(":")
        if address == _LOOPBACK and words[7] == str(os.getuid()):
            sockets.add((int(port, 16), words[3]))
    return sockets
