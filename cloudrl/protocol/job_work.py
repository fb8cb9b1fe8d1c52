"""What the processes of jobs do on one node: in heartbeats what is sampled all the time, on request a look at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class EndedPhase:
    """A phase that has ended; `number` grows with each of a job."""

    number: int
    phase: str
    seconds: float


@dataclass(frozen=True)
class PhaseNote:
    """What the timers of a training say.

    Attributes:
        job_id: Ray's own id of the job, "" if unknown.
        phase: that runs.
        since: seconds since the epoch, by the node's clock.
        ended: the last phases before.
    """

    job_id: str
    phase: str
    since: float
    ended: Tuple[EndedPhase, ...] = ()


@dataclass(frozen=True)
class SaveNote:
    """What a trainer has told of its last save.

    Attributes:
        submission_id: of the attempt.
        step: its number.
        folder: `global_step_N`, absolute.
        at: seconds since the epoch, by the node's clock.
        is_async: whether ranks may still be writing.
    """

    submission_id: str
    step: int
    folder: str
    at: float
    is_async: bool = False


@dataclass(frozen=True)
class Halted:
    """A process that is stopped (state T), or waits in the kernel where no signal reaches it (D).

    Attributes:
        title: as Ray writes it into the process, or the name of its program, without arguments.
        seconds: for how long it has been seen so.
        wchan: the function of the kernel that it waits in, "" if unknown.
    """

    pid: int
    title: str
    state: str
    seconds: float
    wchan: str = ""


@dataclass(frozen=True)
class JobWork:
    """All processes of jobs on one node, since the sample before.

    Attributes:
        sampled_at: seconds since the epoch, by the node's clock.
        cores: CPU seconds a second, without processes that only tick over.
        bytes_per_s: that they read and write, sockets included, likewise.
        methods: that Ray's actors run, as their titles say.
        halted: processes that cannot move.
        is_paused: whether a task may wait for a debugger.
        note: of the training whose driver is on this node.
        saved: the last save that a trainer with its controller on this node has told of.
        cpu_wait_percent: share of the last 10 s in which a process of this machine waited for a CPU; 0 if unknown.
    """

    sampled_at: float
    cores: float = 0.0
    bytes_per_s: float = 0.0
    methods: Tuple[str, ...] = ()
    halted: Tuple[Halted, ...] = ()
    is_paused: bool = False
    note: Optional[PhaseNote] = None
    cpu_wait_percent: float = 0.0
    saved: Optional[SaveNote] = None


@dataclass(frozen=True)
class LookedAt:
    """One process of a job, as somebody looked at it.

    Attributes:
        title: as Ray writes it into the process, or its command line.
        state, wchan: as in `Halted`.
        source: where the stacks are from: "py-spy", "SIGUSR2", or "" without any.
        stacks: as they were written; secrets are masked.
        peers: addresses that it is connected to, outside of Ray.
    """

    pid: int
    title: str
    state: str
    wchan: str = ""
    source: str = ""
    stacks: str = ""
    peers: Tuple[str, ...] = ()
