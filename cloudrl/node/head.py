"""Rank 0: the Ray head; hears the others, prepares the data, opens the barrier."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Optional, Sequence, Set, Tuple

from cloudrl.child_process import Child
from cloudrl.data.request import parse_request
from cloudrl.durable.notices import Pace
from cloudrl.node import budget
from cloudrl.node import ray as ray_node
from cloudrl.node.agent import Agent
from cloudrl.node.background import run_parallel
from cloudrl.node.durable_jobs import DurableJobs
from cloudrl.node.failure import NodeFailed
from cloudrl.node.fetch import Fetcher, models_dir
from cloudrl.node.files import remove_marker, write_marker
from cloudrl.node.gang import Gang
from cloudrl.node.gpus import GpuWatch
from cloudrl.node.hang_watch import HangMonitor
from cloudrl.node.job import ClusterJob, read_job
from cloudrl.node.losses import BEAT_IS_LATE_S, find_loss
from cloudrl.node.masking import node_secrets
from cloudrl.node.mirror_look import MirrorLook
from cloudrl.node.partial_starts import ENOUGH, PartialStarts
from cloudrl.node.renewal import is_due
from cloudrl.node.save_wishes import SaveAsker, last_save, left_s, notices_of
from cloudrl.node.usage_history import UsageHistory
from cloudrl.protocol import usage_rows
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.job_phases import JobPhase
from cloudrl.protocol.job_work import LookedAt
from cloudrl.protocol.mirrors import MIRROR_VARIABLE
from cloudrl.protocol.ranks import names_text, ranks_text, texts_by_rank
from cloudrl.protocol.report import BudgetStatus, ClusterStatus, NodeReport
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.units import duration_text

_TELL_WORKERS_S = 4.0
_FINAL_WORD_S = 60.0  # then the provider ends the ranks that were never started: dstack by stop_criteria
_POLL_AGAIN_S = 2.0  # while a save or a transfer may still take what is left of the money
_HEAR_OF_ALL_S = 8.0  # less than a worker waits for the verdict


class Head(Agent):
    """The agent of rank 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._partial_starts = PartialStarts(self.options.checkpoints, self.identity.run_id)
        self.dashboard = ray_node.Dashboard(self.options.ports.dashboard, self.tokens.ray)
        self.ready_at: Optional[float] = None
        self._next_poll = 0.0
        self._idle_monitor = budget.IdleMonitor(self.dashboard)
        self._gpu_watch = GpuWatch(self.dashboard, lambda ips: self.state.publish(gpus_of_ray=ips))
        file = self.options.run_dir / usage_rows.FILE
        self.history = UsageHistory(self._reports_with_gpus, file, self._money)
        on_gpus = self.options.device == "gpu"
        self._gang = Gang(self.identity.nodes, self.state, self.warn, on_gpus=on_gpus)
        self.hang_monitor = HangMonitor(
            self.state.reports, self.dashboard, self._look_at, self.ray_logs,
            folder=self.options.run_dir, checkpoints=self.options.checkpoints,
        )  # fmt: skip
        self._own_job = read_job(self.options.job) if self.options.job else None
        self.durable_jobs = DurableJobs(
            nodes=self.identity.nodes, cluster=self.identity.name, cluster_run=self.identity.run_id,
            attempt=self.tokens.attempt_id, checkpoints=self.options.checkpoints, reports=self.state.reports,
            agent=self._agent_of, dashboard=self.dashboard, ray_logs=self.ray_logs, files=self.replication,
            store=self.mirror_copier.store, mirror=self.env.get(MIRROR_VARIABLE, ""),
            secrets=lambda: node_secrets(self.tokens, self.env, self.replication.secrets.values()),
            hang=lambda: self.hang_monitor.state, is_shared=lambda: self.state.published.shared_checkpoints,
            is_urgent=lambda: self._saves.is_urgent, silence_s=self._silence_s, say=self.log.line,
        )  # fmt: skip
        job, supervisor = self._own_job, self.durable_jobs.supervisor
        self._mirror_look = MirrorLook(
            job, self.durable_jobs.journal, self.mirror_copier, self._agent_of, self.state, self.identity.nodes,
            say=self.log.line,
        )  # fmt: skip
        self._saves = SaveAsker(
            lambda: supervisor.running_attempt, self._ends_in_s, lambda: notices_of(self.state.reports()),
            lambda: Pace(*self.hang_monitor.pace(), *self.durable_jobs.copy_pace()), self.log.line,
            lambda submission_id: last_save(self.state.reports(), submission_id),
        )  # fmt: skip
        self._job = ClusterJob(job.job_id, supervisor, self.dashboard.job) if job is not None else None

    def run_phases(self) -> None:
        """See `Agent`."""
        self.history.start()
        super().run_phases()

    def connect(self) -> None:
        """Tell the workers what they have to match, unless they came to none of the starts before."""
        self._count_partial_starts()
        own = self.state.own
        self.state.publish(ray_version=own.ray_version, python_version=own.python_version)

    def is_ray_up(self, ray: Child) -> bool:
        """Up when `ray start` says so, which may end before, on a busy machine, and the dashboard answers."""
        if not ray_node.has_started(ray):
            return False
        if self.session_name() is None:
            self.state.publish(session_name=self.dashboard.session_name())
        return self.session_name() is not None

    def fetch(self, fetcher: Fetcher) -> None:
        """Prepare the data for all; fetch the models, and say so to nodes that share the folder."""
        self._mirror_look.start()  # it waits for ranks that join late, which is no part of this phase
        options, run_id = self.options, self.identity.run_id
        folders = {options.data_dir, *(models_dir(m, options.data_dir, self.env) for m in options.models)}
        markers = {}
        for folder in folders:
            try:
                markers[str(folder)] = write_marker(folder, run_id)
            except OSError as error:  # a cache of the site, for example: all that is needed may be in it
                self.log.line(f"warning: {folder} cannot be written, each node looks there by itself: {error}")
        self.state.publish(markers=markers)
        works = {
            FailureKind.DATA: lambda: self._prepare_data(fetcher),
            FailureKind.MODEL: lambda: self._fetch_models(fetcher),
            FailureKind.ARTIFACT: lambda: self._make_artifacts(fetcher),
        }
        run_parallel(works, self.state)

    def barrier(self) -> None:
        """All ranks heard of and done, Ray counts them all and takes jobs; then the one READY line."""
        barrier_s, limit_s = self.timeouts.barrier_s, self.timeouts.ray_head_s
        if not self.wait_for(self._all_done, barrier_s):
            reason = f"not all ranks are at the barrier after {barrier_s:g} s: {self.state.own.detail}"
            raise self.failed(FailureKind.JOIN, reason, subject="barrier")
        if not self.wait_for(lambda: self.dashboard.alive_nodes() == self.identity.nodes, limit_s, 0.1):
            reason = f"Ray does not count all nodes as alive after {limit_s:g} s{self._blocked_ports()}"
            raise self.failed(FailureKind.RAY, reason, subject="nodes")
        if not self.wait_for(self.dashboard.takes_jobs, limit_s, 0.1):
            reason = f"Ray's dashboard agent on rank 0 does not come up after {limit_s:g} s"
            raise self.failed(FailureKind.RAY, reason, subject="dashboard")
        self._remove_markers()
        self.ready_at = time.time()
        self.state.publish(rendezvous=None)
        self.state.publish(ready=True, shared_checkpoints=self.checkpoint_store.is_on_all(self.identity.nodes))
        self._idle_monitor.start(self.options.limits.idle_s)
        if self.options.device == "gpu" and self.gpus:
            self._gpu_watch.start()
        self.hang_monitor.start()
        self.durable_jobs.start(self._own_job)
        seconds, port = self.ready_at - self.started_at, self.options.ports.dashboard
        self.log.line(f"READY: {self.identity.nodes} nodes in {seconds:.1f} s, dashboard on 127.0.0.1:{port}")

    def supervise(self) -> None:
        """End the cluster when a worker is gone, or hangs before the barrier."""
        reports = self.state.reports()
        self._check_liveness(reports)
        if self.ready_at is None:
            with contextlib.suppress(OSError):  # a full disk has a failure of its own
                self._partial_starts.note(self._missing_ranks())
            self._gang.look(reports)
            self._check_hang(reports)
        self._introduce_services()
        self._check_budget()
        self._ask_for_save()
        self._check_renewal()
        if self._job is not None and self.ready_at is not None:
            self._job.follow(self.ray_logs())

    def agree_on_outcome(self, failure: Failure) -> Failure:
        """Judge it by the attempts on all volumes, and stay until the workers have heard of it."""
        self._remove_markers()
        with contextlib.suppress(OSError):
            self._partial_starts.forget()
        if self.ready_at is None and not failure.final:
            if failure.permanent or failure.transient:
                # a rank that starts at this moment may remember that an earlier attempt has failed alike
                self.stay_while(self._is_rank_missing, _HEAR_OF_ALL_S)
            elsewhere = [report.known_failures for report in self.state.reports()]
            failure = self.attempts.classify(failure, elsewhere=elsewhere, since=self.started_at)
        self.state.judge(failure)
        if failure.kind not in (FailureKind.JOIN, FailureKind.DOWN):
            # one that starts while the provider is still ending the run, and finds no head, would fail otherwise and
            # have the whole run retried
            limit_s = _FINAL_WORD_S if failure.final else _TELL_WORKERS_S
            self.stay_while(self._is_rank_missing, limit_s)
        # a rank that is silent for a moment, and finds no head then, would have the finished run submitted again
        silent_s = self.options.lost_after_s if failure.final else BEAT_IS_LATE_S
        self.stay_while(lambda: self._is_rank_uninformed(silent_s), max(_TELL_WORKERS_S, silent_s))
        return failure

    def _count_partial_starts(self) -> None:
        """End a run whose other nodes fail again and again before their agents run.

        Raises:
            NodeFailed: so many starts in a row ended without all of them.
        """
        if self.identity.nodes == 1:
            return
        try:
            times = self._partial_starts.begin(self._missing_ranks())
        except OSError as error:  # the check of the folder has been passed
            self.log.line(f"warning: starts without all nodes are not counted: {error}")
            return
        if times >= ENOUGH:
            lacking = ranks_text(self._partial_starts.missing)
            reason = (
                f"{times} starts in a row ended before the agent of {lacking} ran: an image, a volume or a driver of "
                f"that node may be why; each attempt's reason: cloudrl status {self.identity.name}"
            )
            raise NodeFailed(Failure(FailureKind.JOIN, 0, reason, final=True, subject="other ranks"))

    def _missing_ranks(self) -> List[int]:
        """Those that have not been heard of."""
        return sorted(set(range(self.identity.nodes)) - {report.rank for report in self.state.reports()})

    def _is_rank_missing(self) -> bool:
        return self.serving and len(self.state.reports()) < self.identity.nodes

    def _is_rank_uninformed(self, silent_s: float) -> bool:
        """Whether any rank heard from in the last `silent_s` seconds does not know of the failure yet."""
        ranks = self.state.uninformed_ranks()
        return self.serving and any(self.state.heartbeat_age_s(rank) < silent_s for rank in ranks)

    def status(self) -> ClusterStatus:
        """See `Agent`."""
        status, limits, idle_s = super().status(), self.options.limits, self._idle_monitor.idle_s
        idle_s = None if limits.idle_s is None or idle_s is None else round(idle_s, 1)
        budget_now = BudgetStatus(
            self.cost(), limits.price_per_hour, limits.max_cost, limits.idle_s, idle_s, self._gpu_watch.working_since
        )
        return dataclasses.replace(
            status,
            nodes=tuple(map(self._gpu_watch.added_to, status.nodes)),
            ready_at=self.ready_at,
            budget=budget_now,
            job=self.hang_monitor.state,
            mirrors=self.durable_jobs.mirrors.statuses,
        )

    def _look_at(self, report: NodeReport) -> Tuple[LookedAt, ...]:
        """The processes of jobs on a node, this one or another one."""
        if report.rank == self.identity.rank:
            return self.job_looks.look(self.state.reports())
        return self._agent_of(report).look(report.rank)

    def _agent_of(self, report: NodeReport) -> AgentClient:
        return AgentClient(f"http://{report.ip}:{report.agent_port}", self.tokens.agent)

    def cost_before(self) -> float:
        """What the ranks remember; one of them may be on another machine now."""
        return max(report.cost_before for report in self.state.reports())

    def transfer(self) -> ContextManager[None]:
        """See `Agent`."""
        return self._idle_monitor.transfer()

    def session_name(self) -> Optional[str]:
        """See `Agent`."""
        return self.state.published.session_name

    def _silence_s(self) -> float:
        return max(self.state.heartbeat_age_s(report.rank) for report in self.state.reports())

    def _money(self) -> Tuple[Optional[float], Optional[float]]:
        return self.cost(), self.options.limits.price_per_hour

    def _reports_with_gpus(self) -> List[NodeReport]:
        return list(map(self._gpu_watch.added_to, self.state.reports()))

    def _remove_markers(self) -> None:
        for folder in self.state.published.markers or ():
            remove_marker(Path(folder), self.identity.run_id)

    def _prepare_data(self, fetcher: Fetcher) -> None:
        self.state.publish(data={parse_request(text).name: fetcher.prepare_data(text) for text in self.options.data})

    def _fetch_models(self, fetcher: Fetcher) -> None:
        self.compute.hold_models()
        for model in self.options.models:
            self.state.add("models", model, fetcher.fetch_model(model))
            self.state.publish(models=dict(self.state.own.models))

    def _make_artifacts(self, fetcher: Fetcher) -> None:
        for artifact in self.options.artifacts:
            self.state.add("artifacts", artifact.name, fetcher.make_artifact(artifact))
            self.state.publish(artifacts=dict(self.state.own.artifacts))

    def _blocked_ports(self) -> str:
        """Ray does not name the port that is closed, and it wants them open in both directions."""
        reports, ports = self.state.reports(), self.options.ports
        from_rank_0 = side_by_side(lambda report: ray_node.unreachable_ports(report.ip, ports), reports[1:])
        from_ranks: Dict[str, List[int]] = {}
        for report in reports:
            for port in report.blocked:
                from_ranks.setdefault(port, []).append(report.rank)
        blocked = [f"{port} from {ranks_text(ranks)}" for port, ranks in from_ranks.items()]
        blocked += [f"{port} from rank 0" for unreachable in from_rank_0 for port in unreachable]
        return f": {names_text(blocked)} cannot be reached; is a firewall between the nodes?" if blocked else ""

    def _all_done(self) -> bool:
        reports = {report.rank: report for report in self.state.reports()}
        ranks = set(range(self.identity.nodes))
        waiting = [
            (rank, str(reports[rank].phase) if rank in reports else "not heard of")
            for rank in sorted(ranks)
            if rank not in reports or not (reports[rank].ray_up and reports[rank].fetched)
        ]
        together = "" if self._gang.is_over else "all nodes compute together"
        looking = "" if self._mirror_look.is_over else "all nodes look at the mirror"
        waits_for = f"waiting for {texts_by_rank(waiting)}" if waiting else together or looking
        self.state.update(detail=waits_for)
        self._check_missing(ranks - set(reports))
        return not waits_for

    def _check_missing(self, missing: Set[int]) -> None:
        if missing and time.monotonic() - self.started_clock > self.options.join_timeout_s:
            here = f"{self.identity.ip}:{self.options.ports.agent}"
            reason = f"{ranks_text(missing)} did not join within {self.options.join_timeout_s:.0f} s"
            reason += f": not started, started with another key, or {here} cannot be reached from there"
            raise self.failed(FailureKind.JOIN, reason, subject="ranks")

    def _introduce_services(self) -> None:
        """Tell those of all nodes where each of them answers the others."""
        reports = self.state.reports()
        if self.state.published.peers is None and len(reports) == self.identity.nodes:
            peers = {name: tuple(report.peers.get(name, "") for report in reports) for name in self.state.own.peers}
            self.state.publish(peers=peers)

    def _check_budget(self) -> None:
        """End the cluster when it was idle for long enough, or has cost enough."""
        if self.options.limits.price_per_hour is not None:
            self.state.publish(cost_before=self.cost_before())
        if self._shutdown_reason() and time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + _POLL_AGAIN_S
            self._idle_monitor.poll()  # a job may have come a moment ago
            reason = self._shutdown_reason(is_saving=self._is_saving())
            if reason:
                raise NodeFailed(Failure(FailureKind.DOWN, self.identity.rank, reason, final=True))

    def _ask_for_save(self) -> None:
        """Have the durable job that runs save before the cluster ends, or a machine is taken back."""
        wish = self._saves.look()
        self.state.publish(save_wish=wish)
        self.job_looks.wish(wish)

    def _ends_in_s(self) -> Optional[float]:
        return left_s(self.options.limits, self.cost(), self.env, time.time(), self._running_s)

    def _check_renewal(self) -> None:
        """End the cluster before the provider does for good, where a durable job goes on after a new start."""
        limits, has_work = self.options.limits, self.ready_at is not None and self.durable_jobs.has_work
        if is_due(limits, self._running_s, has_work=has_work, is_saving=self._is_saving()):
            limit = duration_text(limits.max_duration_s or 0)
            reason = f"this start may run for {limit}; the cluster starts again, as a durable job goes on"
            raise NodeFailed(Failure(FailureKind.RENEWAL, self.identity.rank, reason))

    @property
    def _running_s(self) -> float:
        return time.monotonic() - self.started_clock

    def _is_saving(self) -> bool:
        """Whether a checkpoint is written, merged, copied or published."""
        job, monitor = self.hang_monitor.state, self._idle_monitor
        is_written = job is not None and job.phase == JobPhase.SAVE_CHECKPOINT
        return is_written or monitor.is_transferring or monitor.brings_result

    def _shutdown_reason(self, *, is_saving: bool = False) -> str:
        idle_s = self._idle_monitor.idle_s if self._idle_monitor.known and not self.durable_jobs.has_work else None
        return budget.shutdown_reason(self.options.limits, self.cost(), idle_s, is_saving=is_saving)

    def _check_liveness(self, reports: Sequence[NodeReport]) -> None:
        """Raise when ranks are lost."""
        failure = find_loss(
            reports, self.state.heartbeat_age_s, lambda report: ray_node.probe(report.ip, report.agent_port, 0.5),
            lost_after_s=self.options.lost_after_s,
        )  # fmt: skip
        if failure is not None:
            raise NodeFailed(failure)

    def _check_hang(self, reports: Sequence[NodeReport]) -> None:
        """Raise when ranks beat, and do not leave a phase; their own deadline would have come before."""
        hangs = {report.rank: (report, hang) for report in reports if (hang := self._hang(report))}
        if hangs:
            first, hang = next(iter(hangs.values()))
            others = sorted(set(hangs) - {first.rank})
            more = f"; likewise {ranks_text(others)}" if others else ""
            reason = f"rank {first.rank} ({first.hostname}, {first.ip}) {hang}{more}"
            raise NodeFailed(Failure(FailureKind.JOIN, first.rank, reason, subject=f"phase {first.phase}"))

    def _hang(self, report: NodeReport) -> str:
        if report.rank == self.identity.rank:  # its main thread, which asks this, has deadlines of its own
            return ""
        return self.timeouts.hang(report.phase, self.state.phase_s(report.rank), report.detail)
