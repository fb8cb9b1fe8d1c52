"""A job from nothing to a trained model: find or start a cluster, submit, follow, merge, and end the cluster."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl import jobs, recipes
from cloudrl.errors import CheckpointError, CloudrlError, InputError, Interrupted, JobFailed
from cloudrl.jobs import JobHandle, SubmitOptions, run_plan
from cloudrl.providers.model import NoFleet
from cloudrl.providers.registry import default_provider, ensure_name_free, provider
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, silent, unattended
from cloudrl.sdk.cluster import Cluster, cluster_goes_on, nothing_started
from cloudrl.sdk.costs import still_running
from cloudrl.sdk.fleet import Fleet
from cloudrl.sdk.merge_result import merge_result
from cloudrl.sdk.run_end import end_after_run
from cloudrl.sdk.running import RunningCluster
from cloudrl.sdk.submission import JobKeywords, expected_submission, follow, prepare, send, submit_options

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from cloudrl.jobs import Progress
    from cloudrl.providers.model import Plan, Provider, Status
    from cloudrl.spec import Job


@dataclass(frozen=True)
class Run:
    """A job, and the cluster that it runs on.

    Attributes:
        cluster: it may have ended, see `ended`.
        job: that was submitted.
        progress: where the job stood at its end; None if that was not waited for.
        model: the folder with the merged model, where one was asked for.
        ended: whether the cluster was ended.
    """

    cluster: RunningCluster
    job: JobHandle
    progress: Progress | None = None
    model: Path | None = None
    ended: bool = False


@dataclass(frozen=True)
class RunRequest:
    """What is going to be started, and what for. Made by `plan_run`; nothing has been asked of anybody.

    Attributes:
        job: to be run.
        options: what is asked for beyond it.
        cluster: as it would be started.
        plan: the same as its provider would start it.
        asked: fields of the cluster that were asked for; one that is up has to have them.
    """

    job: Job
    options: SubmitOptions
    cluster: Cluster
    plan: Plan
    asked: Mapping[str, Any]

    def render(self, *, on_progress: OnProgress = silent) -> str:
        """Cluster and job, as `--dry-run` prints them; refuses what `execute` would."""
        submission = expected_submission(self.plan, self.job, self.options, on_progress=on_progress)
        plan = self.plan.priced() if self.plan.needs_price else self.plan
        return f"{plan.render().rstrip()}\n{submission.render()}"

    def execute(
        self,
        *,
        to: str | os.PathLike[str] | None = None,
        down: bool | None = None,
        wait: bool = True,
        create_fleet: bool = False,
        confirm: Confirm = unattended,
        on_progress: OnProgress = silent,
    ) -> Run:
        """Do it; the arguments are those of `run`."""
        on, name = self.plan.provider, self.cluster.name
        with nothing_started():
            _refuse_existing(to)
            jobs.plan_job(
                self.job, self.options, run_plan.expected_snapshot(self.plan, self.job, self.options)
            )
            ensure_name_free(name, on)
            there = run_plan.find_running(self.cluster, self.asked, on=on)
        if there is not None:
            on_progress(Notice(f"cluster {name} is up, and is used"))
            cluster = RunningCluster(there, provider=on)
        else:
            cluster = self._start(create_fleet=create_fleet, confirm=confirm, on_progress=on_progress)
        return _Stages(self, provider(on), cluster, down, confirm, on_progress).train(to, wait=wait)

    def _start(self, *, create_fleet: bool, confirm: Confirm, on_progress: OnProgress) -> RunningCluster:
        up = partial(self.cluster.up, self.plan.provider, confirm=confirm, on_progress=on_progress)
        try:
            return up()
        except NoFleet as error:
            if error.fleet is None or not create_fleet:
                raise
            fleet = Fleet.load(error.fleet.explicit_fields())
        none_fits = f"no fleet has or can get the machines of {self.cluster.name}; {fleet.name} would"
        on_progress(Notice(none_fits))
        with nothing_started(fleet.name):
            fleet.create(confirm=confirm, on_progress=on_progress)
            return up()


class _Stages:
    """From a cluster that is up to what becomes of it, and how far that has come."""

    def __init__(
        self,
        request: RunRequest,
        where: Provider,
        cluster: RunningCluster,
        down: bool | None,
        confirm: Confirm,
        on_progress: OnProgress,
    ) -> None:
        self._request, self._where, self._cluster = request, where, cluster
        self._down, self._confirm, self._on_progress = down, confirm, on_progress
        self._again = "Go on: the same again; a cluster that is up is used"
        self._job: JobHandle | None = None
        self._look: Status | None = None

    def train(self, to: str | os.PathLike[str] | None, *, wait: bool) -> Run:
        """Submit, follow to the end, merge the model, or say how, and end the cluster."""
        name = self._cluster.name
        try:
            with cluster_goes_on(self._where, name, lambda: self._again):
                self._look = _look(self._where, name)
                done = self._submit_and_follow(to, wait=wait)
        except JobFailed:
            self._end_after_error()
            raise
        except Interrupted:  # it has said what goes on
            raise
        except CloudrlError as error:
            raise self._with_what_goes_on(error) from error
        return done if not wait else replace(done, ended=self._end())

    def _submit_and_follow(self, to: str | os.PathLike[str] | None, *, wait: bool) -> Run:
        request, cluster, on_progress = self._request, self._cluster, self._on_progress
        submission = prepare(cluster.connection, request.job, request.options, on_progress=on_progress)
        job = self._job = send(cluster.connection, submission, on_progress=on_progress)
        if not wait:
            return Run(cluster, job)
        self._again = f"Go on: cloudrl jobs logs -f {job.url}"
        progress = follow(job, on_progress=on_progress)
        merge = f"cloudrl checkpoints merge --cluster {cluster.name} --to {shlex.quote(str(to or './model'))}"
        self._again = f"Go on: {merge}"
        retention = self._look.retention if self._look is not None else None
        kept = f", {retention.location}" if retention is not None else ""
        told = f"{job.submission_id} succeeded; checkpoints are in {job.checkpoint_dir}{kept}"
        on_progress(Notice(told, merge if to is None else ""))
        if to is None:
            return Run(cluster, job, progress)
        checkpoint, merged = merge_result(job, to, on_progress=on_progress)
        cluster.copied.add(checkpoint.info.version)
        return Run(cluster, job, progress, merged.path.absolute())

    def _end(self, *, in_vain: bool = False) -> bool:
        return end_after_run(
            self._cluster,
            down=self._down,
            in_vain=in_vain,
            price_per_hour=self._look.price_per_hour if self._look is not None else None,
            confirm=self._confirm,
            on_progress=self._on_progress,
        )

    def _end_after_error(self, *, in_vain: bool = False) -> bool:
        """The error that comes first is the one that counts."""
        try:
            return self._end(in_vain=in_vain)
        except CloudrlError as second:
            said = f"then, while the cluster was being ended: {second.message}"
            self._on_progress(Notice(said, second.hint or "cloudrl status"))
            return False

    def _with_what_goes_on(self, error: CloudrlError) -> CloudrlError:
        """The error, with what becomes of the cluster.

        One that was started for a job that never came is ended: with `down` whatever the error, without an answer to
        that only if the job was refused, as it would be again.
        """
        name = self._cluster.name
        refused = isinstance(error, (InputError, CheckpointError)) and self._down is not False
        in_vain = self._job is None and self._cluster.owned and (self._down is True or refused)
        if in_vain and self._end_after_error(in_vain=True):
            return type(error)(f"{error.message}; cluster {name} is ended again", hint=error.hint)
        goes_on, said = still_running(self._where, name)
        state = f"goes on{said}" if goes_on else f"has ended: {said}"
        hints = [*(error.hint or "").splitlines(), *([f"End it: cloudrl down {name}"] if goes_on else [])]
        return type(error)(f"{error.message}; cluster {name} {state}", hint="\n".join(hints) or None)


def plan_run(
    job: Job | str,
    options: SubmitOptions | None = None,
    cluster: Cluster | Mapping[str, Any] | str = "ray-cluster",
    on: str | None = None,
) -> RunRequest:
    """What `run` would start: the cluster that a recipe is made for, and what is asked for in its place.

    Args:
        job: what to run, or a recipe by its name or path.
        options: what is asked for beyond it.
        cluster: as it shall be, or some of its fields, or its name; the others are the recipe's.
        on: the provider; None is dstack for a cluster with GPUs, and this machine for one without.
    """
    job = recipes.load(job) if isinstance(job, str) else job
    options = options or SubmitOptions()
    if isinstance(cluster, Cluster):
        asked: Mapping[str, Any] = cluster.explicit_fields()
    else:
        asked = {"name": cluster} if isinstance(cluster, str) else cluster
        fields = run_plan.cluster_for_job(job, options)
        if asked.get("image") is not None:  # it decides by itself
            fields.pop("verl", None)
        cluster = Cluster.load({"name": "ray-cluster", **fields, **asked})
    where = provider(on) if on is not None else default_provider(gpus=cluster.device == "gpu")
    return RunRequest(job, options, cluster, where.plan(cluster), asked)


def run(  # noqa: PLR0913 - the options of `cloudrl run`
    job: Job | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | Mapping[str, Any] | str = "ray-cluster",
    on: str | None = None,
    to: str | os.PathLike[str] | None = None,
    down: bool | None = None,
    wait: bool = True,
    create_fleet: bool = False,
    confirm: Confirm = unattended,
    on_progress: OnProgress = silent,
    **options: Unpack[JobKeywords],
) -> Run:
    """Check, start a cluster, submit, follow to the end, bring the model home, and end the cluster: `cloudrl run`.

    A cluster of that name that is up and fits is used.

    Args:
        job: what to run, or a recipe by its name or path.
        overrides: in verl's own keys.
        cluster: as it shall be, or some of its fields, or only its name; the others are the recipe's.
        on: the provider; None is dstack for a cluster with GPUs, and this machine for one without.
        to: a folder that does not exist, for the merged model.
        down: whether to end the cluster at the end; None leaves it to `confirm`, and keeps it where nobody is asked.
            With True, too, `confirm` is asked where checkpoints would be lost or the cluster was up before.
        wait: follow the job; otherwise return once it is submitted, and leave the cluster up.
        create_fleet: on dstack, create a fleet if none fits.
        confirm: answers questions about money and what would be lost.
        on_progress: is told everything on the way.
        options: see `cloudrl.sdk.submission.JobKeywords`.

    Raises:
        InputError: job and cluster do not go together, or one of that name is up that does not fit.
        CapacityError: the provider cannot give what is asked for.
        ClusterFailed: the cluster did not become ready.
        JobFailed: the job failed; the cluster is ended or kept as `down` says.
        CheckpointError: there is nothing to be merged; the cluster goes on.
        CloudrlError: another error. A cluster that was started for a job that could not be submitted is ended if
            `down` is True, or if the job was refused and `down` is None, unless something would be lost; any other
            goes on. The message says which.
    """
    return plan_run(job, submit_options(overrides, options), cluster, on).execute(
        to=to, down=down, wait=wait, create_fleet=create_fleet, confirm=confirm, on_progress=on_progress
    )


def _refuse_existing(to: str | os.PathLike[str] | None) -> None:
    """Before anything is paid for."""
    if to is not None:
        from cloudrl.checkpoints.staging import refuse_existing

        refuse_existing(Path(to))


def _look(where: Provider, name: str) -> Status | None:
    """While it can be seen what it costs: at the end the server may be away."""
    try:
        return where.status(name)
    except CloudrlError:
        return None
