"""A cluster that is up: submit to it, see its jobs and checkpoints, end it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cloudrl import recipes
from cloudrl.errors import CheckpointError, ClusterFailed, InputError, without_login
from cloudrl.jobs import JobHandle, find_job
from cloudrl.jobs.supervised import durable_jobs
from cloudrl.options.job import JobKeywords, submit_options
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.providers.model import ClusterRef, Provider, Status
from cloudrl.providers.registry import locate, provider
from cloudrl.saves.inventory import SaveVersion
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, silent, unattended
from cloudrl.sdk.costs import costs
from cloudrl.sdk.resumption import resume_job
from cloudrl.sdk.submission import submit
from cloudrl.sdk.teardown import assess, end, ending, patient, teardown
from cloudrl.spec import Job
from cloudrl.spec.ports import RAY_PORT
from cloudrl.transport import Connection, inspect_cluster
from cloudrl.transport.ray_job import RayJob

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cloudrl.checkpoints.handle import Checkpoints


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that jobs can be submitted to.

        ray = cloudrl.attach("ray-cluster")
        print(ray.facts().nodes, "nodes;", len(ray.jobs()), "jobs;", len(ray.checkpoints()), "checkpoints")
        job = ray.submit("grpo-tiny", {"data.train_batch_size": 16}, steps=20)

    As a context manager it ends when the block is left if it is `owned`; any other goes on. One whose newest
    checkpoints are on disks that would be destroyed with it, and were neither merged nor pulled through this object,
    is not ended: leaving the block raises `CheckpointError`, or warns if an error leaves it already, with the price
    and the commands that merge and that end it. `Cluster.up(..., down_anyway=True)` ends it all the same. A provider
    that does not answer then is asked again for five minutes.

    Attributes:
        connection: addresses and tokens.
        provider: where it lives; None for a plain Ray cluster, which cloudrl cannot end.
        owned: whether this program has started it, by `Cluster.up`; one that was there belongs to somebody else.
        down_anyway: end it with the block even if checkpoints are lost with it.
        copied: run, step and time of each save that was merged or pulled through this object.
    """

    connection: Connection
    provider: str | None = None
    owned: bool = False
    down_anyway: bool = False
    copied: set[SaveVersion] = field(default_factory=set, repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.owned:
            return
        name, where = self.name, self.get_provider()
        again = patient(lambda text: _warn(f"cluster {name} cannot be ended yet: {text}"))
        with ending(where, name):
            impact = again(partial(assess, where, name))
            if self.down_anyway or not impact.loses(self.copied):
                end(where, impact, again=again)
                return
        not_ended = CheckpointError(
            f"cluster {name} was not stopped because its checkpoints would be lost; it keeps running"
            f"{costs(impact.status)}\n" + "\n".join(notice.text for notice in impact.notices()),
            hint=f"Merge one: cloudrl checkpoints merge --cluster {name} --to ./model\nEnd it: cloudrl down {name}",
        )
        if error is None:
            raise not_ended
        warnings.warn(f"{not_ended}", stacklevel=2)

    @property
    def name(self) -> str:
        """The cluster's name; its address where it has none."""
        return self.connection.name

    def status(self) -> Status:
        """One look at it; see `cloudrl.providers.model.Status`.

        Raises:
            InputError: it is a plain Ray cluster.
        """
        return self.get_provider().status(self.name)

    def facts(self) -> ClusterFacts:
        """Nodes, GPUs, data, models and checkpoint folder, as a job will find them."""
        return inspect_cluster(self.connection)

    def submit(
        self,
        job: Job | str,
        overrides: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
        on_progress: OnProgress = silent,
        **options: Unpack[JobKeywords],
    ) -> JobHandle:
        """Submit a job, or a recipe by its name or path.

        Paths of this machine (`./x`, `../x`, `~/x`, or `x` where it exists here) are sent along wherever verl reads a
        file; `/x` is a path on the nodes, `owner/name` a model on the Hub. HF_TOKEN and the keys of the loggers in
        `trainer.logger` are passed on from this process's environment where the job needs them and the agents can
        take them.

        The agents start the job again after a loss, unless a note says why they cannot; `durable=True` makes that an
        error, and lets the job wait behind others.

        Args:
            job: what to run.
            overrides: in verl's own keys; they win over recipe and cluster.
            after: a job of this cluster, by its id or URL; its end is waited for first. A durable job waits with the
                agents instead, behind all that are there.
            on_progress: receives notes, uploads, and the handle.
            options: see `cloudrl.jobs.SubmitOptions`.

        Raises:
            InputError: job and cluster do not go together, the id is taken, or another job is in the way.
            CheckpointError: the run of this name has steps, and its ranks could load none of them.
            ConnectionFailed: no answer.
        """
        loaded = recipes.load(job) if isinstance(job, str) else job
        wanted = submit_options(overrides, options)
        return submit(self.connection, loaded, wanted, after=after, on_progress=on_progress)

    def resume(
        self,
        job_id: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        nodes: int | None = None,
        mirror: str | None = None,
        on_progress: OnProgress = silent,
    ) -> JobHandle:
        """Start a durable job again that has ended, or was left with an earlier cluster on the same volumes.

        If another number of ranks has saved its newest step, the head cuts the shards anew first; the old ones stay.

        Args:
            job_id: of the job.
            overrides: in verl's own keys, in place of the job's.
            nodes: how many nodes train; None for all, unless the job has chosen a number.
            mirror: the place with copies of its steps that remembers it after the loss of all disks.
            on_progress: receives notes and bytes.

        Raises:
            InputError: no volume and no mirror remembers it, it has not ended, or it cannot go on with these GPUs.
            CheckpointError: its step cannot be cut for them, or there is no room.
            ConnectionFailed: no answer.
        """
        return resume_job(
            self.connection, job_id, nodes=nodes, overrides=overrides, mirror=mirror, on_progress=on_progress
        )

    def job(self, submission_id: str) -> JobHandle:
        """The handle of a job that was submitted before.

        Raises:
            InputError: the cluster does not know it.
        """
        return find_job(self.connection, submission_id)

    def jobs(self) -> tuple[RayJob, ...]:
        """All submitted jobs, the oldest first."""
        return self.connection.ray().list_jobs()

    def durable_jobs(self) -> tuple[DurableJob, ...]:
        """Jobs that were left with the cluster's agents, in the order of their queue, each with its attempts.

        Raises:
            ConnectionFailed: no answer.
        """
        return durable_jobs(self.connection)

    def checkpoints(self) -> Checkpoints:
        """What jobs have saved, on all nodes: a sequence, with `.latest()`, each with `.merge("./model")`.

        Raises:
            InputError: it is a plain Ray cluster.
            ConnectionFailed: no answer.
        """
        from cloudrl.checkpoints.handle import Checkpoints
        from cloudrl.checkpoints.sources import ClusterSource

        return Checkpoints(ClusterSource(self.connection), on_copied=self.copied.add)

    def down(self, *, confirm: Confirm = unattended, on_progress: OnProgress = silent) -> bool:
        """End the cluster. False when nothing was running.

        Args:
            confirm: is asked where jobs are running on it, it is another's, or checkpoints would be lost with it.
            on_progress: receives what would be lost and what stays.

        Raises:
            InputError: it is a plain Ray cluster, or a question was not answered.
        """
        return teardown(self.get_provider(), self.name, confirm=confirm, on_progress=on_progress)

    def get_provider(self) -> Provider:
        """Where it lives.

        Raises:
            InputError: it is a plain Ray cluster.
        """
        if self.provider is None:
            raise InputError(f"{self.name} is a plain Ray cluster; cloudrl did not start it")
        return provider(self.provider)


def attach(
    name: str, on: str | None = None, *, keep_open: bool = False, on_progress: OnProgress = silent
) -> RunningCluster:
    """Connect to a cluster that is up. It goes on when a `with` block of the result is left; `down()` ends it.

        ray = cloudrl.attach("ray-cluster")
        print(ray.status().phase)

    Args:
        name: the cluster's.
        on: the provider; None for the one that has it.
        keep_open: let the addresses be of use after this program has ended, too, until `detach`.
        on_progress: receives where the dashboard is, if not where one looks for it.

    Raises:
        InputError: no cluster has that name, or two providers have one and none was named.
        ConnectionFailed: no answer.
    """
    ref = ClusterRef(on, name) if on is not None else locate(name)
    connection = provider(ref.provider).attach(ref.name, keep_open=keep_open)
    if keep_open:
        _report_port(name, connection.ray_url, on_progress)
    return RunningCluster(connection, provider=ref.provider)


def detach(name: str) -> bool:
    """Close what `attach` or `up` keeps open; False when there was nothing. The cluster goes on."""
    ref = locate(name)
    return provider(ref.provider).detach(ref.name)


def _warn(text: str) -> None:
    """Also where warnings are errors: a cluster that costs money is not left for one."""
    with suppress(UserWarning):
        warnings.warn(text, stacklevel=5)


def _report_port(name: str, url: str, on_progress: OnProgress) -> None:
    """Say that the dashboard is not where one looks for it, if so."""
    if not url.endswith(f":{RAY_PORT}"):
        on_progress(Notice(f"the dashboard of {name} is at {url}, not at port {RAY_PORT}"))


def connect(ray_url: str, token: str | None = None) -> RunningCluster:
    """Connect to any Ray cluster by the address of its dashboard.

        ray = cloudrl.connect("http://localhost:8265", token=None)

    The result submits and follows jobs. It has no checkpoints, and cannot be ended by `down`. Nothing is asked before
    the first call.

    Args:
        ray_url: of the dashboard.
        token: Ray's (RAY_AUTH_TOKEN), if it asks for one.
    """
    return RunningCluster(Connection(name=without_login(ray_url), ray_url=ray_url, ray_token=token))


def raise_for_status(look: Status) -> None:
    """Raise `ClusterFailed` for a cluster that has failed."""
    if look.has_failed:
        raise ClusterFailed(f"cluster {look.name!r} failed: {look.reason}", hint=f"Its logs: {look.logs_command}")
