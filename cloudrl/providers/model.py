"""What a provider is, what it takes and what it answers with."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.mirrors import MirrorStatus
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.report import BudgetStatus, ClusterStatus, NodeReport
from cloudrl.spec import Cluster
from cloudrl.transport import Connection

if TYPE_CHECKING:
    from typing_extensions import Self


WATCH_S = 0.5
UP_TIMEOUT_S = 86_400.0
"""For a cluster to come up: each of its phases has a deadline of its own, which its agents watch."""


@dataclass(frozen=True)
class Offer:
    """A machine that could be had.

    Attributes:
        resources: in words.
        price: in US dollars an hour.
        gpu: its GPUs as a cluster asks for them, `A100:80GB:8`; "" without any.
        memory_bytes: of the machine; 0 if unknown.
    """

    backend: str
    region: str
    instance_type: str
    resources: str
    price: float
    spot: bool
    gpu: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True)
class Price:
    """What a cluster is going to cost.

    Attributes:
        per_hour: US dollars of all nodes together at the cheapest offer; None if absent.
        offers: for one node, cheapest first.
        total_offers: how many there are.
        notices: what else costs money, or does not work on those machines.
    """

    per_hour: float | None
    offers: tuple[Offer, ...] = ()
    total_offers: int = 0
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `up` would do, decided without asking anybody. Each provider derives its own, with what its `up` needs.

    Attributes:
        cluster: what is going to be started; once priced, with the price that its agents count with.
        facts: what is known of it before it runs, see `planned_facts`.
        price: what it costs; None before `priced`, and where nothing has a price.
    """

    cluster: Cluster = field(repr=False)
    facts: ClusterFacts
    price: Price | None = None

    place: ClassVar[str]
    """Where it runs, for a sentence: `on Slurm`."""

    @property
    def honoured(self) -> Collection[str]:
        """The fields of `cluster` that have an effect there; each other field that is set is named to the user."""
        raise NotImplementedError

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know before it starts, a sentence each."""
        unused = ", ".join(name for name in self.cluster.explicit_fields() if name not in self.honoured)
        return (f"without effect {self.place}: {unused}",) if unused else ()

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.cluster.name

    @property
    def provider(self) -> str:
        """The name of the one that made it."""
        return self.facts.provider

    @property
    def has_own_disks(self) -> bool:
        """Whether checkpoints are on disks that go with each machine; False also where that is not known."""
        return False

    @property
    def needs_price(self) -> bool:
        """Whether it cannot be rendered in full before it is priced: its agents need the price to end it."""
        return self.cluster.max_cost is not None and self.cluster.price_per_hour is None

    def render(self) -> str:
        """The exact text, commands or requests, of what is known so far."""
        raise NotImplementedError

    def preview(self) -> str:
        """What `--dry-run` prints; somebody is asked for the price only where the text depends on it."""
        return (self.priced() if self.needs_price else self).render()

    def priced(self) -> Self:
        """The same, checked by whoever has the machines, with its price: what `up` then applies as it is.

        Raises:
            InputError: it cannot be started: a run of its name is going on, a secret is missing, ...
            CapacityError: there is no such machine.
            ConnectionFailed: no answer.
        """
        return self


@dataclass(frozen=True)
class CheckpointRetention:
    """What becomes of a cluster's checkpoints when it ends.

    Attributes:
        destroyed: whether they go with disks that are going to be destroyed.
        location: where they stay, or when and with what they go, in half a sentence.
    """

    destroyed: bool
    location: str


@dataclass(frozen=True)
class ClusterRef:
    """A cluster: its provider, and its name there. As text, `dstack/ray-cluster`."""

    provider: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.name}"


@dataclass(frozen=True)
class Status:
    """One look at a cluster. `Provider.list` fills in what it knows without asking the cluster itself.

    Attributes:
        facts: what its agents say of it; as long as those do not answer, what the provider knows.
        phase: of rank 0, or what the provider says where no agent answers.
        reason: why it waits, cannot be reached, failed or ended, one line.
        nodes: those that are known; of one whose agent does not answer what the provider knows.
        ready_at: seconds since the epoch.
        started_at: when it was submitted or started, likewise; None if its provider does not know.
        dashboard_url: where Ray's dashboard is reached from here; None while no way to it is kept open.
        previous_attempts: those of all nodes before the present one, oldest first, where a lost node makes the provider
            start the cluster again: attempt, submitted_at, ended_at, reason, nodes.
        price_per_hour: US dollars for all machines that it has now; None if unknown.
        cost: US dollars so far, those of earlier attempts included; None if unknown.
        budget: when it ends by itself, as its agents see it.
        job: where the training stands that runs; None without one, and while its phase is unknown.
        mirrors: how far the mirrors of its durable jobs are.
        owner: the user that it belongs to; "" for oneself.
        has_agent: whether it runs the node agent; what has a cluster's name may be something else.
        retention: what becomes of its checkpoints when it ends; None if unknown.
        teardown_summary: what `down` leaves, in half a sentence.
        teardown_notices: what goes on costing money after `down`.
        warnings: what goes wrong with it, each with what to do.
        logs_command: how to read the cluster's own logs: a command, or a folder.
        state_dir: where this machine keeps what it knows of it.
    """

    facts: ClusterFacts
    phase: Phase
    reason: str = ""
    nodes: Sequence[NodeReport] = ()
    ready_at: float | None = None
    started_at: float | None = None
    dashboard_url: str | None = None
    previous_attempts: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    price_per_hour: float | None = None
    cost: float | None = None
    budget: BudgetStatus = field(default_factory=BudgetStatus)
    job: JobState | None = None
    mirrors: tuple[MirrorStatus, ...] = ()
    owner: str = ""
    has_agent: bool = True
    retention: CheckpointRetention | None = None
    teardown_summary: str = ""
    teardown_notices: tuple[Notice, ...] = ()
    warnings: tuple[Notice, ...] = ()
    logs_command: str = ""
    state_dir: str = ""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.facts.name

    @property
    def provider(self) -> str:
        """The name of its provider."""
        return self.facts.provider

    @property
    def ref(self) -> ClusterRef:
        """Which cluster it is of."""
        return ClusterRef(self.provider, self.name)

    @property
    def is_ready(self) -> bool:
        """Whether jobs can be submitted."""
        return self.phase is Phase.READY

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself; commands report that with exit code 4."""
        return self.phase is Phase.FAILED

    @property
    def is_over(self) -> bool:
        """Whether nothing runs on it any more."""
        return self.phase.is_terminal

    @property
    def is_own(self) -> bool:
        """Whether it is a cluster of oneself."""
        return self.has_agent and not self.owner


def agent_fields(status: ClusterStatus) -> Mapping[str, Any]:
    """Fields of a `Status` that the agent of rank 0 knows."""
    return {
        "facts": status.facts,
        "phase": status.phase,
        "reason": status.failure.reason if status.failure else status.detail,
        "nodes": status.nodes,
        "ready_at": status.ready_at,
        "budget": status.budget,
        "job": status.job,
        "mirrors": status.mirrors,
    }


class PartlyListed(ConnectionFailed):
    """Clusters of a provider are in several places, and not all of them answer.

    Attributes:
        clusters: those of the places that do.
        silent: the other places, and why.
    """

    def __init__(self, clusters: Sequence[Status], silent: Mapping[str, ConnectionFailed]) -> None:
        first = next(iter(silent.values()))
        super().__init__(first.message, hint=first.hint)
        self.clusters, self.silent = clusters, silent


class Provider(Protocol):
    """Where clusters live. All verbs raise errors of `cloudrl.errors` only.

    An entry point of group `cloudrl.providers` makes a class that derives from this a provider; mypy checks the rest.
    """

    name: str
    """The name of its entry point, and of its section in a cluster."""
    nodes_are_here: bool
    """Whether nodes read this machine's own files."""
    default_cluster: str
    """The name of a cluster that the user gives none. No two providers share one, so that both can be up."""
    has_gpus: bool
    """Whether a cluster with GPUs is meant for it where the user names no provider."""
    state_pattern: str
    """Matches the folder of each of its clusters below $CLOUDRL_HOME; the last part is the cluster's name."""

    def is_configured(self) -> bool:
        """Whether there is a terminal to ask on."""

    def plan(self, cluster: Cluster) -> Plan:
        """What `up` would do. Pure: no network, nothing is started or written.

        Raises:
            InputError: the provider cannot do what is declared.
        """

    def up(
        self,
        plan: Plan,
        *,
        on_status: Callable[[Status], None] | None = None,
        timeout_s: float = UP_TIMEOUT_S,
        detach: bool = True,
    ) -> Connection:
        """Start the cluster and return once it is READY; where something is left when it fails, the error says so.

        A plan that has not been priced yet is priced first. Without `detach` the cluster also ends when this program
        does, however that comes about, where the provider can do that.
        """

    def attach(self, name: str, *, keep_open: bool = False) -> Connection:
        """Connect to a running cluster; with `keep_open` the addresses are of use after this program has ended, too."""

    def detach(self, name: str) -> bool:  # noqa: ARG002
        """Close what `attach` or `up` keeps open; False when there is nothing. The cluster goes on."""
        return False

    def status(self, name: str) -> Status:
        """One look at a cluster, running or not.

        Raises:
            InputError: the name is unknown.
        """

    def watch(self, name: str) -> Generator[Status, None, None]:
        """Looks at a cluster, one each time that the caller asks, until it is over; close it when that is enough.

        Where there is a way to it to be opened, that is done once, and used for all of them.
        """
        while True:
            status = self.status(name)
            yield status
            if status.is_over:
                return
            time.sleep(WATCH_S)

    def idle_costs(self) -> Sequence[Notice]:
        """What costs money and is used by no cluster, with the command that ends each.

        Raises:
            ConnectionFailed: no answer.
        """
        return ()

    def down(self, name: str) -> bool:
        """End a cluster; False when nothing of it was running. Checkpoints and logs stay."""

    def list(self, name: str | None = None) -> Sequence[Status]:
        """One's own clusters that are running or have left something, or the one of a name, whoever's it is.

        Raises:
            PartlyListed: some of them cannot be seen now.
        """
