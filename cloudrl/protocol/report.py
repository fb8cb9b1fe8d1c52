"""What one node says of itself, and what rank 0 says of the cluster: in heartbeats, their replies and the status."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from cloudrl.protocol.compute import NodeCheck, Rendezvous
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.failures import Failure, PastFailure
from cloudrl.protocol.interruptions import Interruption
from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.job_work import JobWork
from cloudrl.protocol.mirrors import MirrorStatus
from cloudrl.protocol.oom_kills import OomKills
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Fetching


@dataclass(frozen=True)
class Replica:
    """How far something that a client has sent is on one node.

    Attributes:
        error: why this node cannot take it, "" while it can.
    """

    complete: bool = False
    size_bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class GpuUsage:
    """One GPU at one moment; None if unknown.

    Attributes:
        index: as the vendor's tool and Ray count; of a MIG device 1000 times its GPU's, and its own.
        utilization_percent: share of the last moment in which some kernel ran.
        idle_since: seconds since the epoch, by rank 0's clock; since when it has computed nothing. None while it works.
    """

    index: int
    name: str = ""
    utilization_percent: Optional[float] = None
    memory_used_mib: Optional[int] = None
    memory_total_mib: Optional[int] = None
    power_w: Optional[float] = None
    temperature_c: Optional[float] = None
    idle_since: Optional[float] = None


@dataclass(frozen=True)
class Usage:
    """How busy a node is at one moment; None where it does not say.

    Attributes:
        sampled_at: seconds since the epoch, by rank 0's clock where there are GPUs, else by the node's.
        cpu_percent: of all CPUs of the machine together.
        memory_used_bytes, memory_total_bytes: of the container where it has a limit, else of the machine.
        disk_used_bytes, disk_total_bytes: of the disk that checkpoints are saved to.
        disk_kept_bytes: of these, what has to stay free for Ray, whose folder is on the same disk; 0 on another one.
        received_bytes_per_s, sent_bytes_per_s: over the network interfaces; what RDMA moves passes them by.
        shm_used_bytes, shm_total_bytes: of `/dev/shm`, where Ray's object store is.
        store_used_bytes, store_total_bytes: of Ray's object store, as Ray counts.
    """

    sampled_at: float
    cpu_percent: Optional[float] = None
    memory_used_bytes: Optional[int] = None
    memory_total_bytes: Optional[int] = None
    disk_used_bytes: Optional[int] = None
    disk_total_bytes: Optional[int] = None
    received_bytes_per_s: Optional[float] = None
    sent_bytes_per_s: Optional[float] = None
    gpus: Tuple[GpuUsage, ...] = ()
    disk_kept_bytes: int = 0
    shm_used_bytes: Optional[int] = None
    shm_total_bytes: Optional[int] = None
    store_used_bytes: Optional[int] = None
    store_total_bytes: Optional[int] = None

    @property
    def free_bytes(self) -> int:
        """What jobs may write where checkpoints are; 0 if unknown."""
        if not self.disk_total_bytes:
            return 0
        return max(1, self.disk_total_bytes - (self.disk_used_bytes or 0) - self.disk_kept_bytes)


class WarningKind(str, enum.Enum):
    """What a node's warning is about."""

    MACHINE = "machine"
    NETWORK = "network"
    """A fast network of the machine that NCCL is not going to use."""
    SLOW = "slow"
    """A link or a GPU that is slower than the others."""

    @classmethod
    def _missing_(cls, value: object) -> WarningKind:  # noqa: ARG003  enum's own name for it
        return cls.MACHINE

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class NodeWarning:
    """What the checks of a node warn of, though the node starts; `remedy` may be empty."""

    text: str
    remedy: str = ""
    kind: WarningKind = WarningKind.MACHINE

    def __str__(self) -> str:
        """One line of a log."""
        return f"warning: {self.text}" + (f" -> {self.remedy}" if self.remedy else "")


COLUMN = "column"
"""In the metadata of a field of `NodeReport`: the head under which `cloudrl status` shows it."""


@dataclass(frozen=True)
class NodeReport:
    """One node. A field with a `COLUMN` in its metadata is one of `cloudrl status`.

    Attributes:
        detail: what it does at the moment, for a person.
        fetching: data set, model or artifact that comes at the moment -> how far it is.
        seconds: how long each finished step took.
        phase_s: seconds that it is in its phase; only in the status, None from agents of an older release.
        ray_up, fetched: the two halves of "at the barrier".
        rollouts: rollout engines in this node's Python.
        rollout_versions: their releases; empty from agents of an older release.
        debuggers: what a job can be debugged with on this node, see `cloudrl.protocol.stops`.
        places_controllers: whether jobs find the module that runs verl's controller on the head (`folders.ON_HEAD`);
            False from agents of an older release.
        asks_trainers: whether jobs find the callback through which a trainer tells what it has saved
            (`folders.SAVE_CALLBACK`); False from agents of an older release.
        places_training: whether that module of `places_controllers` can also choose the nodes that train; likewise.
        models: model as asked for -> folder on this node.
        artifacts: likewise.
        services: name, or port -> "starting", "ready", or how often it was started again.
        peers: likewise -> where it answers its like on other nodes, if it does.
        blocked: ports of rank 0's Ray that this node cannot reach, though Ray is up here.
        replicas: what rank 0 has announced to this node -> how far it is here; only in heartbeats.
        cost_before: US dollars that earlier attempts of the run have cost, as this node's volume remembers.
        known_failures: failures that ended earlier attempts, likewise, by signature.
        gpu_software: "driver", and "CUDA" and "NCCL" or "ROCm" and "RCCL" -> their versions; empty without GPUs.
        check: whether it computes, alone and with the others; None before, and from agents of an older release.
        warnings: what its checks warn of; empty from agents of an older release.
        usage: how busy it is; None before its first look.
        oom_kills: processes that its kernel has ended for lack of memory; None for none, and from older agents.
        work: what the processes of jobs do on it; None before its first look.
        interruption: its cloud's notice that it takes the machine back; None without one, and from older agents.
        seen_s_ago: since its last heartbeat; only in the status.
        sent_at: when it sends this, seconds since the epoch by its own clock; only in a heartbeat.
    """

    rank: int
    ip: str = field(metadata={COLUMN: "address"})
    hostname: str = ""
    agent_port: int = 0
    phase: Phase = field(default=Phase.START, metadata={COLUMN: "phase"})
    detail: str = ""
    ray_version: Optional[str] = None
    python_version: str = ""
    verl_version: Optional[str] = None
    rollouts: Tuple[str, ...] = ()
    rollout_versions: Dict[str, str] = field(default_factory=dict)
    debuggers: Tuple[str, ...] = ()
    places_controllers: bool = False
    asks_trainers: bool = False
    places_training: bool = False
    gpus: int = 0
    cpus: int = 0
    ray_up: bool = False
    fetched: bool = False
    models: Dict[str, str] = field(default_factory=dict)
    artifacts: Dict[str, str] = field(default_factory=dict)
    services: Dict[str, str] = field(default_factory=dict)
    peers: Dict[str, str] = field(default_factory=dict)
    fetching: Dict[str, Fetching] = field(default_factory=dict)
    seconds: Dict[str, float] = field(default_factory=dict)
    phase_s: Optional[float] = None
    blocked: Tuple[str, ...] = ()
    replicas: Dict[str, Replica] = field(default_factory=dict)
    cost_before: float = 0.0
    known_failures: Dict[str, PastFailure] = field(default_factory=dict)
    failure: Optional[Failure] = None
    gpu_software: Dict[str, str] = field(default_factory=dict)
    check: Optional[NodeCheck] = None
    warnings: Tuple[NodeWarning, ...] = ()
    usage: Optional[Usage] = None
    oom_kills: Optional[OomKills] = None
    work: Optional[JobWork] = None
    interruption: Optional[Interruption] = None
    seen_s_ago: float = 0.0
    sent_at: float = 0.0


@dataclass(frozen=True)
class HeartbeatReply:
    """What rank 0 tells every node.

    Attributes:
        phase: of rank 0.
        failure: of the cluster, once rank 0 has judged it.
        ready: whether the barrier is open.
        ray_version, python_version: of rank 0, once it has looked; all nodes need the same.
        markers: folder -> text of the marker file there, by which a shared folder is known; None before.
        data: data set -> its prepared files -> their SHA-256; None before.
        models, artifacts: those that rank 0 has, with their folders.
        peers: service -> where it answers its like, on each rank in order; None before all ranks are heard of.
        announced: names of what clients have sent and this node has not got yet.
        cost_before: as in `NodeReport`, the most that any rank remembers.
        session_name: of Ray's folder on every node; None while Ray is not up.
        shared_checkpoints: whether all nodes save into one folder; known at the barrier.
        gpus_of_ray: addresses of nodes whose GPUs Ray watches, so that their agents need not; in a reply at most that
            of the node that it is for.
        save_wish: `SUBMISSION_ID NUMBER` of the attempt that is to save at the end of its step, with a higher number
            for each time; "" while nothing is wanted.
        rendezvous: which nodes compute together as a check; None before all are ready for it, and after the barrier.
        interruption: of rank 0, as in `NodeReport`.
    """

    phase: Phase = Phase.START
    failure: Optional[Failure] = None
    ready: bool = False
    ray_version: Optional[str] = None
    python_version: Optional[str] = None
    markers: Optional[Dict[str, str]] = None
    data: Optional[Dict[str, Dict[str, str]]] = None
    models: Dict[str, str] = field(default_factory=dict)
    artifacts: Dict[str, str] = field(default_factory=dict)
    peers: Optional[Dict[str, Tuple[str, ...]]] = None
    announced: Tuple[str, ...] = ()
    cost_before: float = 0.0
    session_name: Optional[str] = None
    gpus_of_ray: Tuple[str, ...] = ()
    shared_checkpoints: bool = False
    save_wish: str = ""
    rendezvous: Optional[Rendezvous] = None
    interruption: Optional[Interruption] = None


@dataclass(frozen=True)
class BudgetStatus:
    """What the cluster costs and when it ends by itself; None if unknown.

    Attributes:
        working_since: seconds since the epoch; when the oldest job that runs was started. Only while a GPU is idle.
    """

    cost: Optional[float] = None
    price_per_hour: Optional[float] = None
    max_cost: Optional[float] = None
    down_when_idle_s: Optional[float] = None
    idle_s: Optional[float] = None
    working_since: Optional[float] = None


@dataclass(frozen=True)
class ClusterStatus:
    """The answer to a client. A worker knows itself only; rank 0 knows everybody.

    Attributes:
        phase: of the answering node; "failed" or "ended" once the cluster has a failure.
        started_at, ready_at: seconds since the epoch.
        job: where the training stands that runs; None without one, and while its phase is unknown.
        mirrors: how far the mirrors of its durable jobs are.
    """

    facts: ClusterFacts
    phase: Phase
    detail: str = ""
    started_at: float = 0.0
    ready_at: Optional[float] = None
    failure: Optional[Failure] = None
    nodes: Tuple[NodeReport, ...] = ()
    budget: BudgetStatus = field(default_factory=BudgetStatus)
    job: Optional[JobState] = None
    mirrors: Tuple[MirrorStatus, ...] = ()
