"""The stacks of a job's processes as a person reads them: what works first, equal ones once, idle ones counted.

Pure functions. What a process runs is read by `cloudrl.hangs.stacks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloudrl.hangs.blame import STOPPED, UNINTERRUPTIBLE, Process
from cloudrl.hangs.stacks import Thread, parse, threads_at_work
from cloudrl.protocol.job_phases import Blame
from cloudrl.protocol.job_work import LookedAt
from cloudrl.protocol.ranks import names_text

_DRIVER = "TaskRunner"
_MOST_NAMES = 200
"""Characters of a list of processes or threads."""
_Place = tuple[int, int]
"""The rank of a node, and the id of a process on it."""


@dataclass(frozen=True)
class _Group:
    """Processes of one actor that stand at the same places.

    Attributes:
        threads: those at work, without the libraries that have called them.
        idle_threads: of all processes together.
        reason: why they hold up the others; "" if they do not, or that is unknown.
    """

    processes: Sequence[Process]
    threads: tuple[Thread, ...]
    idle_threads: int
    reason: str = ""

    @property
    def order(self) -> tuple[bool, bool, bool, int]:
        """Who holds up the others first, then who cannot move, the driver, and those that differ from the most."""
        first = self.processes[0]
        is_driver = first.actor.startswith(_DRIVER)
        return not self.reason, not _halted(first), not is_driver, len(self.processes)


def stack_lines(nodes: Iterable[tuple[int, str, Sequence[LookedAt]]], blame: Sequence[Blame]) -> list[str]:
    """All processes of a job, in as few lines as an engineer needs.

    Args:
        nodes: (rank, address, processes) of each.
        blame: who holds up the others, if two looks have found that.
    """
    processes = [
        Process(rank, each.pid, each.title, each.state, host, each.wchan, parse(each.stacks), each.peers)
        for rank, host, looked in nodes
        for each in looked
    ]
    reasons = {(found.rank, found.pid): found.reason for found in blame if found.rank is not None}
    groups = sorted(_groups(processes, reasons), key=lambda group: group.order)
    shown = [group for group in groups if group.threads or group.reason or _halted(group.processes[0])]
    rest = [process for process in processes if not any(process in group.processes for group in shown)]
    lines = [line for group in shown for line in _lines(group)]
    unread = [process for process in rest if not process.threads]
    waiting = [process for process in rest if process.threads]
    if waiting:
        lines += [f"Idle: {_names(waiting)}"]
    if unread:
        lines += [f"No stacks, as the process computes, is no Python or could not be read: {_names(unread)}"]
    return lines


def _groups(processes: Sequence[Process], reasons: Mapping[_Place, str]) -> Iterable[_Group]:
    found: dict[tuple[object, ...], list[Process]] = {}
    for process in processes:
        stacks = sorted(tuple(map(str, thread.frames)) for thread in _at_work(process))
        reason = reasons.get((process.rank, process.pid), "")
        found.setdefault((_name(process), process.state in STOPPED, reason, *stacks), []).append(process)
    for key, group in found.items():
        threads = _at_work(group[0])
        idle = sum(len(process.threads) for process in group) - len(threads) * len(group)
        yield _Group(group, threads, idle, str(key[2]))


def _at_work(process: Process) -> tuple[Thread, ...]:
    """The threads at work, each from its innermost frame to the outermost of verl's or the user's."""
    threads = []
    for thread in threads_at_work(process.threads):
        last = max(at for at, frame in enumerate(thread.frames) if not frame.is_library)
        threads.append(Thread(thread.name, thread.frames[: last + 1]))
    return tuple(threads)


def _lines(group: _Group) -> Iterable[str]:
    first, count = group.processes[0], len(group.processes)
    if count == 1:
        head = f"{_name(first)}, pid {first.pid} on rank {first.rank} ({first.host})"
    else:
        head = f"{_name(first)}, {count} processes on {_pids(group.processes)}"
    state = f", {_halted(first)}" if _halted(first) and not group.reason else ""
    yield head + state + (f": holds up the job, {group.reason}" if group.reason else "")
    peers = dict.fromkeys(peer for process in group.processes for peer in process.peers)
    if peers:
        yield f"  is connected to {names_text([*peers], _MOST_NAMES)}"
    stacks: dict[tuple[str, ...], list[str]] = {}
    for thread in group.threads:
        stacks.setdefault(tuple(map(str, thread.frames)), []).append(thread.name)
    for frames, names in stacks.items():
        if len(stacks) > 1 or len(names) > 1:
            known = names_text([name or "without a name" for name in names], _MOST_NAMES)
            yield f"  {'thread' if len(names) == 1 else f'{len(names)} threads:'} {known}"
        yield from (f"    {frame}" for frame in frames)
    if group.idle_threads:
        yield f"    and {group.idle_threads} idle thread{'s' * (group.idle_threads != 1)}"
    yield ""


def _halted(process: Process) -> str:
    if process.state in STOPPED:
        return f"stopped (state {process.state})"
    if process.state == UNINTERRUPTIBLE:
        return f"waits in the kernel ({process.wchan or 'state D'})"
    return ""


def _name(process: Process) -> str:
    return f"{process.actor}.{process.method}" if process.method else process.actor


def _pids(processes: Sequence[Process]) -> str:
    by_rank: dict[int, list[str]] = {}
    for process in processes:
        by_rank.setdefault(process.rank, []).append(str(process.pid))
    return names_text([f"rank {rank} ({' '.join(pids)})" for rank, pids in sorted(by_rank.items())], _MOST_NAMES)


def _names(processes: Sequence[Process]) -> str:
    """Each kind once: `WorkerDict: rank 0 (305), rank 1 (306); HfServer: rank 0 (307)`."""
    kinds: dict[str, list[Process]] = {}
    for process in processes:
        kinds.setdefault(process.actor, []).append(process)
    return "; ".join(f"{kind}: {_pids(group)}" for kind, group in kinds.items())
