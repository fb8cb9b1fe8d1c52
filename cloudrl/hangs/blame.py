"""Who keeps the others of a job waiting, from one look at its processes. Pure functions.

One look may catch a healthy job between two calls: of 14 looks at a training that went on, 3 named somebody, never the
same twice. So only what two looks name alike is reported, see `same`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloudrl.hangs.stacks import (
    Frame,
    Thread,
    collective,
    first_own,
    is_forked,
    loader_frames,
    phase_of,
    threads_at_work,
    work_frames,
)  # fmt: skip
from cloudrl.protocol.job_phases import Blame, JobPhase

_TITLE = re.compile(r"^ray::(?:IDLE\b)?([^.\s]*)(?:\.(\S+))?")
_ROLLOUT_ACTORS = ("RewardLoopWorker", "AgentLoopWorker", "RewardManagerWorker", "HfServer", "vLLM", "SGLang", "GenRM")
_DRIVER = "TaskRunner"
_WORKER = "WorkerDict"
_ROLLOUT = (str(JobPhase.GEN), str(JobPhase.REWARD), str(JobPhase.TESTING))
_OF_THE_DRIVER = (str(JobPhase.DATA), str(JobPhase.ADV), str(JobPhase.STEP))
_RAY_WAITS = ("get (ray/_private/worker.py", "wait (ray/_private/worker.py", "get_objects (ray/_private/worker.py")
_VERL = "verl/"
_MOST = 4
"""Blamed at once; more than that is a state of the whole job."""
STOPPED = ("T", "t")
UNINTERRUPTIBLE = "D"


@dataclass(frozen=True)
class Process:
    """One process of a job at one moment.

    Attributes:
        rank, host: of its node.
        title: as Ray writes it into the process: `ray::WorkerDict.actor_rollout_update_actor`, or a command line.
        state: of proc(5), /proc/PID/stat.
        wchan: the function of the kernel that it waits in, "" if unknown.
        threads: its stacks; empty where none could be had.
        peers: addresses outside of the cluster that it is connected to.
        text: the stacks as they were written.
    """

    rank: int
    pid: int
    title: str
    state: str = "S"
    host: str = ""
    wchan: str = ""
    threads: tuple[Thread, ...] = ()
    peers: tuple[str, ...] = ()
    text: str = ""

    @property
    def actor(self) -> str:
        """The class of the actor, or the first word of the command line."""
        match = _TITLE.match(self.title)
        return match[1] if match is not None else self.title.split(" ")[0]

    @property
    def method(self) -> str:
        """What the actor runs, "" while it waits for a call."""
        match = _TITLE.match(self.title)
        return (match[2] or "") if match is not None else ""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Of the thread at work, innermost first."""
        return work_frames(self.threads)

    def blamed(self, reason: str, frame: Frame | None = None) -> Blame:
        """That this process keeps the others waiting."""
        where = str(frame) if frame is not None else ""
        return Blame(self.rank, self.actor, reason, self.pid, self.host, self.method, where)


@dataclass(frozen=True)
class Finding:
    """What one look says.

    Attributes:
        phase: in which the driver is by its stack, None if that does not tell.
        blame: who keeps the others waiting, the surest first.
        waiting: how many wait, and where, "" if unknown.
    """

    phase: str | None = None
    blame: tuple[Blame, ...] = ()
    waiting: str = ""


def find(processes: Sequence[Process], phase: str) -> Finding:
    """What one look at all processes of a job says.

    Args:
        processes: of all nodes.
        phase: of the job, as its timers say; the driver's stack may say it more closely.
    """
    loaders = [process for process in processes if loader_frames(process.frames) is not None]
    actors = [process for process in processes if not is_forked(process.threads) and process not in loaders]
    driver = next((process for process in actors if process.actor.startswith(_DRIVER)), None)
    of_stack = phase_of(driver.frames) if driver is not None else None
    finding = [*_halted(processes)]
    apart, waiting = _apart(actors)
    halted = {(found.rank, found.pid) for found in finding}
    finding += [blame for blame in apart if (blame.rank, blame.pid) not in halted]
    now = of_stack or phase
    if not finding and now in _ROLLOUT:
        finding += _rollout(processes)
    if not finding and now == JobPhase.DATA:
        finding += _loaders(loaders)
    if not finding and driver is not None and (now in _OF_THE_DRIVER or of_stack is None):
        finding += _driver(driver)
    places = {_place(blame): blame for blame in reversed(finding)}  # several threads at one place are one
    return Finding(of_stack, tuple(reversed([*places.values()]))[:_MOST], waiting)


def same(before: Iterable[Blame], now: Iterable[Blame]) -> tuple[Blame, ...]:
    """Of what a look blames, what an earlier one blamed too, at the same place."""
    known = {_place(blame) for blame in before}
    return tuple(blame for blame in now if _place(blame) in known)


def fingerprint(processes: Sequence[Process]) -> tuple[object, ...]:
    """Equal for two looks between which no stack, title or state has changed; () where no stack was to be had."""
    at_work = [
        (process.rank, process.pid, process.title, tuple(map(str, process.frames)))
        for process in processes
        if process.threads
    ]
    return tuple(sorted(at_work))


def _halted(processes: Sequence[Process]) -> Iterable[Blame]:
    for process in processes:
        own = first_own(process.frames)
        if process.state in STOPPED:
            yield process.blamed(f"is stopped (state {process.state}: SIGSTOP, a debugger or a frozen container)", own)
        elif process.state == UNINTERRUPTIBLE:
            where = f" ({process.wchan})" if process.wchan not in ("", "0") else ""
            yield process.blamed(f"waits in the kernel{where} for a disk, a share or the GPU's driver", own)


def _apart(processes: Sequence[Process]) -> tuple[list[Blame], str]:
    """Ranks of a collective call that are not in a collective, while the others wait in one."""
    workers = [process for process in processes if process.actor == _WORKER]
    calls = [process for process in workers if process.method and process.frames]
    waits = [process for process in calls if collective(process.frames) is not None]
    apart = [process for process in calls if process not in waits]
    idle = [process for process in workers if not process.method]
    waiting = _waiting_text(waits)
    if not waits and not (idle and apart):
        return [], ""
    reason = (
        "has not reached the collective that the others wait in"
        if waits
        else "has not finished a call that the other ranks have finished"
    )
    return [process.blamed(reason, first_own(process.frames)) for process in apart], waiting


def _waiting_text(waits: Sequence[Process]) -> str:
    if not waits:
        return ""
    where = collective(waits[0].frames)
    return f"{len(waits)} {'rank waits' if len(waits) == 1 else 'ranks wait'} in {where}"


def _rollout(processes: Sequence[Process]) -> Iterable[Blame]:
    """Threads of reward and rollout that stand in somebody's code, or connections that wait for an answer."""
    actors = [process for process in processes if process.actor.startswith(_ROLLOUT_ACTORS)]
    found = False
    for process in actors:
        threads = [thread.frames for thread in threads_at_work(process.threads) if not _is_entry(thread.frames)]
        own = [frame for frame in map(first_own, threads) if frame is not None]
        for frame in [frame for frame in own if not frame.file.startswith(_VERL)] or own:  # verl's calls the user's
            found = True
            yield process.blamed("has not returned", frame)
    for process in actors if not found else ():
        if process.peers:
            yield process.blamed(f"waits for an answer from {', '.join(process.peers[:2])}")


def _is_entry(frames: Sequence[Frame]) -> bool:
    """Whether the thread stands in a loop of Ray's or asyncio's that was started from verl's code."""
    return frames[0].is_library and all(frame.is_library for frame in frames[:-2])


def _loaders(loaders: Sequence[Process]) -> Iterable[Blame]:
    """Workers of the data loader in which the user's code stands."""
    for process in loaders:
        own = first_own(loader_frames(process.frames) or ())
        if own is not None:
            yield process.blamed("has not returned its batch to the data loader", own)


def _driver(driver: Process) -> Iterable[Blame]:
    """The driver itself, unless it waits for Ray, and so for somebody else."""
    frames = driver.frames
    own = first_own(frames)
    if own is None or any(str(frame).startswith(_RAY_WAITS) for frame in frames[:6]):
        return
    others = [thread for thread in threads_at_work(driver.threads) if thread.frames != frames]
    held = f"; another of its threads is in {first_own(others[0].frames)}" if others else ""
    yield driver.blamed(f"has not returned{held}", own)


def _place(blame: Blame) -> tuple[object, ...]:
    return blame.rank, blame.pid, blame.actor, blame.method, blame.frame
