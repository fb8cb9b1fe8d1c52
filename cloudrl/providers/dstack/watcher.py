"""Looks at a run: what dstack says of it, and its head agent as soon as that answers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudrl.errors import ClusterFailed, ConnectionFailed, InputError
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import NodeReport
from cloudrl.providers.dstack import fleets, runs
from cloudrl.providers.dstack.access import AccessPoller
from cloudrl.providers.dstack.history import previous_attempts
from cloudrl.providers.dstack.logs import exit_reason
from cloudrl.providers.dstack.retention import retention
from cloudrl.providers.dstack.task_command import agent_options
from cloudrl.providers.model import Notice, Status, agent_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.providers.dstack.access import Access
    from cloudrl.providers.dstack.runs import RunState
    from cloudrl.providers.dstack.server import Server

_SUMMARY = "its machines stay in their fleet until they were idle for its idle duration: cloudrl fleet list"


class RunWatcher:
    """Looks at one run as often as it is asked. The way to it is opened once, and so are the logs of past attempts.

    Args:
        server: the run's.
        poller: opens the way.
    """

    def __init__(self, server: Server, poller: AccessPoller | None = None) -> None:
        self._server = server
        self.poller = poller or AccessPoller(server, try_s=15)
        self._facts: Mapping[str, Any] = {}
        self._facts_of: tuple[object, ...] = ()
        self._user = ""

    def look(self, run: RunState) -> Status:
        """One look, at the run as the server has just described it.

        Raises:
            ConnectionFailed: the server does not answer, or the poller gives up.
        """
        access = self.poller.poll(run)
        look = _from_run(self._server, run, self.poller.problem) if access is None else self._ask(run, access)
        of = (run.id, run.attempt, run.status)
        if self._facts_of != of:  # they stay the same as long as it has the same machines
            self._facts_of, self._facts = of, self._gather(run)
        return replace(look, price_per_hour=run.price, cost=run.cost, **self._facts)

    def close(self) -> None:
        """Close the way that was opened."""
        self.poller.close()

    def _ask(self, run: RunState, access: Access) -> Status:
        agent = access.connection.agent(timeout_s=5)
        if agent is None:
            raise TypeError("a connection without an agent")
        try:
            said = agent.status()
        except (ConnectionFailed, ClusterFailed) as error:
            return _from_run(self._server, run, error.message)
        return Status(
            run.name,
            "dstack",
            nodes_wanted=said.cluster.nodes,
            dashboard_url=access.connection.ray_url if access.tunnel is None else None,
            **agent_fields(said),
        )

    def _gather(self, run: RunState) -> Mapping[str, Any]:
        self._user = self._user or runs.present_user(self._server)
        options, (fleet, unseen) = agent_options(run), _fleet(self._server, run)
        kept = retention(run, str(options.checkpoints), fleet) if options is not None else None
        notice = fleet.never_released if fleet is not None else unseen
        return {
            **common(self._server, run, self._user),
            "previous_attempts": previous_attempts(self._server, run),
            "retention": kept,
            "teardown_summary": f"{_SUMMARY}; checkpoints stay {kept.location}"
            if kept is not None and not kept.destroyed
            else _SUMMARY,
            "teardown_notices": (notice,) if notice is not None else (),
        }


def summary(server: Server, run: RunState, user: str) -> Status:
    """What dstack alone knows of a run, without a look at its nodes or their logs."""
    phase = Phase.FAILED if run.status == "failed" else Phase.DOWN if run.is_over else Phase(run.status)
    look = Status(run.name, "dstack", phase, nodes_wanted=len(run.nodes), reason=run.reason)
    return replace(look, price_per_hour=run.price, cost=run.cost, **common(server, run, user))


def common(server: Server, run: RunState, user: str) -> Mapping[str, Any]:
    """What is known of every run."""
    return {
        "owner": "" if run.user == user else run.user,
        "has_agent": agent_options(run) is not None,
        "teardown_summary": _SUMMARY,
        "logs_command": f"dstack logs {run.name}",
        "state_dir": str(server.folder(run.name)),
    }


def _from_run(server: Server, run: RunState, detail: str = "") -> Status:
    """What dstack alone knows: before the agent answers, and after the end."""
    phase, reason = exit_reason(server, run) if run.is_over else (Phase(run.status), run.reason)
    return Status(
        name=run.name,
        provider="dstack",
        phase=phase,
        nodes_wanted=len(run.nodes),
        reason=reason,
        nodes=tuple(_row(node, detail) for node in run.nodes),
    )


def _row(node: runs.Node, detail: str) -> NodeReport:
    latest = node.latest
    seconds = {"up": (latest.finished_at or time.time()) - latest.submitted_at}
    return NodeReport(
        node.rank,
        latest.hostname,
        phase=Phase(latest.status),
        detail=latest.reason or detail,
        seconds=seconds,
    )


def _fleet(server: Server, run: RunState) -> tuple[fleets.FleetState | None, Notice | None]:
    """The fleet of its machines, or why it cannot be seen; neither while it has none, or one of another project."""
    if run.fleet is None:
        return None, None
    try:
        return fleets.get(server, run.fleet), None
    except ConnectionFailed as error:
        said = f"whether fleet {run.fleet} gives the machines back cannot be seen: {error.message}"
        return None, Notice(said, "cloudrl fleet list")
    except InputError:
        return None, None
