"""Rank 0 has each step of a durable job in the job's mirror, with the job's record and what it was sent with."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Collection, Dict, Iterable, Optional, Sequence, Set, Tuple

from cloudrl.errors import CheckpointError, ConnectionFailed
from cloudrl.node.background import call_within
from cloudrl.node.mirror_progress import MirrorProgress, run_subject, speed_text
from cloudrl.node.mirror_saves import COMING, GONE, RunInMirror, forget_upload, remove_save, write_save
from cloudrl.node.mirror_stores import FAILURES, Store
from cloudrl.node.mirrored_jobs import MirroredJobs
from cloudrl.node.uploads import Store as Files
from cloudrl.protocol import job_calls
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.mirrors import MirroredFile, MirroredSave, MirroredStep, MirrorStatus, UploadState
from cloudrl.protocol.report import NodeReport
from cloudrl.saves.copies import newest_whole_step
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.lineage import without_abandoned
from cloudrl.saves.mirrored import (
    UploadPlan,
    attempt_of,
    plan_removal,
    plan_upload,
    save_name,
    valid_saves,
    with_mirror,
)
from cloudrl.units import duration_text

_WAITED_FOR_S, _ANSWER_S = 1800.0, 60.0


class Mirrors:
    """Orders uploads, writes the manifests, removes what need not stay.

    Args:
        reports: of all nodes, the newest.
        agent: the client of a node's agent, given its report.
        store: opens a mirror.
        files: what users have sent to rank 0.
        is_urgent: whether the cluster may end soon.
        say: prints a line.
        now: seconds since the epoch.
        clock: seconds that never run backwards.

    Attributes:
        begun: run -> the step that is being uploaded; None without any.
        jobs: what the mirrors remember of jobs.
    """

    def __init__(
        self,
        reports: Callable[[], Sequence[NodeReport]],
        agent: Callable[[NodeReport], AgentClient],
        store: Callable[[str], Store],
        files: Optional[Files] = None,
        *,
        is_urgent: Callable[[], bool],
        say: Callable[[str], object],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reports, self._agent, self._store = reports, agent, store
        self._is_urgent, self._say, self._now, self._clock = is_urgent, say, now, clock
        self._silent_since: Dict[str, float] = {}
        self._runs: Dict[Tuple[str, str], RunInMirror] = {}
        self._saves: Dict[Tuple[str, str], Tuple[MirroredSave, ...]] = {}
        self._progress = MirrorProgress(say)
        self.jobs = MirroredJobs(store, files, self._progress)
        self.begun: Dict[str, Optional[int]] = {}

    # -- steps ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> Tuple[MirroredStep, ...]:
        """What the mirrors had at the last look."""
        return tuple(
            MirroredStep(save.run, save.step, mirror, save.size_bytes, save.seconds, save.mirrored_at)
            for (mirror, _), saves in sorted(self._saves.items())
            for save in sorted(saves, key=lambda save: save.step)
        )

    @property
    def statuses(self) -> Tuple[MirrorStatus, ...]:
        """How far they are, of the jobs whose steps are copied or were since the cluster was ready."""
        return self._progress.statuses()

    def pace(self, run: str) -> Tuple[float, float]:
        """As `StepCopies.pace`, of the newest step of a run that a mirror has."""
        saves = [save for (_, of), saves in self._saves.items() if of == run for save in saves]
        took_s = max(saves, key=lambda save: save.step).work_s if saves else 0.0
        return took_s if self.begun.get(run) is not None else 0.0, took_s

    def saves(self, job: DurableJob) -> Dict[int, MirroredSave]:
        """Step -> the save of it that the mirror of a job has, and that a resume may take.

        Raises:
            OSError, CloudrlError, http.client.HTTPException: the mirror does not answer.
        """
        return valid_saves(job, self._look(job)[""])

    def with_saves(self, job: DurableJob, inventory: Inventory, unreadable: Collection[Tuple[str, int]]) -> Inventory:
        """What the nodes have, and what the mirror of a job has besides.

        Args:
            job: that is about to go on.
            inventory: of the nodes.
            unreadable: (run, step) of saves that could not be brought.

        Raises:
            ConnectionFailed: the mirror does not answer, and may have a later step than the nodes. It is waited for,
                half an hour in a row at most.
            CheckpointError: it has not answered for so long, and the nodes have no step either.
        """
        if not job.mirror:
            return inventory
        try:
            saves = call_within(_ANSWER_S, lambda: self.saves(job), "it")  # a volume may hang
        except FAILURES as error:
            since = self._silent_since.setdefault(job.job_id, self._clock())
            told = max((attempt.saved_step for attempt in job.attempts), default=0)
            newest = newest_whole_step(without_abandoned(inventory, job), job.run, job.world_size)
            has_all = newest is not None and 0 < told <= newest[0]
            is_late = self._clock() - since > _WAITED_FOR_S
            if is_late and newest is None:  # it may have all that was trained
                raise CheckpointError(
                    f"the mirror {job.mirror} has not answered for {duration_text(_WAITED_FOR_S)} ({error}), and no "
                    "node has a whole step; once it answers, the job can be resumed"
                ) from error
            if has_all or is_late:
                self._progress.tell(job.job_id, f"warning: job {job.job_id} goes on without its mirror: {error}")
                return inventory
            raise ConnectionFailed(
                f"the mirror {job.mirror} does not answer: {error}", hint="It is asked again"
            ) from error
        self._silent_since.pop(job.job_id, None)
        readable = [save for step, save in saves.items() if (job.run, step) not in unreadable]
        return with_mirror(inventory, job, job.mirror, readable)

    def begin(self, mirror: str) -> None:
        """Make a mirror that is not there yet; no start of the cluster does so later, as its volume may be missing.

        Raises:
            OSError, CloudrlError, http.client.HTTPException: it cannot be written.
        """
        self._store(mirror).begin()

    def _look(self, job: DurableJob) -> Dict[str, Tuple[MirroredSave, ...]]:
        key = job.mirror, job.run
        if key not in self._runs:
            self._runs[key] = RunInMirror(self._store(job.mirror), job.run)
        states = self._runs[key].look()
        gone = {(save.attempt, save.step) for save in states[GONE]}
        states[""] = tuple(save for save in states[""] if (save.attempt, save.step) not in gone)
        self._saves[key] = states[""]
        return states

    def upload(self, jobs: Sequence[DurableJob], inventory: Inventory) -> bool:
        """Order what the mirrors lack of the newest whole step of each job; returns whether anything is missing.

        Args:
            jobs: those that may go on.
            inventory: of all nodes.
        """
        mirrored = [job for job in jobs if job.mirror]
        self.watch(mirrored)
        unrecorded, is_missing = self.jobs.flush(), False
        for job in mirrored:
            if job.job_id in unrecorded:  # a step in the mirror without its attempt would be nobody's
                is_missing = True
                continue
            subject = run_subject(job.mirror, job.run)
            try:
                is_missing = self._upload(job, inventory) or is_missing
                self._progress.tell(subject, "")
            except FAILURES as error:
                self._progress.tell(subject, f"warning: the mirror {job.mirror} does not take run {job.run}: {error}")
                is_missing = True
        return is_missing or bool(unrecorded)

    def watch(self, jobs: Iterable[DurableJob]) -> None:
        """Tell how far the mirrors of these jobs are, and of no others that something is on its way."""
        self._progress.watch({(job.mirror, job.run) for job in jobs})

    def _upload(self, job: DurableJob, inventory: Inventory) -> bool:
        states = self._look(job)
        valid, plan = valid_saves(job, states[""]), None
        self._progress.has(job.mirror, job.run, valid.values())
        if not inventory.silent:
            kept = without_abandoned(inventory, job)
            plan = plan_upload(kept, job, tuple(valid.values()), first=self.begun.get(job.run))
        self.begun[job.run] = None if plan is None else plan.step
        if plan is not None:
            self._send(job, plan, states)
        else:
            self._progress.is_sent(job.mirror, job.run)
        try:
            self._clear(job, states, plan)
            self._progress.tell(f"{job.mirror} {job.run} old", "")
        except FAILURES as error:
            self._progress.tell(
                f"{job.mirror} {job.run} old", f"warning: old steps of run {job.run} stay in {job.mirror}: {error}"
            )
        return plan is not None

    def _send(self, job: DurableJob, plan: UploadPlan, states: Dict[str, Tuple[MirroredSave, ...]]) -> None:
        """Have the nodes copy what a step consists of; once all of it is there, the manifest makes it count."""
        coming = next((save for save in states[COMING] if _is_of(save, plan)), None)
        if coming is None:
            coming = _save(job, plan, {}, self._now())
            write_save(self._store(job.mirror), coming, COMING)
        states_of_nodes = self._order(plan, coming.mirrored_at)
        self._progress.sending(job.mirror, job.run, plan, states_of_nodes)
        sums = {path: crc for state in states_of_nodes.values() for path, crc in state.sums.items()}
        if any(state.error for state in states_of_nodes.values()):
            self.begun[job.run] = None  # a newer step may do better
        if any(file.path not in sums for order in plan.orders for file in order.files):
            return
        sent = states_of_nodes.values()
        seconds, work_s = max(state.seconds for state in sent), max(state.work_s for state in sent)
        save = replace(_save(job, plan, sums, self._now()), seconds=seconds, work_s=work_s)
        write_save(self._store(job.mirror), save)
        self.begun[job.run] = None
        self._progress.is_sent(job.mirror, job.run, save)
        key = job.mirror, job.run
        self._saves[key] = (*self._saves.get(key, ()), save)
        self._say(f"run {job.run}: step {plan.step}: {job.mirror} has it now, {speed_text(save)}")

    def _order(self, plan: UploadPlan, began_at: float) -> Dict[int, UploadState]:
        """Rank -> how far it is, of the nodes that answer."""
        reports = {report.rank: report for report in self._reports()}
        states: Dict[int, UploadState] = {}
        for order in plan.orders:
            if order.rank not in reports:
                continue
            urgent = replace(order, is_urgent=self._is_urgent(), began_at=began_at)
            try:
                state = job_calls.order_upload(self._agent(reports[order.rank]), urgent)
            except FAILURES as error:
                self._progress.no_answer(order, error)
                continue
            self._progress.answer(order, state)
            states[order.rank] = state
        return states

    def _clear(self, job: DurableJob, states: Dict[str, Tuple[MirroredSave, ...]], plan: Optional[UploadPlan]) -> None:
        """Remove what need not stay, and what uploads and removals have left that broke off."""
        store, newest = self._store(job.mirror), max((save.step for save in states[""]), default=0)
        own = {save_name(attempt) for attempt in job.attempts}
        left = [
            save
            for save in states[COMING]
            if save.attempt in own and not (plan is not None and _is_of(save, plan))
            if save.step <= newest or save.attempt != attempt_of(job, save.step)
        ]
        for save in left:
            if any((one.attempt, one.step) == (save.attempt, save.step) for one in states[""]):
                forget_upload(store, save)
            else:
                remove_save(store, save)
        for save in (*states[GONE], *plan_removal(job, states[""])):
            remove_save(store, save)
            self._say(f"run {job.run}: step {save.step} is removed from {job.mirror}")


def all_mirrors(jobs: Iterable[Optional[DurableJob]], more: str = "") -> Set[str]:
    """The addresses of the mirrors of jobs, and another one."""
    return {address for address in (more, *(job.mirror for job in jobs if job is not None)) if address}


def _is_of(save: MirroredSave, plan: UploadPlan) -> bool:
    return (save.attempt, save.step) == (plan.attempt, plan.step)


def _save(job: DurableJob, plan: UploadPlan, sums: Dict[str, int], now: float) -> MirroredSave:
    files = tuple(
        MirroredFile(file.path, file.size_bytes, file.modified_at, sums.get(file.path, 0))
        for order in plan.orders
        for file in order.files
    )
    return MirroredSave(job.run, plan.step, plan.attempt, files, now)
