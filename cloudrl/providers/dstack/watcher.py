"""The status of a run: what dstack says of it, and its head agent as soon as that answers."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cloudrl.errors import ClusterFailed, ConnectionFailed, InputError
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.ranks import names_text
from cloudrl.protocol.report import NodeReport
from cloudrl.providers.dstack import runs
from cloudrl.providers.dstack.access import RunAccess, open_access
from cloudrl.providers.dstack.diagnostics import endless_restarts, exit_reason, previous_attempts
from cloudrl.providers.dstack.machine_states import FleetState, Instance
from cloudrl.providers.dstack.machines import DstackFleets
from cloudrl.providers.dstack.runs import RunState
from cloudrl.providers.dstack.server import Server
from cloudrl.providers.model import CheckpointRetention, Status, agent_fields
from cloudrl.units import duration_option

_SUMMARY = "its machines stay in their fleet until they were idle for its idle duration: cloudrl fleet list"
_OPEN_S = 15.0
"""For one attempt to open the way to a run's head."""
_OWN_HOSTS = "remote"
"""dstack's word for the backend of SSH hosts (core/models/backends/base.py)."""


class RunWatcher:
    """Tells the status of one run as often as it is asked.

    The way to its head is opened once, and so are the logs of past attempts.

    Args:
        server: the run's.
        give_up_s: how long an attempt of the run may be running and not be reached.
        opener: opens the way.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        server: Server,
        *,
        give_up_s: float = float("inf"),
        opener: Callable[..., RunAccess] = open_access,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._opener, self._clock = server, opener, clock
        self._give_up_s = give_up_s
        self._access: RunAccess | None = None
        self._run_id = ""
        self._running_since: tuple[int, float] | None = None
        self._described: tuple[object, ...] = ()
        self._description: Status
        """Of `_described`: what stays the same as long as the run has the same machines."""

    def status(self, run: RunState) -> Status:
        """The status of the run as the server has just described it. A new run of the name is another cluster.

        Raises:
            ConnectionFailed: the server does not answer, or this attempt of the run has been running for long, and
                cannot be reached.
        """
        if run.id != self._run_id:
            self.close()
            self._run_id = run.id
        if run.status == "running":
            now = self._reach(run)
        else:
            now, self._running_since = _from_run(self._server, run), None
        described = (run.id, run.attempt, run.status)
        if self._described != described:
            self._description, self._described = _describe(self._server, run), described
        return replace(self._description, price_per_hour=run.price, cost=run.cost, **now)

    def close(self) -> None:
        """Close the way that was opened."""
        if self._access is not None:
            self._access.close()
            self._access = None

    def _reach(self, run: RunState) -> Mapping[str, Any]:
        """What its head agent says, and while that cannot be reached what dstack says and why."""
        if self._running_since is None or self._running_since[0] != run.attempt:
            self._running_since = (run.attempt, self._clock())
        try:
            if self._access is None:
                self._access = self._opener(self._server, run, timeout_s=_OPEN_S)
        except ConnectionFailed as error:
            if self._clock() - self._running_since[1] > self._give_up_s:
                raise type(error)(
                    f"cluster {run.name!r} is running, and cannot be reached from this machine: {error.message}",
                    hint=error.hint or f"Try again: cloudrl attach {run.name}",
                ) from error
            return _from_run(self._server, run, error.message)
        try:
            status = self._access.status()
        except (ConnectionFailed, ClusterFailed) as error:
            return _from_run(self._server, run, error.message)
        url = self._access.connection.ray_url if self._access.is_kept_open else None
        return {**agent_fields(status), "dashboard_url": url}


def summary(server: Server, run: RunState, user: str) -> Status:
    """What dstack alone knows of a run, without a look at its nodes or their logs."""
    phase = Phase.FAILED if run.status == "failed" else Phase.DOWN if run.is_over else Phase(run.status)
    return Status(
        ClusterFacts(run.name, run.id, "dstack", len(run.nodes)),
        phase,
        reason=run.reason,
        started_at=min((node.attempts[0].submitted_at for node in run.nodes), default=None),
        price_per_hour=run.price,
        cost=run.cost,
        owner="" if run.user == user else run.user,
        has_agent=run.agent_options is not None,
        teardown_summary=_SUMMARY,
        logs_command=f"dstack logs {run.name}",
        state_dir=str(server.folder(run.name)),
    )


def retention(run: RunState, checkpoint_dir: str, fleet: FleetState | None) -> CheckpointRetention:
    """What becomes of a run's checkpoints when it ends; `fleet` is the one that its machines belong to."""
    for mount in run.answer.run_spec.configuration.volumes or ():
        if f"{checkpoint_dir.rstrip('/')}/".startswith(f"{mount.path.rstrip('/')}/"):
            break
    else:
        return CheckpointRetention(destroyed=True, location="in the containers, which go with the run")
    names = getattr(mount, "name", None)
    if names is not None:
        volumes = names if isinstance(names, str) else ", ".join(names)
        return CheckpointRetention(destroyed=False, location=f"on network volume {volumes}")
    if run.nodes and all(node.latest.backend == _OWN_HOSTS for node in run.nodes):
        hosts = names_text([node.latest.hostname for node in run.nodes])
        where = f"in {mount.instance_path} of your hosts {hosts}"
        return CheckpointRetention(destroyed=False, location=where)
    if run.fleet is None:
        until = "they go with the machines"
    elif fleet is None:  # of another project, or gone; only the words are poorer
        until = f"they go with the machines of fleet {run.fleet}"
    elif fleet.never_released:
        until = f"they go when fleet {run.fleet} is deleted"
    else:
        idle = duration_option(fleet.idle_duration_s or 0)
        until = f"fleet {run.fleet} gives the machines back when they were idle for {idle}"
    return CheckpointRetention(destroyed=True, location=f"on the machines' own disks: {until}")


def _describe(server: Server, run: RunState) -> Status:
    """What is known of a run beside what its agents know: its attempts, and what becomes of its checkpoints."""
    fleet, notice, paid = None, None, None
    if run.fleet is not None:
        try:
            fleet = DstackFleets(server).get(run.fleet)
            notice = fleet.never_released
            paid = fleet.goes_on_costing(_machines(run, fleet))
        except ConnectionFailed as error:
            text = f"whether fleet {run.fleet} gives the machines back cannot be seen: {error.message}"
            notice = Notice(text, "cloudrl fleet list")
        except InputError:  # of another project, or gone
            pass
    options = run.agent_options
    fate = retention(run, str(options.checkpoints), fleet) if options is not None else None
    stay = f"; checkpoints stay {fate.location}" if fate is not None and not fate.destroyed else ""
    return replace(
        summary(server, run, runs.present_user(server)),
        previous_attempts=previous_attempts(server, run),
        retention=fate,
        teardown_summary=_SUMMARY + stay,
        warnings=tuple(filter(None, [endless_restarts(server, run)])),
        teardown_notices=tuple(each for each in (notice, paid) if each is not None),
    )


def _machines(run: RunState, fleet: FleetState) -> list[Instance]:
    """Those of its fleet that a run uses, or has used and that no other run does."""
    if run.is_over:
        return list(fleet.unused)
    hosts = {node.latest.hostname for node in run.nodes if node.latest.finished_at is None}
    return [instance for instance in fleet.present if instance.hostname in hosts]


def _from_run(server: Server, run: RunState, detail: str = "") -> Mapping[str, Any]:
    """What dstack alone knows: before the agent answers, and after the end."""
    phase, reason = exit_reason(server, run) if run.is_over else (Phase(run.status), run.reason)
    nodes = tuple(
        NodeReport(
            node.rank,
            node.latest.hostname,
            phase=Phase(node.latest.status),
            detail=node.latest.reason or detail,
            seconds={"up": (node.latest.finished_at or time.time()) - node.latest.submitted_at},
        )
        for node in run.nodes
    )
    return {"phase": phase, "reason": reason, "nodes": nodes}
