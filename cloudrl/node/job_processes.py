"""The processes of jobs on this node, sampled from /proc (proc(5)): what they run, and whether they move.

A sample reads three small files of each process, and the list of all processes every half minute: 3 ms for 60 of them.
What works for a job counts too: compilers that a worker has started, sandboxes, the script of a job without Ray.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Set, Tuple

from cloudrl.child_process import descendants
from cloudrl.node.titles import Titles
from cloudrl.protocol.job_work import Halted, JobWork, PhaseNote, SaveNote

_LIST_EVERY_S = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")
_NOISE_CORES, _NOISE_BYTES_PER_S = 0.05, 50_000.0
"""Of a process that only ticks over: an idle worker of Ray takes up to 0.02 cores."""
_HALTED = ("T", "t", "D")
_OURS = re.compile(
    r"^ray::(?!IDLE|JobSupervisor|_\w*Agent|(?:Dashboard|RuntimeEnv)Agent\b|dashboard)\w"
    r"|^(?:VLLM|sglang|pt_data_worker)|\bverl\b"
)
_NOT_OURS = re.compile(r"raylet|gcs_server|dashboard|runtime_env|log_monitor|default_worker|setup_worker|/bin/ray ")
_SUPERVISOR = "ray::JobSupervisor"
_METHOD = re.compile(r"^ray::WorkerDict\.(\S+)")
_PRESSURE = re.compile(r"^some avg10=([0-9.]+)")
MAX_PROCESSES = 256
_TITLE_CHARACTERS = 120


@dataclass
class _Seen:
    """Counters of one process at the sample before."""

    cpu_s: float = 0.0
    io_bytes: int = 0
    state: str = ""
    since: float = 0.0
    wakes: str = ""


@dataclass(frozen=True)
class Listed:
    """A process that belongs to a job, with its title, state and kernel function."""

    pid: int
    title: str
    state: str
    wchan: str = ""


@dataclass
class JobProcesses:
    """Samples again and again, from one thread.

    Args:
        root: where `proc` is.
        belongs: process ids of the cluster on this node.
        note: what the timers of a training on this node say.
        is_paused: whether a task may wait for a debugger.
        saved: what a trainer on this node has saved last.
        clock: seconds that never run backwards.
        now: seconds since the epoch.
    """

    note: Callable[[], Optional[PhaseNote]]
    is_paused: Callable[[], bool]
    saved: Callable[[], Optional[SaveNote]] = lambda: None
    belongs: Callable[[], Set[int]] = lambda: descendants(os.getpid())
    root: Path = Path("/")
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _pids: List[int] = field(default_factory=list)
    _helpers: List[int] = field(default_factory=list)
    _listed_at: float = -_LIST_EVERY_S
    _sampled_at: Optional[float] = None
    _seen: Dict[int, _Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._titles = Titles(self.root)

    def sample(self) -> JobWork:
        """What was done since the sample before."""
        at, before = self.clock(), self._sampled_at
        self._sampled_at = at
        if at - self._listed_at >= _LIST_EVERY_S:
            self._listed_at, self._pids = at, sorted(self.belongs())
            self._helpers = self._below_jobs(self._titles.read(self._pids))
        seconds = at - before if before is not None else 0.0
        cores = rate = 0.0
        halted, methods, seen = [], set(), {}
        for listed in self.listed(self._pids):
            seen[listed.pid] = self._counters(listed.pid, listed.state, at)
            if listed.state in _HALTED:
                lasting_s = round(at - seen[listed.pid].since, 1)
                program = listed.title.split(" ")[0]  # arguments may hold secrets, and heartbeats are not masked
                halted.append(Halted(listed.pid, program, listed.state, lasting_s, listed.wchan))
            if (method := _METHOD.match(listed.title)) is not None:
                methods.add(method[1])
        seen.update((pid, self._counters(pid, "", at)) for pid in self._helpers if pid not in seen)
        for pid, counters in seen.items():
            old = self._seen.get(pid)
            if old is not None and seconds > 0:
                cores += _above(max(0.0, counters.cpu_s - old.cpu_s) / seconds, _NOISE_CORES)
                rate += _above(max(0, counters.io_bytes - old.io_bytes) / seconds, _NOISE_BYTES_PER_S)
        self._seen = seen
        return JobWork(
            round(self.now(), 3), round(cores, 2), round(rate), tuple(sorted(methods)), tuple(halted[:16]),
            self.is_paused(), self.note(), self._cpu_wait_percent(), self.saved(),
        )  # fmt: skip

    def listed(self, pids: Optional[List[int]] = None) -> Tuple[Listed, ...]:
        """The processes of jobs among those of the cluster, at most `MAX_PROCESSES`."""
        found = []
        titles = self._titles.read(sorted(self.belongs()) if pids is None else pids)
        for pid, title in sorted(titles.items()):
            with suppress(OSError, IndexError):
                if _is_of_job(title):
                    state = self._read(pid, "stat").rpartition(")")[2].split()[0]
                    wchan = self._read(pid, "wchan") if state == "D" else ""
                    found.append(Listed(pid, title[:_TITLE_CHARACTERS], state, wchan))
        return tuple(found[:MAX_PROCESSES])

    def _below_jobs(self, titles: Mapping[int, str]) -> List[int]:
        """Processes that those of jobs have started, at most `MAX_PROCESSES`."""
        jobs, parents = set(), {}
        for pid in self._pids:
            with suppress(OSError, IndexError, ValueError):
                parents[pid] = int(self._read(pid, "stat").rpartition(")")[2].split()[1])
                title = titles.get(pid, "")
                if title.startswith(_SUPERVISOR) or _is_of_job(title):
                    jobs.add(pid)
        below: Set[int] = set()
        newest = jobs
        while newest:
            newest = {pid for pid, parent in parents.items() if parent in newest} - below
            below |= newest
        return sorted(below)[:MAX_PROCESSES]

    def _counters(self, pid: int, state: str, at: float) -> _Seen:
        old, counters = self._seen.get(pid), _Seen(state=state, since=at)
        if state == "D":
            counters.wakes = self._wakes(pid)
        if old is not None and (old.state, old.wakes) == (counters.state, counters.wakes):
            counters.since = old.since
        with suppress(OSError, IndexError, ValueError, KeyError):
            words = self._read(pid, "stat").rpartition(")")[2].split()
            counters.cpu_s = sum(map(int, words[11:15])) / _TICKS  # with children that have ended
            lines = dict(line.split(": ") for line in self._read(pid, "io").splitlines())
            counters.io_bytes = int(lines["rchar"]) + int(lines["wchar"])
        return counters

    def _cpu_wait_percent(self) -> float:
        """Linux's pressure of the CPUs (Documentation/accounting/psi.rst); 0 where the kernel does not count it."""
        with suppress(OSError, ValueError):
            found = _PRESSURE.search((self.root / "proc/pressure/cpu").read_text())
            return float(found[1]) if found is not None else 0.0
        return 0.0

    def _wakes(self, pid: int) -> str:
        """How often the main thread has waited: it grows while a slow disk answers, though each look sees state D."""
        with suppress(OSError):
            lines = self._read(pid, "status").splitlines()
            return next((line for line in lines if line.startswith("voluntary_ctxt_switches")), "")
        return ""

    def _read(self, pid: int, name: str) -> str:
        with (self.root / "proc" / str(pid) / name).open(encoding="utf-8", errors="replace") as file:
            return file.read(4096)


def _is_of_job(title: str) -> bool:
    return _OURS.search(title) is not None and _NOT_OURS.search(title) is None


def _above(value: float, noise: float) -> float:
    return value if value > noise else 0.0
