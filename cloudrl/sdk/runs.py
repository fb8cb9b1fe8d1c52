"""A job from nothing to a trained model: find or start a cluster, submit, follow, merge, and end the cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl import jobs, recipes
from cloudrl.errors import CapacityError, InputError
from cloudrl.jobs import SubmitOptions, run_plan
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.offers import verdicts_by_offer
from cloudrl.jobs.submission import Remarks, Submission
from cloudrl.options.job import JobKeywords, submit_options
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.providers.dstack.fleet import NoFleet
from cloudrl.providers.model import Plan
from cloudrl.providers.registry import ensure_name_free, provider
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, notify, silent, unattended
from cloudrl.sdk.cluster import Cluster, load_cluster, nothing_started, plan_to_start, start
from cloudrl.sdk.machines import Fleet
from cloudrl.sdk.results import advise_push, check_publication, refuse_small_disk
from cloudrl.sdk.running import RunningCluster
from cloudrl.spec import Job

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cloudrl.sdk.training import Run


@dataclass(frozen=True)
class RunRequest:
    """What is going to be started, and what for. Made by `plan_run`; nothing has been asked of anybody.

    Attributes:
        job: to be run.
        options: what is asked for beyond it.
        cluster: as it would be started.
        plan: the same as its provider would start it.
        asked: fields of the cluster that were asked for. One that is up has to have the nodes, GPUs, data, models and
            services among them; of the others it is said that they do not count.
    """

    job: Job
    options: SubmitOptions
    cluster: Cluster
    plan: Plan
    asked: Mapping[str, Any]

    @property
    def shape(self) -> str:
        """Nodes, GPUs and provider in words: `2 nodes with H100:8 on dstack`."""
        nodes = f"{self.cluster.nodes} node{'s' * (self.cluster.nodes > 1)}"
        gpus = f" with {self.cluster.gpu}" if self.cluster.device == "gpu" else ""
        gpus += " GPUs" if gpus and str(self.cluster.gpu).isdecimal() else ""
        if gpus and self.cluster.gpus_per_node is None:
            gpus += f", taken as {run_plan.expected_facts(self.plan, self.job).gpus_per_node} GPUs,"
        return f"{nodes}{gpus} on {self.plan.provider}"

    def check(self) -> Remarks:
        """Plan the job on the cluster that is expected; what the user should know of both.

        Raises:
            JobRefused: they do not go together, or verl would refuse the configuration; with all that is wrong.
        """
        remarks = self.submission.remarks
        return replace(remarks, notes=(*self.plan.notes, *remarks.notes))

    def check_silently(self, to: str | os.PathLike[str] | None) -> None:
        """Do the slow part of what `execute` begins with, which it need not do again; asks and reports nothing.

        Args:
            to: as for `execute`.
        """
        from cloudrl.checkpoints.staging import refuse_existing

        with nothing_started():
            if to is not None:
                refuse_existing(Path(to))
            self.check()

    @property
    def model(self) -> str | None:
        """The model that is trained, as it is asked for."""
        return self.options.model or self.job.model

    @cached_property
    def submission(self) -> Submission:
        """The job as it is planned for the cluster that is expected, with the verdict on its memory.

        Raises:
            JobRefused: as `check`.
        """
        return jobs.plan_job(self.job, self.options, self._expected)

    @cached_property
    def _expected(self) -> Snapshot:
        """Looked at once: it converts data and calls the reward function."""
        return run_plan.expected_snapshot(self.plan, self.job, self.options, shell=os.environ)

    def render(self, *, on_progress: OnProgress = silent) -> str:
        """Cluster and job, as `--dry-run` prints them; refuses what `execute` would."""
        notify(on_progress, *(f"note: {note}" for note in self.plan.notes))
        submission = jobs.prepare(self.job, self.options, self._expected, on_progress=on_progress)
        plan = self.plan.priced() if self.plan.needs_price else self.plan
        notify(on_progress, *self.memory_of_offers(plan))
        return f"{plan.render().rstrip()}\n{submission.render()}"

    def memory_of_offers(self, plan: Plan) -> Iterator[str]:
        """Whether the job fits on the machines that are offered, where that differs from the verdict of the plan.

        Args:
            plan: with its price and offers, if any.
        """
        offers = plan.price.offers if plan.price is not None else ()
        if not offers:
            return
        snapshot = self._expected

        def plan_on(facts: ClusterFacts) -> Submission:
            return jobs.plan_job(self.job, self.options, replace(snapshot, cluster=facts))

        yield from verdicts_by_offer(offers, snapshot.cluster, plan_on)

    def execute(  # noqa: PLR0913 - the options of `cloudrl run`
        self,
        *,
        to: str | os.PathLike[str] | None = None,
        push: str | None = None,
        down: bool | None = None,
        wait: bool = True,
        create_fleet: bool = False,
        after: str | None = None,
        watch: bool = False,
        confirm: Confirm = unattended,
        on_progress: OnProgress = silent,
    ) -> Run:
        """Do it; the arguments are those of `run`, and whether to tell looks at job and cluster, too."""
        from cloudrl.checkpoints.staging import refuse_existing

        on, name = self.plan.provider, self.cluster.name
        with nothing_started():
            if to is not None:
                refuse_existing(Path(to))
                refuse_small_disk(self.model, Path(to))
            if push is not None:
                check_publication(push)
            self.check()
            ensure_name_free(name, on)
            there = run_plan.find_running(self.cluster, self.asked, on=on)
            if to is not None and push is None and not provider(on).nodes_are_here:
                for notice in filter(None, [advise_push(self.model, to)]):
                    on_progress(notice)
            if after is not None and there is None:
                raise InputError(f"--after {after}: cluster {name} is not up", hint="See what is: cloudrl status")
        if there is not None:
            on_progress(Notice(f"using cluster {name}, which is up"))
            if ignored := run_plan.not_applied(self.asked):
                text = f"these settings only count for a new cluster: {', '.join(ignored)}"
                on_progress(Notice(text, f"End this one first: cloudrl down {name}"))
            cluster = RunningCluster(there, provider=on)
        else:
            cluster = self._start(create_fleet=create_fleet, confirm=confirm, on_progress=on_progress)
        from cloudrl.sdk.training import Training  # with checkpoints and their formats

        training = Training(self.job, self.options, cluster, down, confirm, on_progress, after, watch, push)
        return training.run(to, wait=wait)

    def _start(self, *, create_fleet: bool, confirm: Confirm, on_progress: OnProgress) -> RunningCluster:
        told: dict[str, Any] = {"confirm": confirm, "on_progress": on_progress}
        try:
            return Cluster.up(self.cluster, on=self.plan.provider, look=self.memory_of_offers, **told)
        except NoFleet as error:
            if not create_fleet:
                raise
            _allow_renting(error, confirm)
            fleet = Fleet.load(error.fleet.explicit_fields())
            cluster = Cluster.load(error.cluster.explicit_fields())
        none_fits = f"no fleet has, or can get, machines for {self.cluster.name}; new fleet {fleet.name} would"
        on_progress(Notice(none_fits))
        with nothing_started():
            fleet.create(**told)
        with nothing_started(fleet.name):
            plan = plan_to_start(cluster, self.plan.provider, look=self.memory_of_offers, **told)
        return start(plan, on_progress=on_progress)


def _allow_renting(error: NoFleet, confirm: Confirm) -> None:
    """Ask before machines are rented in place of the user's own. A yes that was given beforehand does not count."""
    if not error.own_fleets:
        return
    own = f"your own machines (fleet {', '.join(error.own_fleets)})"
    question = f"{error.message}. Rent machines of a cloud in place of {own}?"
    if not confirm(Question(question, default=False, explicit=True)):
        rent = f"cloudrl fleet create {error.fleet.name} --gpu {error.fleet.gpu or 0} --nodes {error.fleet.nodes}"
        hint = f"{error.hint or ''}\nTo rent: {rent}".strip()
        raise CapacityError(f"nothing was started: {error.message}", hint=hint) from error


def plan_run(
    job: Job | str, options: SubmitOptions, cluster: Cluster | Mapping[str, Any] | str | None, on: str | None
) -> RunRequest:
    """What `run` would start: the cluster that a recipe is made for, and what is asked for in its place.

    Args:
        job: what to run, or a recipe by its name or path.
        options: what is asked for beyond it.
        cluster: as it shall be, or some of its fields, or its name; the others are the recipe's.
        on: the provider; None is the first of dstack and Slurm that is set up for a cluster with GPUs, and this machine
            for one without.
    """
    job = recipes.load(job) if isinstance(job, str) else job
    fields, asked = cluster_fields(job, options, cluster)
    declared, where = load_cluster(fields, on)
    return RunRequest(job, options, declared, where.plan(declared), asked)


def cluster_fields(
    job: Job, options: SubmitOptions, cluster: Cluster | Mapping[str, Any] | str | None
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Fields of a cluster for a job, and those of them that were asked for; the others are the recipe's."""
    if isinstance(cluster, Cluster):
        fields = cluster.explicit_fields()
        return fields, fields
    asked = {"name": cluster} if isinstance(cluster, str) else cluster or {}
    recipes_own = run_plan.cluster_for_job(job, options)
    if asked.get("image") is not None:  # it decides by itself
        recipes_own.pop("verl", None)
    return {**recipes_own, **asked}, asked


def check(
    job: Job | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | Mapping[str, Any] | str | None = None,
    on: str | None = None,
    **options: Unpack[JobKeywords],
) -> tuple[str, ...]:
    """Check a job and the cluster that `run` would start for it, before anything costs money.

        for sentence in cloudrl.check("grpo", cluster={"gpu": "H100:8", "nodes": 2}, on="dstack"):
            print(sentence)

    Nothing is started, and nothing is asked. Of verl 0.9.1 the whole configuration is checked; of another release, or
    with a verl of one's own, a note says that it is not.

    Args:
        job: as for `run`.
        overrides: as for `run`.
        cluster: as for `run`.
        on: as for `run`.
        options: see `cloudrl.jobs.SubmitOptions`.

    Returns:
        What the user should know, a sentence each; warnings first.

    Raises:
        JobRefused: job and cluster do not go together, or verl would refuse the configuration. It has all the reasons
            as `findings`, and the overrides that settle them as `fix`.
    """
    return plan_run(job, submit_options(overrides, options), cluster, on).check().sentences


def run(  # noqa: PLR0913 - the options of `cloudrl run`
    job: Job | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | Mapping[str, Any] | str | None = None,
    on: str | None = None,
    to: str | os.PathLike[str] | None = None,
    push: str | None = None,
    down: bool | None = None,
    wait: bool = True,
    create_fleet: bool = False,
    after: str | None = None,
    confirm: Confirm = unattended,
    on_progress: OnProgress = silent,
    **options: Unpack[JobKeywords],
) -> Run:
    """Check, start a cluster, submit, follow to the end, bring the model home, and end the cluster: `cloudrl run`.

        run = cloudrl.run("grpo-tiny", on="local", steps=20, to="./model", down=True)
        print(run.progress, run.model)

    A cluster of that name that is up and fits is used.

    Args:
        job: what to run, or a recipe by its name or path.
        overrides: in verl's own keys.
        cluster: as it shall be, or some of its fields, or only its name; the others are the recipe's. Without a name
            it has its provider's default name: `local-cluster`, `slurm-cluster`, or `ray-cluster` on dstack.
        on: the provider; None is the first of dstack and Slurm that is set up for a cluster with GPUs, and this machine
            for one without.
        to: a folder that does not exist, for the merged model.
        push: `ORG/NAME` of a private repository of the Hub, in which the head publishes the model.
        down: whether to end the cluster at the end; None leaves it to `confirm`, and keeps it without a terminal.
            With True, too, `confirm` is asked where checkpoints would be lost or the cluster was up before.
        wait: follow the job; otherwise return once it is submitted, and leave the cluster up.
        create_fleet: on dstack, create a fleet if none fits.
        after: a job of the cluster that is up, by its id or URL; its end is waited for first.
        confirm: answers questions about money and what would be lost.
        on_progress: receives everything on the way.
        options: see `cloudrl.jobs.SubmitOptions`.

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
        to=to,
        push=push,
        down=down,
        wait=wait,
        create_fleet=create_fleet,
        after=after,
        confirm=confirm,
        on_progress=on_progress,
    )
