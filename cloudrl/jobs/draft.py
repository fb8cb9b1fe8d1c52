"""What planning works on: a snapshot of cluster and machine, and the job so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cloudrl.errors import InputError
from cloudrl.jobs.data_files import Table
from cloudrl.jobs.findings import Finding
from cloudrl.jobs.local_files import LocalFiles
from cloudrl.jobs.prompt_lengths import PromptLengths
from cloudrl.jobs.submission import DurablePlan, Upload
from cloudrl.jobs.working_dir import PackagePlan
from cloudrl.options.job import SubmitOptions
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.saves.inventory import Inventory
from cloudrl.spec import HydraText, Job
from cloudrl.spec.hydra import parse_overrides, split_key
from cloudrl.verl.memory.report import MemoryReport
from cloudrl.verl.memory.runs import RunMemory
from cloudrl.verl.model_config import ModelConfig

if TYPE_CHECKING:
    from cloudrl.rewards.examine import Examined


@dataclass(frozen=True)
class Machines:
    """What is known of machines before they are rented.

    Attributes:
        has_own_disks: whether checkpoints are on each node's own disk, which goes with the machine.
        price_per_hour: US dollars of all nodes together; None if unknown.
        max_cost: US dollars at which the cluster ends by itself; None without a limit.
        setup: commands that each node runs before it starts.
    """

    has_own_disks: bool = False
    price_per_hour: float | None = None
    max_cost: float | None = None
    setup: tuple[str, ...] = ()


@dataclass(frozen=True)
class Neighbour:
    """A job that runs on the cluster, or a driver that was not submitted.

    Attributes:
        name: for messages.
        is_exclusive: whether it would end the training of another such job (`cloudrl.verl.transfer_queue`).
    """

    name: str
    is_exclusive: bool = False


@dataclass(frozen=True)
class Snapshot:
    """All that the passes read. They do no I/O, so the same snapshot gives the same submission."""

    cluster: ClusterFacts
    files: LocalFiles
    saved: Inventory | None = None
    """None if it does not matter or is not known."""
    addresses: Mapping[int, str] = field(default_factory=dict)
    """Node -> IP address, where `saved` matters."""
    shell: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables from which secrets that the job needs are taken."""
    models: Mapping[str, ModelConfig] = field(default_factory=dict, repr=False)
    """Config.json of the job's models, by the name that the job has for them, as far as they are on this machine."""
    runs: tuple[RunMemory, ...] = ()
    """What earlier runs have needed of memory, as far as this machine has seen them."""
    prompts: PromptLengths | None = None
    """How long the prompts of the job's data are, where the data is on this machine."""
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    """For names."""
    commit: str = ""
    """Of the repository that the user submits from; "" outside of one."""
    nodes_are_here: bool = False
    """Whether the nodes read this machine's own files."""
    is_expected: bool = False
    """Whether there is no cluster yet, so that its checkpoints are unknown."""
    is_script: bool = False
    """Whether the job becomes part of a script for sbatch, with its cluster."""
    tables: Mapping[str, Table] = field(default_factory=dict, repr=False)
    """Data files of this machine, by the names that the job has for them."""
    machines: Machines | None = None
    """None for a cluster that is up."""
    running: tuple[Neighbour, ...] = ()
    """Jobs and drivers of the cluster that have not ended, where that decides how the job gets there."""
    reward: Examined | None = field(default=None, repr=False)
    """What the job's own reward function scores; None if it has none of this machine."""


@dataclass(frozen=True)
class JobDraft:
    """What is known of a job so far. A pass takes one and returns another; nothing is filled in."""

    job: Job
    """The recipe, without the overrides that an alias replaces."""
    options: SubmitOptions
    """As the user gave them."""
    cluster: ClusterFacts
    """Where it goes, with the release of verl that is going to run there."""
    overrides: Mapping[str, Any]
    """Of the user, in verl's keys; they win over recipe and cluster."""
    defaults: Mapping[str, HydraText] = field(default_factory=dict)
    """From the cluster, for keys that neither recipe nor user has set."""
    name: str = ""
    submission_id: str = ""
    uploads: tuple[Upload, ...] = ()
    package: PackagePlan | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """As Ray gets it, without the variables."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the job's environment, secrets among them until they are delivered."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that go through the agents."""
    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""
    warnings: tuple[str, ...] = ()
    """What may end the job, waste money or lose its work, one sentence each."""
    not_checked: tuple[str, ...] = ()
    """What nothing here looks at, and why, such as `the configuration (the job runs another program)`."""
    findings: tuple[Finding, ...] = ()
    """Why the job cannot run; planning goes on behind the first, so that all are reported together."""
    unsettled: frozenset[str] = frozenset()
    """Keys that would have a value, but for a finding."""
    memory: MemoryReport | None = field(default=None, repr=False)
    """Whether it fits; None where that is not known."""
    durable: DurablePlan | None = None
    """What the agents have to know to carry it through; None for a job that is handed to Ray."""
    plain_because: str = ""
    """Why the agents do not carry it through, with a remedy, where the user has left that open; "" if they do."""

    @property
    def may_be_durable(self) -> bool:
        """Whether it is planned as a job that the agents carry through, until `plan_durable` has the last word."""
        return self.options.durable is not False

    @property
    def must_be_durable(self) -> bool:
        """Whether the user has asked for that, also by an option for such jobs alone: what prevents it is an error."""
        options = self.options
        return bool(options.durable or options.mirror or options.keep_every or options.keep_best)

    @property
    def asked(self) -> Job:
        """The job with what the user asked for, and without what the cluster gives."""
        return self.job.with_overrides(self.overrides)

    @property
    def arguments(self) -> dict[str, str]:
        """All overrides as Hydra text; what was asked for stands last, as it does on a command line."""
        return {**self.defaults, **self.asked.overrides}

    @property
    def values(self) -> dict[str, str]:
        """Bare key -> value of all overrides, without quotes, also of those in the entry point."""
        return {**parse_overrides(self.defaults), **self.asked.values}

    def noting(self, *sentences: str, **changes: Any) -> JobDraft:
        """The same with changes, and with notes for the user."""
        return replace(self, notes=(*self.notes, *sentences), **changes)

    def warning(self, *sentences: str) -> JobDraft:
        """The same, with what the user should look at before paying for it."""
        return replace(self, warnings=(*self.warnings, *sentences))

    def skipping(self, what: str) -> JobDraft:
        """The same; `what` is not checked, and why stands in brackets behind it."""
        return replace(self, not_checked=(*self.not_checked, what))

    def refused(self, *errors: InputError | Finding) -> JobDraft:
        """The same with more reasons why the job cannot run."""
        found = (each if isinstance(each, Finding) else Finding(each.message, each.hint or "") for each in errors)
        return replace(self, findings=(*self.findings, *found))

    def overriding(self, overrides: Mapping[str, Any]) -> JobDraft:
        """The same with these overrides; they replace those of the same key."""
        return replace(self, overrides={**self.overrides, **overrides})

    def without(self, *keys: str) -> JobDraft:
        """The same without these bare keys in the recipe."""
        others = {key: text for key, text in self.job.overrides.items() if split_key(key)[1] not in keys}
        return replace(self, job=self.job.replace(overrides=others))
