"""What is known of a failed job: Ray's state, and the ends of logs."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from cloudrl.logs.causes.printed import Stream, read_streams, shortened
from cloudrl.logs.causes.times import times_ms
from cloudrl.protocol.oom_kills import OomKills
from cloudrl.protocol.ray_state import RayState

LAST_LINES = 1000
"""Of each log, in which the cause is looked for."""

Row: TypeAlias = Mapping[str, Any]
"""One entry of Ray's state: a task, a worker, an actor or a node."""


@dataclass(frozen=True)
class LogTail:
    """The last lines of one log.

    Attributes:
        name: as Ray names it: `job-driver-ID.log`, `worker-WORKER-JOB-PID.err`, `raylet.out`.
        rank: of the node that has it.
        lines: the last ones, without their ends.
        modified_ms: when it was written to last; None if unknown.
        utc_offset_s: how far the clock of its node is ahead of UTC.
    """

    name: str
    rank: int | None
    lines: tuple[str, ...]
    modified_ms: float | None = None
    utc_offset_s: float = 0.0

    @property
    def is_driver(self) -> bool:
        """Whether it is the output of the job's driver, where Ray repeats what the workers print."""
        return self.name.startswith("job-driver-")

    @property
    def pid(self) -> int | None:
        """Of the worker that has written it; None for other logs."""
        pid = self.name.rpartition(".")[0].rpartition("-")[2]
        return int(pid) if self.name.startswith("worker-") and pid.isdecimal() else None

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """What each process has printed into it."""
        return read_streams(self.lines)

    @cached_property
    def times_ms(self) -> tuple[float | None, ...]:
        """When each line was written, as far as the log says it."""
        return times_ms(self.lines, self.utc_offset_s)


def last_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """The end of a log, as much of it as is looked at: a log may be of any length, and so may each line."""
    return tuple(deque(map(shortened, lines), maxlen=LAST_LINES))


@dataclass(frozen=True)
class AgentLog:
    """The end of what the agent of a node has logged."""

    rank: int
    lines: tuple[str, ...]


LOST = RayState(saved_at=0.0, job={})


@dataclass(frozen=True)
class Evidence:
    """All that is left of a job. Any part may be missing: a dead head takes the state with it.

    Attributes:
        state: Ray's at the job's end; `LOST` if Ray has forgotten it.
        ranks: ids of nodes -> their ranks.
        logs: of the job's processes and of the raylets.
        agents: what the agents of a cluster that is gone have logged; of its last start.
        cluster_is_over: whether it is known that its agents do not run any more.
        oom_kills: rank -> processes that the kernel of its node has ended for lack of memory.
    """

    state: RayState = LOST
    ranks: Mapping[str, int] = field(default_factory=dict)
    logs: Sequence[LogTail] = ()
    agents: Sequence[AgentLog] = ()
    cluster_is_over: bool = False
    oom_kills: Mapping[int, OomKills] = field(default_factory=dict)

    @property
    def was_running(self) -> bool:
        """Whether the job had not ended when Ray was asked a last time."""
        return self.state.job.get("status") in ("RUNNING", "PENDING")

    @property
    def ended_ms(self) -> float | None:
        """When the job ended."""
        ended = self.state.job.get("end_time")
        return float(ended) if isinstance(ended, int | float) and ended else None

    def rank_of(self, node_id: str | None) -> int | None:
        """The rank of a node; None where it is not known."""
        return self.ranks.get(node_id) if node_id else None

    def rank_of_process(self, ip: str | None, pid: int | None) -> int | None:
        """The rank of the node with that address, else of the one whose logs have that process."""
        at = [node.get("node_id") for node in self.state.nodes if ip and node.get("node_ip") == ip]
        if len(at) == 1:
            return self.rank_of(at[0])
        ranks = {log.rank for log in self.logs if pid and log.pid == pid}
        return ranks.pop() if len(ranks) == 1 else None

    def logs_of(self, worker_id: str | None, pid: int | None, rank: int | None) -> list[LogTail]:
        """What a process has written: its errors first, then its output."""
        own = [log for log in self.logs if _is_of(log, worker_id, pid, rank)]
        return sorted(own, key=lambda log: not log.name.endswith(".err"))


def _is_of(log: LogTail, worker_id: str | None, pid: int | None, rank: int | None) -> bool:
    if not log.name.startswith("worker-"):
        return False
    if worker_id:
        return log.name.startswith(f"worker-{worker_id}-")
    return pid is not None and log.rank == rank and log.pid == pid
