"""Rank 0: the Ray head; hears the others, prepares the data, opens the barrier."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Set

from cloudrl.data.request import parse_request
from cloudrl.node import attempts, canary, money
from cloudrl.node import ray as ray_node
from cloudrl.node.agent import Agent
from cloudrl.node.failure import Failure, NodeFailed
from cloudrl.node.fetch import Fetcher, models_dir, split_paths

if TYPE_CHECKING:
    from cloudrl.node.process import Child
    from cloudrl.node.report import Report

_BEAT_IS_LATE_S = 2.5
_TELL_WORKERS_S = 4.0
_HEAR_OF_ALL_S = 8.0  # less than a worker waits for the verdict


class Head(Agent):
    """The agent of rank 0."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dashboard = ray_node.Dashboard(self.options.ports.dashboard, self.tokens.ray)
        self.session_name: Optional[str] = None
        self.ready_at: Optional[float] = None
        self._ready_clock: Optional[float] = None
        self._watcher = money.Watcher(
            self.dashboard.jobs,
            self.dashboard.alive_actors,
            self.transfers,
            pause_s=money.pause_s(self.options.limits),
        )

    def connect(self) -> None:
        """Tell the workers what they have to match."""
        own = self.board.own
        self.board.publish(ray_version=own.ray_version, python_version=own.python_version)

    def before_ray(self) -> None:
        """Nothing to wait for: the head is first."""

    def is_ray_up(self, ray: Child) -> bool:  # noqa: ARG002  workers read its log
        """Up when the dashboard answers."""
        self.session_name = self.session_name or self.dashboard.session_name()
        return self.session_name is not None

    def fetch(self, fetcher: Fetcher) -> None:
        """Prepare the data for all; fetch the models, and say so to nodes that share the folder."""
        options, run_id = self.options, self.identity.run_id
        folders = {options.data_dir, *(models_dir(m, options.data_dir, self.env) for m in options.models)}
        words = {str(folder): canary.leave(folder, run_id) for folder in folders}
        self.board.publish(canaries=words)
        self.side_by_side(data=lambda: self._prepare_data(fetcher), model=lambda: self._fetch_models(fetcher))

    def barrier(self) -> None:
        """All ranks heard of and done, Ray counts them all and takes jobs; then the one READY line."""
        self.until(self._all_done, self.patience.whole_s, self._not_all)
        patience_s = self.patience.ray_head_s
        self.until(self._ray_is_whole, patience_s, self._not_whole, 0.1)
        self.until(self.dashboard.takes_jobs, patience_s, self._takes_no_jobs, 0.1)
        self._take_canaries_away()
        self.ready_at, self._ready_clock = time.time(), time.monotonic()
        self.board.publish(ready=True)
        if self.options.limits.idle_s is not None:
            self._watcher.start()
        seconds, port = self.ready_at - self.started_at, self.options.ports.dashboard
        self.log.line(f"READY: {self.identity.nodes} nodes in {seconds:.1f} s, dashboard on 127.0.0.1:{port}")

    def supervise(self) -> None:
        """End the cluster when a worker is gone, or hangs before the barrier."""
        for report in self.board.reports():
            self._look_at(report)
            if self.ready_at is None:
                self._look_for_hang(report)
        self._look_at_money()

    def settle(self, failure: Failure) -> Failure:
        """Judge it by the attempts on all volumes, and stay until the workers have heard of it."""
        self._take_canaries_away()
        if self.ready_at is None and not failure.final:
            self._hear_of_all(failure)
            elsewhere = [report.met for report in self.board.reports()]
            folder, run_id = self.options.checkpoints, self.identity.run_id
            failure = attempts.judge(
                failure, folder=folder, run_id=run_id, elsewhere=elsewhere, since=self.started_at
            )
        self.board.replace_failure(failure)
        self.board.publish(judged=True)
        since = time.monotonic()
        while self._somebody_to_tell(failure, time.monotonic() - since) and not self.ending.asked:
            time.sleep(0.05)
        return failure

    def _hear_of_all(self, failure: Failure) -> None:
        """A rank that starts at this moment may remember that an earlier attempt has failed alike."""
        since = time.monotonic()
        while (
            self.serving
            and (failure.permanent or failure.transient)
            and len(self.board.reports()) < self.identity.nodes
            and time.monotonic() - since < _HEAR_OF_ALL_S
            and not self.ending.asked
        ):
            time.sleep(0.05)

    def _somebody_to_tell(self, failure: Failure, waited_s: float) -> bool:
        """Whether a rank lives, or may yet come, that does not know.

        A rank that comes after a final failure and finds nobody would fail later and otherwise, and so have the
        whole run retried.
        """
        untold = any(self.board.silence_s(rank) < _BEAT_IS_LATE_S for rank in self.board.untold())
        missing = failure.kind not in ("join", money.DOWN) and len(self.board.reports()) < self.identity.nodes
        patience_s = self.options.join_timeout_s if failure.final else _TELL_WORKERS_S
        somebody = (untold and waited_s < _TELL_WORKERS_S) or (missing and waited_s < patience_s)
        return self.serving and somebody

    def status(self) -> Dict[str, Any]:
        """What `GET /v1/status` adds on rank 0."""
        data = self.board.published.get("data", {})
        paths = {name: split_paths(self.options.data_dir, name, files) for name, files in data.items()}
        return {
            "ready_at": self.ready_at, "data": paths, "models": self._common_models(), "money": self._money(),
        }  # fmt: skip

    def moment(self) -> money.Moment:
        """As every rank's, and since when nothing was done."""
        return self._watcher.moment(self.started_clock, self._ready_clock, self.paid())

    def paid(self) -> float:
        """What the ranks remember; one of them may be on another machine now."""
        return max(report.paid for report in self.board.reports())

    def job_logs(self) -> Optional[Path]:
        """Where Ray keeps the driver logs of its jobs (ray/dashboard/modules/job/job_log_storage_client.py)."""
        root = self.options.ray_temp_dir or ray_node.TEMP_DIR
        return root / self.session_name / "logs" if self.session_name else None

    def keep_job_logs(self) -> None:
        """Copy the driver logs to this node's own folder, since Ray's goes away with it."""
        folder = self.job_logs()
        for log in folder.glob("job-driver-*.log") if folder else ():
            self.options.run_dir.joinpath("jobs").mkdir(exist_ok=True)
            shutil.copyfile(log, self.options.run_dir / "jobs" / log.name)

    def _common_models(self) -> Dict[str, str]:
        """Models with their folder where it is the same on every node; otherwise the name, found in the cache."""
        reports = self.board.reports()
        return {
            model: path if all(report.models.get(model) == path for report in reports) else model
            for model, path in self.board.own.models.items()
        }

    def _take_canaries_away(self) -> None:
        for folder in self.board.published.get("canaries", {}):
            canary.take_away(Path(folder), self.identity.run_id)

    def _prepare_data(self, fetcher: Fetcher) -> None:
        done: Dict[str, Any] = {}
        for text in self.options.data:
            done[parse_request(text).name] = fetcher.prepare_data(text)
        self.board.publish(data=done)

    def _fetch_models(self, fetcher: Fetcher) -> None:
        for model in self.options.models:
            self.board.add_model(model, fetcher.fetch_model(model))
            self.board.publish(models=dict(self.board.own.models))

    def _ray_is_whole(self) -> bool:
        return self.dashboard.alive_nodes() == self.identity.nodes

    def _not_all(self) -> NodeFailed:
        whole_s, detail = self.patience.whole_s, self.board.own.detail
        return self.fail("join", f"not all ranks are at the barrier after {whole_s:g} s: {detail}")

    def _not_whole(self) -> NodeFailed:
        """Ray does not name the port that is closed, and it wants them open in both directions."""
        ports = self.options.ports
        blocked = [
            f"{each} from rank {report.rank}" for report in self.board.reports() for each in report.blocked
        ]
        for report in self.board.reports():
            if report.rank != self.identity.rank:
                blocked += [f"{each} from rank 0" for each in ray_node.unreachable_ports(report.ip, ports)]
        reason = f"Ray does not count all nodes as alive after {self.patience.ray_head_s:g} s"
        named = (
            f": {', '.join(blocked)} cannot be reached; is a firewall between the nodes?" if blocked else ""
        )
        return self.fail("ray", reason + named)

    def _takes_no_jobs(self) -> NodeFailed:
        reason = "Ray's dashboard agent on rank 0 does not come up"
        return self.fail("ray", f"{reason} after {self.patience.ray_head_s:g} s")

    def _all_done(self) -> bool:
        reports = {report.rank: report for report in self.board.reports()}
        ranks = set(range(self.identity.nodes))
        waiting = [
            f"rank {rank}: {reports[rank].phase if rank in reports else 'not heard of'}"
            for rank in sorted(ranks)
            if rank not in reports or not (reports[rank].ray_up and reports[rank].fetched)
        ]
        self.board.update(detail="waiting for " + ", ".join(waiting) if waiting else "")
        self._look_for_missing(ranks - set(reports))
        return not waiting

    def _look_for_missing(self, missing: Set[int]) -> None:
        if missing and time.monotonic() - self.started_clock > self.options.join_timeout_s:
            ranks = ", ".join(str(rank) for rank in sorted(missing))
            here = f"{self.identity.ip}:{self.options.ports.agent}"
            reason = f"rank {ranks} never came within {self.options.join_timeout_s:.0f} s"
            raise self.fail("join", f"{reason}: not started, or {here} cannot be reached from there")

    def _money(self) -> Dict[str, Any]:
        limits, moment = self.options.limits, self.moment()
        idle_s = None if limits.idle_s is None or moment.idle_s is None else round(moment.idle_s, 1)
        return {
            "cost": money.cost(limits, moment), "price_per_hour": limits.price_per_hour,
            "max_cost": limits.max_cost, "down_when_idle_s": limits.idle_s, "idle_s": idle_s,
        }  # fmt: skip

    def _look_at_money(self) -> None:
        """End the cluster when it was idle for long enough, or has cost enough."""
        limits = self.options.limits
        if limits.price_per_hour is not None:
            self.board.publish(paid=self.paid())
        if money.why_end(limits, self.moment()):
            self._watcher.look()  # a job may have come a moment ago
            reason = money.why_end(limits, self.moment())
            if reason:
                raise NodeFailed(Failure(money.DOWN, self.identity.rank, reason, final=True))

    def _look_at(self, report: Report) -> None:
        """Raise when a rank is silent for too long, or for a moment and nobody listens at its address any more."""
        silence_s = self.board.silence_s(report.rank)
        if silence_s < _BEAT_IS_LATE_S:
            return
        gone = ray_node.probe(report.ip, report.agent_port, 0.5) == "refused"
        if gone or silence_s > self.options.lost_after_s:
            reason = (
                f"rank {report.rank} ({report.hostname}, {report.ip}) was lost in phase {report.phase}: "
                f"no heartbeat for {silence_s:.0f} s" + (", and its agent is gone" if gone else "")
            )
            raise NodeFailed(Failure("lost", report.rank, reason))

    def _look_for_hang(self, report: Report) -> None:
        """Raise when a rank beats, and does not leave a phase; its own deadline would have come before."""
        limit_s = self.patience.phases.get(report.phase)
        phase_s = self.board.phase_s(report.rank)
        if limit_s is not None and phase_s > limit_s + self.options.lost_after_s:
            detail = f" ({report.detail})" if report.detail else ""
            who = f"rank {report.rank} ({report.hostname}, {report.ip})"
            reason = f"{who} hangs in phase {report.phase}{detail}: {phase_s:.0f} s, where {limit_s:g} s are enough"
            raise NodeFailed(Failure("join", report.rank, reason))
