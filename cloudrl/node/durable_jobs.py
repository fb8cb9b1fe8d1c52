"""The supervisor of rank 0 with the cluster's own volumes, Ray, agents and logs behind it."""

from __future__ import annotations

import contextlib
import http.client
import shlex
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from cloudrl.durable.attempt_plan import divides, newest_whole, plan_attempt, waits_for_room
from cloudrl.durable.queue import PlanFailed, Planned, Remembered
from cloudrl.durable.verdicts import RayEnd
from cloudrl.errors import CheckpointError, CloudrlError
from cloudrl.hangs.driver_log import STEP_LINE
from cloudrl.node.background import call_within, repeat
from cloudrl.node.driver_tail import LOG_TAIL_BYTES, driver_tail
from cloudrl.node.job_files import JobFiles
from cloudrl.node.job_journal import JobJournal
from cloudrl.node.machinery import Machinery
from cloudrl.node.masking import Masker
from cloudrl.node.mirror_folder import NotMountedError
from cloudrl.node.mirror_stores import FAILURES, Store
from cloudrl.node.mirrors import Mirrors, all_mirrors
from cloudrl.node.old_steps import OldSteps
from cloudrl.node.ray import Dashboard
from cloudrl.node.replication import ReplicationHub
from cloudrl.node.save_wishes import last_save, notices_of
from cloudrl.node.scores import Scores
from cloudrl.node.step_copies import EVERY_S as COPY_EVERY_S
from cloudrl.node.step_copies import StepCopies
from cloudrl.node.supervisor import Supervisor
from cloudrl.node.tracker import point_at_whole_step
from cloudrl.protocol import job_calls
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import DurableJob, newest
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.folders import TRAINING_NODES
from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.saves.copies import choose_nodes, partners_stay
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.lineage import without_abandoned
from cloudrl.saves.resume import Ranks, ResumePlan
from cloudrl.saves.survey import cluster_inventory

_RECORD_TIMEOUT_S, _LOOK_AGAIN_S = 5.0, 30.0
_ASK_AGAIN_S, _ASK_FOR_S, _ANSWER_S = 1.0, 30.0, 60.0
_LAST_STEP_S = 3600.0
"""After the end of a job its last step is still copied."""


class DurableJobs:
    """The jobs of a cluster that outlive its machines; it takes them once the cluster is ready.

    Args:
        nodes: how many there are.
        cluster: the cluster's name, for messages.
        cluster_run, attempt: the ids of the cluster's run, and of this start of it.
        checkpoints: the folder of checkpoints.
        reports: of all nodes, the newest.
        agent: the client of a node's agent, given its report.
        dashboard: Ray's.
        ray_logs: where Ray keeps the logs of drivers; None before it is up.
        files: what users have sent, on its way to all nodes.
        store: opens a mirror by its address.
        mirror: the address of one in which jobs of an earlier start may be; "" for none.
        secrets: what must not be written down.
        hang: what the hang watch sees.
        is_shared: whether all nodes save into one folder.
        is_urgent: whether the cluster may end soon.
        silence_s: for how long some node has not been heard of.
        say: prints a line.
    """

    def __init__(  # noqa: PLR0913  everything that a node has
        self,
        *,
        nodes: int,
        cluster: str,
        cluster_run: str,
        attempt: str,
        checkpoints: Path,
        reports: Callable[[], Sequence[NodeReport]],
        agent: Callable[[NodeReport], AgentClient],
        dashboard: Dashboard,
        ray_logs: Callable[[], Optional[Path]],
        files: ReplicationHub,
        store: Callable[[str], Store],
        mirror: str = "",
        secrets: Callable[[], Iterable[str]],
        hang: Callable[[], Optional[JobState]],
        is_shared: Callable[[], bool],
        is_urgent: Callable[[], bool],
        silence_s: Callable[[], float],
        say: Callable[[str], object],
    ) -> None:
        self.journal = JobJournal(checkpoints)
        self._cluster, self._checkpoints, self._mirror_of_cluster = cluster, checkpoints, mirror
        self._reports, self._agent, self._dashboard, self._is_shared = reports, agent, dashboard, is_shared
        self._hang, self._ray_logs, self._files, self._secrets, self._say = hang, ray_logs, files.files, secrets, say
        self._copies = StepCopies(reports, agent, self._inventory, is_urgent=is_urgent, say=say)
        self.mirrors = Mirrors(reports, agent, store, files.files, is_urgent=is_urgent, say=say)
        self._old_steps = OldSteps(reports, agent, say=say)
        self._job_files = JobFiles(files, reports, agent)
        self._mirrored: Tuple[Tuple[str, int], ...] = ()
        self._uploaded: Tuple[Tuple[str, int], ...] = ()
        self._mirror_again_at = self._upload_again_at = 0.0
        self._newer: Dict[str, Tuple[Tuple[int, str], ...]] = {}
        self._orders: Dict[str, Tuple[int, ...]] = {}
        machinery = Machinery(
            jobs=dashboard.jobs, submit=dashboard.submit, stop=dashboard.stop, record=self._record, plan=self._plan,
            prepare=self._prepare, end=self._end, hang=hang, silence_s=silence_s,
            copies=min(2, nodes), notices=lambda: notices_of(reports()),
            saved=lambda submission_id: last_save(reports(), submission_id),
        )  # fmt: skip
        self.supervisor = Supervisor(attempt, cluster_run, machinery, say=say)
        self._scores = Scores(ray_logs, self.supervisor.note, say=say)

    def start(self, own: Optional[DurableJob] = None) -> None:
        """The cluster is ready: take up what its volumes remember, in a thread of its own.

        Args:
            own: the job that the cluster is for. One that has failed begins anew, as somebody has asked for.
        """
        threading.Thread(target=self._start, args=(own,), daemon=True).start()

    @property
    def has_work(self) -> bool:
        """Whether any job has not ended for good, so that the cluster is not idle."""
        return self.supervisor.has_work

    def copy_pace(self) -> Tuple[float, float]:
        """See `StepCopies.pace`: of the job that runs, until a step of it outlives the machines that go."""
        job = next((job for job in self.supervisor.jobs if job.open_attempt is not None), None)
        if job is None or self._is_shared():
            return 0.0, 0.0
        stay = partners_stay(sorted(self._addresses()), notices_of(self._reports()))
        return (self.mirrors if job.mirror and not stay else self._copies).pace(job.run)

    def accept(self, job: DurableJob) -> DurableJob:
        """Take a job from a client.

        Raises:
            ApiError: see `Supervisor.accept`; BAD_REQUEST, it has no command.
        """
        try:
            shlex.split(job.request["entrypoint"])
        except (KeyError, ValueError, AttributeError) as error:
            raise ApiError(ErrorCode.BAD_REQUEST, f"its command cannot be read: {error}") from error
        if job.mirror:
            self.supervisor.note(Remembered(self.mirrors.jobs.take(job)))
        if job.package and self._files.manifest(job.package) is None:
            raise ApiError(ErrorCode.CONFLICT, "its package is not on rank 0; submit it again")
        try:
            return self.supervisor.accept(replace(job, attempts=(), outcome=None))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ApiError(ErrorCode.NO_SPACE, f"the job cannot be recorded: {reason}") from error

    def _start(self, own: Optional[DurableJob]) -> None:
        records = [*self.journal.read(), *self._records_of_others()]
        if own is not None and own.mirror and not any(record.job_id == own.job_id for record in records):
            self._asked_for_a_while(f"the mirror {own.mirror}", partial(_begin, self.mirrors, own.mirror))
        going_on = [record for record in records if record.cluster_run == self.supervisor.cluster_run]
        going_on = [record for record in going_on if record.outcome is None]
        for mirror in sorted(all_mirrors([own, *going_on], self._mirror_of_cluster)):
            records += self._asked_for_a_while(f"the mirror {mirror}", partial(self.mirrors.jobs.records, mirror))
        if own is None:
            self.supervisor.restore(records)
        else:
            known = [record for record in records if record.job_id == own.job_id]
            self.supervisor.restore([record for record in records if not (record in known and record.has_failed)])
            self.supervisor.take(replace(own, kept_before=newest(*known).keepings) if known else own)
        self.supervisor.start()
        repeat(self._mirror, COPY_EVERY_S)
        repeat(self._upload, COPY_EVERY_S)  # a mirror that hangs holds up nothing else

    def _upload(self) -> None:
        """Have what was saved in the mirrors, and the records of jobs."""
        jobs = [job for job in self._copied_jobs() if job.mirror]
        saved = _saved_steps(jobs)
        if not jobs or (saved == self._uploaded and time.monotonic() < self._upload_again_at):
            self.mirrors.watch(jobs)
            self.mirrors.jobs.flush()
            return
        with contextlib.suppress(CloudrlError):  # a node is silent: looked for again
            inventory = self._inventory()
            is_missing = self.mirrors.upload(self._scores.of_all(jobs, inventory), inventory)
            self._uploaded = saved
            self._upload_again_at = time.monotonic() + (0.0 if is_missing else _LOOK_AGAIN_S)

    def _copied_jobs(self) -> List[DurableJob]:
        """Those whose steps are copied now."""
        jobs = [job for job in self.supervisor.jobs if job.saves and job.last is not None and _is_of_now(job)]
        addresses = self._addresses()
        return [
            job
            for job in jobs
            if divides(job, len(addresses)) and (not job.training_nodes or job.job_id in self._orders)
        ]

    def _mirror(self) -> None:
        """Have what was saved on a second machine, and clear what is old; without news that is done less often."""
        jobs, addresses = self._copied_jobs(), self._addresses()
        if not jobs:
            return
        saved = _saved_steps(jobs)
        if saved == self._mirrored and time.monotonic() < self._mirror_again_at:
            return
        with contextlib.suppress(CloudrlError):  # a node is silent: looked for again
            has_partners = len(addresses) > 1 and not self._is_shared()
            is_missing = has_partners and self._copies.mirror(jobs, addresses, self._orders)
            begun = {job.run: {self._copies.begun.get(job.run), self.mirrors.begun.get(job.run)} for job in jobs}
            inventory = self._inventory()
            scored = self._scores.of_all(jobs, inventory)
            self._old_steps.clear(scored, inventory, addresses, self._orders, begun)
            self._mirrored = saved
            self._mirror_again_at = time.monotonic() + (0.0 if is_missing else _LOOK_AGAIN_S)

    def _addresses(self) -> Dict[int, str]:
        """Node -> IP address, of those that can train."""
        return {report.rank: report.ip for report in self._reports() if report.gpus > 0}

    def _records_of_others(self) -> List[DurableJob]:
        """What the volumes of other nodes remember; one that does not answer is asked again for a while."""

        def ask(report: NodeReport) -> Sequence[DurableJob]:
            read = lambda: job_calls.read_journal(self._agent(report), report.rank)  # noqa: E731
            return self._asked_for_a_while(f"rank {report.rank}", read)

        return [job for jobs in side_by_side(ask, self._others()) for job in jobs]

    def _asked_for_a_while(self, who: str, ask: Callable[[], Sequence[DurableJob]]) -> Sequence[DurableJob]:
        ends_at = time.monotonic() + _ASK_FOR_S
        while True:
            try:
                return call_within(_ANSWER_S, ask, who)
            except NotMountedError as error:
                self._say(f"{who} has no jobs: {error}")
                return ()
            except FAILURES as error:
                if time.monotonic() > ends_at:
                    self._say(f"warning: {who} does not tell of its jobs: {error}")
                    return ()
            time.sleep(_ASK_AGAIN_S)

    def _others(self) -> List[NodeReport]:
        return [report for report in self._reports() if report.rank]

    def _record(self, job: DurableJob) -> int:
        """On this node, and on as many others as answer now."""
        self.journal.write(job)
        self.mirrors.jobs.note(job)

        def tell(report: NodeReport) -> bool:
            try:
                job_calls.record_job(self._agent(report), report.rank, job, timeout_s=_RECORD_TIMEOUT_S)
            except (CloudrlError, OSError, http.client.HTTPException):
                return False
            return True

        return 1 + sum(side_by_side(tell, self._others()))

    def _inventory(self) -> Inventory:
        reports = self._reports()
        own = next(report for report in reports if report.rank == 0)
        return cluster_inventory(reports, self._agent(own).inventory)

    def _plan(self, job: DurableJob) -> Union[Planned, PlanFailed]:
        if job.chooses_step:
            return Planned(job.job_id, point_at_whole_step(job.request, self._say))
        addresses = self._addresses()
        if (without_files := self._without_files(job)) is not None:
            return without_files
        if job.saves and not divides(job, len(addresses)):
            among = f"{job.training_nodes} of " if job.training_nodes else ""
            nodes = f"{job.world_size} ranks do not divide among {among}{len(addresses)} nodes"
            return PlanFailed(job.job_id, f"{nodes}; go on with other numbers: cloudrl jobs resume {job.job_id}")
        try:
            return self._planned(job, addresses) if job.saves else Planned(job.job_id, 0)
        except CheckpointError as error:
            return PlanFailed(job.job_id, error.message)
        except CloudrlError as error:
            return PlanFailed(job.job_id, error.message, may_pass=True)

    def _without_files(self, job: DurableJob) -> Optional[PlanFailed]:
        """Bring what it was sent with to nodes that have lost it; None once all have it."""
        try:
            missing = self._job_files.missing(job)
            if missing and job.mirror:
                self.mirrors.jobs.bring_files(job)
                missing = self._job_files.missing(job)
            waits_for = "" if missing else self._job_files.waits_for(job)
        except (CloudrlError, ApiError, OSError, ValueError, http.client.HTTPException) as error:
            return PlanFailed(job.job_id, f"its files cannot be copied to rank 0: {error}", may_pass=True)
        if missing:
            return PlanFailed(job.job_id, f"{missing} is on no node any more; submit it again")
        if waits_for:
            return PlanFailed(job.job_id, waits_for, may_pass=True, pause_s=COPY_EVERY_S)
        return None

    def _planned(self, job: DurableJob, addresses: Mapping[int, str]) -> Union[Planned, PlanFailed]:
        inventory = self.mirrors.with_saves(job, self._inventory(), self._copies.unreadable)
        order = self._order(job, inventory, addresses)
        has_places = bool(order) or not job.training_nodes or self._is_shared()  # otherwise any node finds the files
        # one node brings what all nodes find in their folder
        getting = dict(list(addresses.items())[:1]) if self._is_shared() else addresses
        taken = {node: addresses[node] for node in order} or addresses
        free = {node.rank: node.usage.free_bytes for node in self._reports() if node.usage}
        if waits_for := waits_for_room(job, inventory, free, getting.keys() & taken.keys(), self._cluster):
            return PlanFailed(job.job_id, waits_for, may_pass=True)
        if has_places and (waits_for := self._copies.bring(job, inventory, getting, order)):
            return PlanFailed(job.job_id, waits_for, may_pass=True, pause_s=COPY_EVERY_S)
        ranks = Ranks(job.world_size, job.training_nodes or len(addresses), taken, are_placed=job.is_placed)
        plan = plan_attempt(job, inventory, ranks, checkpoint_dir=str(self._checkpoints), cluster=self._cluster)
        lost = [step for run, step in self._copies.unreadable if run == job.run]
        if lost and plan.planned.from_step == 0:  # nothing that was trained is thrown away without a word
            raise CheckpointError(f"step {max(lost)} is in {job.mirror}, and cannot be brought to the nodes")
        self._newer[job.job_id] = plan.newer
        return replace(plan.planned, variables=self._placed(job, ranks, plan.resume) if order else {})

    def _order(self, job: DurableJob, inventory: Inventory, addresses: Mapping[int, str]) -> Tuple[int, ...]:
        """Nodes on which a job is to train that does not take all; empty where Ray may choose any."""
        can_tell_apart = len(set(addresses.values())) == len(addresses)
        if not job.is_placed or not job.training_nodes or self._is_shared() or not can_tell_apart:
            return ()
        valid = without_abandoned(inventory, job)
        return choose_nodes(valid, job.run, world_size=job.world_size, count=job.training_nodes, nodes=addresses)

    def _placed(self, job: DurableJob, ranks: Ranks, resume: Optional[ResumePlan]) -> Dict[str, str]:
        """What has the ranks of an attempt run on nodes that are chosen; these are remembered for the copies."""
        chosen = resume.addresses if resume is not None else ()
        chosen = chosen or tuple(ranks.addresses[node] for node in ranks.order)
        nodes = {address: node for node, address in ranks.addresses.items()}
        self._orders[job.job_id] = tuple(nodes[address] for address in chosen)
        return {TRAINING_NODES: ",".join(chosen)}

    def _prepare(self, job: DurableJob) -> None:
        """Newer steps go out of the way, as their shards would mix with those of this attempt; Ray gets the package."""
        step = job.attempts[-1].from_step
        for rank, path in self._newer.get(job.job_id, ()):
            report = next((report for report in self._reports() if report.rank == rank), None)
            if report is not None:
                job_calls.set_aside(self._agent(report), rank, path)
                begins = f"goes on from step {step}" if step else "begins anew"
                self._say(f"job {job.job_id}: {path} on rank {rank} is set aside, as the job {begins}")
        self._newer.pop(job.job_id, None)
        manifest = self._files.manifest(job.package) if job.package else None
        if manifest is not None:
            name = manifest.parts[0].path
            self._dashboard.put_package(name, self._files.root / job.package / name)
        elif job.package:
            raise OSError(f"the package {job.package} is not on this node")

    def _end(self, job: DurableJob, row: Mapping[str, Any]) -> RayEnd:
        """What is recorded of an end comes from here, so secrets are masked here, before it is cut or changed."""
        code, submission_id = row.get("driver_exit_code"), str(row.get("submission_id"))
        mask = Masker(self._secrets()).mask_all
        tail, status = mask(driver_tail(self._ray_logs(), submission_id)), str(row.get("status"))
        newest = self._newest_step(job) if job.saves else None
        seen, attempt = self._hang(), job.attempts[-1]
        has_stepped = seen is not None and seen.submission_id == submission_id and seen.step is not None
        return RayEnd(
            status,
            code if isinstance(code, int) else None,
            mask(str(row.get("message") or ""))[-LOG_TAIL_BYTES:],
            tail,
            has_trained=has_stepped
            or max(newest or 0, attempt.saved_step) > attempt.from_step
            or STEP_LINE.search(tail) is not None,
            newest_step=newest,
        )

    def _newest_step(self, job: DurableJob) -> Optional[int]:
        try:
            inventory = self._inventory()
        except CloudrlError:
            return None
        return None if inventory.silent else newest_whole(inventory, job.run)


def _begin(mirrors: Mirrors, mirror: str) -> Sequence[DurableJob]:
    mirrors.begin(mirror)
    return ()


def _saved_steps(jobs: Iterable[DurableJob]) -> Tuple[Tuple[str, int], ...]:
    return tuple((job.submission_id, job.attempts[-1].saved_step) for job in jobs)


def _is_of_now(job: DurableJob) -> bool:
    return job.outcome is None or time.time() - job.outcome.at < _LAST_STEP_S
