"""A job on a cluster that is up: submit, follow, merge or publish the model, and end or keep the cluster."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloudrl.errors import CheckpointError, CloudrlError, FailedError, InputError, Interrupted
from cloudrl.jobs import JobHandle, Progress, SubmitOptions
from cloudrl.jobs.handle import WATCH, next_commands
from cloudrl.providers.model import Status
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question
from cloudrl.sdk.checkpoints import merge_result, publish_result
from cloudrl.sdk.cluster import report_warnings
from cloudrl.sdk.costs import costs, with_state
from cloudrl.sdk.running import RunningCluster
from cloudrl.sdk.submission import follow, submit
from cloudrl.sdk.teardown import TeardownImpact, assess, end, ending, patient, report_state
from cloudrl.sdk.watching import watch as watch_job
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
        url: of the repository that the model was published in, where that was asked for.
    """

    cluster: RunningCluster
    job: JobHandle
    progress: Progress | None = None
    model: Path | None = None
    ended: bool = False
    url: str | None = None


@dataclass
class Training:
    """From a cluster that is up to what becomes of it, and how far that has come; arguments as those of `run`."""

    asked: Job
    options: SubmitOptions
    cluster: RunningCluster
    down: bool | None
    confirm: Confirm
    on_progress: OnProgress
    after: str | None = None
    watch: bool = False
    push: str | None = None
    job: JobHandle | None = None
    first_status: Status | None = None
    """While it can be seen what the cluster costs: at the end the server may be away."""
    again: str = "Run the same command again: it uses the cluster that is up"
    in_vain: bool = False
    """Whether the cluster was started for a job that never came, so that no client waits for it."""

    def run(self, to: str | os.PathLike[str] | None, *, wait: bool) -> Run:
        """Submit, follow to the end, merge the model, or say how, and end the cluster."""
        try:
            with suppress(CloudrlError):
                self.first_status = self.cluster.status()
                if not self.cluster.owned:  # of one that it has started, `up` has said it
                    report_warnings(self.first_status, self.on_progress)
            done = self._submit_and_follow(to, wait=wait)
        except KeyboardInterrupt:
            stopped = Interrupted("interrupted", hint=self.again)
            raise with_state(stopped, self.cluster.get_provider(), self.cluster.name) from None
        except FailedError as error:  # the job's, or its cluster was started again without it
            if self.job is None:
                raise self._with_state(error) from error
            self._end_after_error()
            raise
        except CloudrlError as error:
            raise self._with_state(error) from error
        return done if not wait else replace(done, ended=self._end())

    def _submit_and_follow(self, to: str | os.PathLike[str] | None, *, wait: bool) -> Run:
        cluster, on_progress = self.cluster, self.on_progress
        told: dict[str, Any] = {"confirm": self.confirm, "on_progress": on_progress}
        job = self.job = submit(cluster.connection, self.asked, self.options, after=self.after, **told)
        if not wait:
            return Run(cluster, job)
        self.again = f"Go on: {WATCH} {job.url}"
        progress = (watch_job if self.watch else follow)(job, on_progress=on_progress)
        merge = f"cloudrl checkpoints merge --cluster {cluster.name} --to {shlex.quote(str(to or './model'))}"
        self.again = f"Go on: {merge}"
        retention = self.first_status.retention if self.first_status is not None else None
        is_told = retention is None or retention.location.removeprefix("in ") in str(job.checkpoint_dir)
        location = "" if is_told or retention is None else f", {retention.location}"
        text = f"{job.submission_id} succeeded; checkpoints are in {job.checkpoint_dir}{location}"
        on_progress(Notice(text, next_commands(job) if to is None and self.push is None else ""))
        url = self._publish(job)
        if to is None:
            return Run(cluster, job, progress, url=url)
        checkpoint, merged = merge_result(job, to, on_progress=on_progress)
        look = f"Report: cloudrl report {job.url}\nServe:  vllm serve {shlex.quote(str(merged.path))}"
        on_progress(Notice(f"the model is in {merged.path}", look))
        cluster.copied.add(checkpoint.info.version)
        return Run(cluster, job, progress, merged.path.absolute(), url=url)

    def _publish(self, job: JobHandle) -> str | None:
        """The repository's URL; None where that was not asked for."""
        if self.push is None:
            return None
        before, name = self.again, self.cluster.name
        self.again = f"Go on: cloudrl checkpoints push --on-head --cluster {name} --to {shlex.quote(self.push)}"
        checkpoint, url = publish_result(job, self.push, on_progress=self.on_progress)
        self.on_progress(Notice(f"the model is at {url}"))
        self.cluster.copied.add(checkpoint.info.version)
        self.again = before
        return url

    def _end(self) -> bool:
        """End the cluster, or keep it, and say which; whether it was ended."""
        where, name, on_progress = self.cluster.get_provider(), self.cluster.name, self.on_progress
        again = patient(lambda text: on_progress(Notice(text)))
        with ending(where, name, self.first_status.price_per_hour if self.first_status is not None else None):
            if self.down is False:
                report_state(where, name, on_progress)
                return False
            impact = again(partial(assess, where, name))
        with ending(where, name, impact.status.price_per_hour):
            others, own = reasons_to_keep(impact, self.cluster)
            wanted, why = bool(self.down), "; ".join([*others, *own])
            if not impact.status.is_over and (why or self.down is None):
                for notice in impact.notices():
                    on_progress(notice)
                text = f"End cluster {name}? It is up{costs(impact.status)}{'; ' * bool(why)}{why}."
                explicit = self.down is None or bool(others)
                wanted = self.confirm(Question(text, default=self.in_vain and not why, explicit=explicit))
            if wanted:
                end(where, impact, on_progress=on_progress, again=again)
                return True
            if why:
                on_progress(Notice(f"cluster {name} is not ended: {why}"))
            report_state(where, name, on_progress)
            return False

    def _end_after_error(self) -> bool:
        """The error that comes first is the one that counts."""
        try:
            return self._end()
        except CloudrlError as second:
            text = f"then, while the cluster was being ended: {second.message}"
            self.on_progress(Notice(text, second.hint or "cloudrl status"))
            return False

    def _with_state(self, error: CloudrlError) -> CloudrlError:
        """The error, with what becomes of the cluster.

        One that was started for a job that never came is ended: with `down` whatever the error, without an answer to
        that only if the job was refused, as it would be again.
        """
        refused = isinstance(error, (InputError, CheckpointError)) and self.down is not False
        self.in_vain = self.job is None and self.cluster.owned and (self.down is True or refused)
        if self.in_vain and self._end_after_error():
            text = f"{error.message}; cluster {self.cluster.name} is ended again"
            return type(error)(text, hint=error.hint)
        return with_state(error, self.cluster.get_provider(), self.cluster.name)


def reasons_to_keep(impact: TeardownImpact, cluster: RunningCluster) -> tuple[list[str], list[str]]:
    """Why not to end it without a question: what others may lose, and what oneself may; a sentence each."""
    others = impact.losses_of_others if not cluster.owned or impact.running_jobs else []
    own = [] if cluster.owned else ["it was up before this run"]
    return others, [*own, "checkpoints would be lost with it"] if impact.loses(cluster.copied) else own
