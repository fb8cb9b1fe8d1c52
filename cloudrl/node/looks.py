"""Looks at the processes of jobs on this node: notes of their phase, stacks of their threads, their connections."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Collection, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from cloudrl.node.background import within
from cloudrl.node.job_processes import JobProcesses, Listed
from cloudrl.node.masking import Masker
from cloudrl.node.save_hook import WISH
from cloudrl.node.startup_hook import write_sitecustomize
from cloudrl.private_files import make_folder, write_file
from cloudrl.protocol.folders import ON_HEAD, SAVE_HOOK
from cloudrl.protocol.job_work import LookedAt, PhaseNote, SaveNote
from cloudrl.protocol.wire import from_json

VARIABLE = "CLOUDRL_LOOKS_DIR"
_MODULE = "cloudrl_look_hook"
_COUNTS_VARIABLE, COUNTS_EVERY_S = "VERL_REPLAY_BUFFER_DEBUG_INTERVAL_SECONDS", 30
"""How often verl says how many prompts of a rollout are unfinished (0.9.1, trainer/ppo/v1/replay_buffer.py: 60 s)."""
_PY_SPY_S, _KILL_S, _SIGNAL_S, _POLL_S = 10.0, 2.0, 2.0, 0.05
_LOOK_S = 30.0
"""Then no further stack is taken: rank 0 waits for the look, and its own samples wait meanwhile."""
_QUIET_S, _QUIET_TICKS = 0.5, 2
"""`faulthandler` reads the frames of all threads without the GIL. A thread that runs Python meanwhile may free them,
and the process dies of SIGSEGV (Python 3.11: 1 of 1,000 signals to a process with five busy threads). So only a process
that computes next to nothing is signalled."""
_STACK_BYTES, _NOTE_BYTES = 64 << 10, 16 << 10
_SAVE_NOTE_S = 60.0
_MOST_PEERS = 16
_MOST_LOOKS = 48
"""Processes whose stacks are taken in one look; a node with 8 GPUs has about 30."""
_FIRST = ("ray::TaskRunner", "ray::WorkerDict", "ray::RewardLoop", "ray::AgentLoop", "VLLM", "ray::vLLM", "ray::SGLang")
_STACKS = re.compile(r"([0-9]+)-([0-9]+)\.stacks")
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-fA-F]+)$", re.MULTILINE)
_ESTABLISHED = "01"


class Looks:
    """The folder in which processes of jobs leave notes and stacks, and the looks at them.

    Args:
        folder: of this node alone.
        rank: of the node.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._hook = folder / f"looks-{rank}", folder / f"look-hook-{rank}"
        self._held: Set[int] = set()
        """Processes that py-spy still reads."""
        self._wished = ""

    def prepare(self, env: Mapping[str, str]) -> Dict[str, str]:
        """Make the folders; returns the variables with which Ray is to be started.

        Raises:
            OSError: they cannot be written.
        """
        for folder in (self._folder, self._hook):
            make_folder(folder)
        for left in self._folder.iterdir():
            left.unlink()
        for name, source in ((_MODULE, "look_hook.py"), (ON_HEAD, "main_on_head.py"), (SAVE_HOOK, "save_hook.py")):
            (self._hook / f"{name}.py").write_bytes(pkgutil.get_data("cloudrl.node", source) or b"")
        write_sitecustomize(self._hook, _MODULE, "hangs of this process are seen without its stacks")
        path = os.pathsep.join(filter(None, [str(self._hook), env.get("PYTHONPATH")]))
        counts = env.get(_COUNTS_VARIABLE) or str(COUNTS_EVERY_S)
        return {VARIABLE: str(self._folder), "PYTHONPATH": path, _COUNTS_VARIABLE: counts}

    def note(self) -> Optional[PhaseNote]:
        """The newest note of a training that runs; files of processes that have ended are removed."""
        notes = []
        for path in self._files():
            if path.name == WISH or (path.suffix == ".save" and _is_new(path)):
                continue
            pid = re.match(r"[0-9]+", path.name)
            if pid is None or not Path("/proc", pid[0]).exists():
                with contextlib.suppress(OSError):
                    path.unlink()
            elif path.suffix == ".phase":
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
                    notes.append(_note(_read(path, _NOTE_BYTES)))
        return max(notes, key=lambda note: note.since, default=None)

    def saved(self) -> Optional[SaveNote]:
        """What a trainer on this node has told of its last save; None without one that runs."""
        notes = []
        for path in self._files():
            if path.suffix == ".save":
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
                    notes.append(from_json(SaveNote, json.loads(_read(path, _NOTE_BYTES))))
        return max(notes, key=lambda note: note.at, default=None)

    def wish(self, text: str) -> None:
        """Leave word for the trainers on this node; the same word once more changes nothing."""
        if text != self._wished:
            with contextlib.suppress(OSError):  # asked again with the next heartbeat
                write_file(self._folder / WISH, text)
                self._wished = text

    def look(self, processes: JobProcesses, masker: Masker, nodes: Collection[str]) -> Tuple[LookedAt, ...]:
        """Stacks and connections of the processes of jobs, those of trainers and their workers first.

        Args:
            processes: of this node.
            masker: of secrets.
            nodes: addresses of the cluster, of which connections are Ray's and verl's own.
        """
        chosen = sorted(processes.listed(), key=lambda process: not process.title.startswith(_FIRST))[:_MOST_LOOKS]
        sockets = outside_sockets(processes.belongs(), nodes)
        stacks = self._stacks(chosen)

        def masked(text: str) -> str:
            return masker.mask(text.encode(errors="replace")).decode(errors="replace")

        return tuple(
            LookedAt(
                process.pid, masked(process.title), process.state, process.wchan, source, masked(text),
                _peers(process.pid, sockets),
            )
            for process, (source, text) in zip(chosen, stacks)  # noqa: B905  Python 3.9
        )  # fmt: skip

    def _stacks(self, processes: Sequence[Listed]) -> List[Tuple[str, str]]:
        """(source, text) of each: by py-spy where it may, else by SIGUSR2 where the process catches it and is quiet."""
        deadline = time.monotonic() + _LOOK_S
        texts = [self._by_py_spy(process.pid) if time.monotonic() < deadline else "" for process in processes]
        left = [process.pid for process, text in zip(processes, texts) if not text]  # noqa: B905  Python 3.9
        quiet = _quiet(left) if left else set()
        found = []
        for process, text in zip(processes, texts):  # noqa: B905  Python 3.9
            if text:
                found.append(("py-spy", text))
            elif process.pid in quiet and time.monotonic() < deadline and (signalled := self._by_signal(process)):
                found.append(("SIGUSR2", signalled))
            else:
                found.append(("", ""))
        return found

    def _by_py_spy(self, pid: int) -> str:
        """py-spy reads the process's memory: where the kernel has locked it, SIGKILL does not end py-spy either."""
        if pid in self._held:
            return ""
        found: List[str] = []

        def dump() -> None:
            try:
                found.append(_py_spy(pid))
            finally:
                self._held.discard(pid)

        self._held.add(pid)
        within(_PY_SPY_S + _KILL_S, dump)
        return found[0] if found else ""

    def _by_signal(self, process: Listed) -> str:
        """Unregistered, SIGUSR2 kills: only a process that catches it, and still has its file open, gets one."""
        path = next((path for path in self._files() if _is_of(path, process.pid)), None)
        if path is None or process.state in "TtD" or not _catches(process.pid):
            return ""
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
            os.kill(process.pid, signal.SIGUSR2)
            size, deadline = -1, time.monotonic() + _SIGNAL_S
            while time.monotonic() < deadline:
                time.sleep(_POLL_S)
                before, size = size, path.stat().st_size
                if size == before > 0:
                    break
            return _read(path, _STACK_BYTES)
        return ""

    def _files(self) -> List[Path]:
        try:
            return sorted(self._folder.iterdir())
        except OSError:
            return []


def _py_spy(pid: int) -> str:
    beside = Path(sys.executable).parent / "py-spy"
    command = str(beside) if beside.exists() else shutil.which("py-spy")
    if command is None:
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [command, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)],
            capture_output=True,
            timeout=_PY_SPY_S,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout[:_STACK_BYTES].decode("utf-8", "replace")
    return ""


def _quiet(pids: Sequence[int]) -> Set[int]:
    """Those that compute next to nothing for a moment."""
    before = {pid: _ticks(pid) for pid in pids}
    time.sleep(_QUIET_S)
    after = {pid: _ticks(pid) for pid in pids}
    return {pid for pid in pids if -1 < after[pid] <= before[pid] + _QUIET_TICKS}


def _ticks(pid: int) -> int:
    """CPU time of a process, -1 if it has ended."""
    try:
        words = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return -1
    return int(words[11]) + int(words[12])


def _catches(pid: int) -> bool:
    try:
        caught = _CAUGHT.search(Path("/proc", str(pid), "status").read_text())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) & 1 << (signal.SIGUSR2 - 1))


def _is_of(path: Path, pid: int) -> bool:
    """Whether the file is that of the process, which still has it open under the same descriptor."""
    match = _STACKS.fullmatch(path.name)
    if match is None or int(match[1]) != pid:
        return False
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "fd", match[2]).samefile(path)
    return False


def _read(path: Path, limit_bytes: int) -> str:
    """A regular file of our own, as far as `limit_bytes`; no link is followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(str(path))
        return file.read(limit_bytes).decode("utf-8", "replace")


def _is_new(path: Path) -> bool:
    """Whether it was written so lately that this node's samples may not have it yet, though its process has ended."""
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime < _SAVE_NOTE_S
    return False


def _note(text: str) -> PhaseNote:
    value = json.loads(text)
    ended = [{"number": number, "phase": phase, "seconds": seconds} for number, phase, seconds in value["ended"]]
    return from_json(PhaseNote, {**value, "ended": ended})


def outside_sockets(pids: Iterable[int], nodes: Collection[str]) -> Dict[str, str]:
    """Inode -> peer of all connections that lead out of the cluster (proc(5), /proc/net/tcp; IPv4).

    Args:
        pids: of the cluster's processes on this node; whoever is connected to one of them is within.
        nodes: addresses of other nodes.
    """
    rows = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            rows[words[9]] = _address(words[1]), _address(words[2]), words[3]
    own = {rows[inode][0] for pid in pids for inode in _inodes(pid) if inode in rows}
    return {
        inode: peer
        for inode, (_, peer, state) in rows.items()
        if state == _ESTABLISHED and peer not in own and peer.rpartition(":")[0] not in nodes
    }


def _address(words: str) -> str:
    """`0100007F:7147` as `127.0.0.1:28999`."""
    address, _, port = words.partition(":")
    return f"{'.'.join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0))}:{int(port, 16)}"


def _inodes(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                link = str(Path(entry.path).readlink())
                if link.startswith("socket:["):
                    yield link[8:-1]


def _peers(pid: int, sockets: Mapping[str, str]) -> Tuple[str, ...]:
    """Addresses outside of the cluster that a process is connected to."""
    return tuple(dict.fromkeys(sockets[inode] for inode in _inodes(pid) if inode in sockets))[:_MOST_PEERS]
