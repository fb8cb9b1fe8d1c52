"""The verbs of provider `dstack`."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed, InputError
from cloudrl.providers.dstack import diagnostics, retention, route, runs, state, up_errors
from cloudrl.providers.dstack.access import Access, AccessPoller, open_access
from cloudrl.providers.dstack.history import previous_attempts
from cloudrl.providers.dstack.logs import exit_reason
from cloudrl.providers.dstack.server import Server, connect
from cloudrl.providers.model import UP_TIMEOUT_S, CheckpointRetention, NodePaths, Status
from cloudrl.render.agent import write_agent
from cloudrl.render.dstack import to_dstack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cloudrl.providers.dstack.runs import RunPlan, RunState
    from cloudrl.providers.model import Plan
    from cloudrl.spec import Cluster
    from cloudrl.transport import Connection

_POLL_S = 1.0
_SERVER_BACK_S = 120.0


@dataclass(frozen=True)
class DstackPlan:
    """A cluster as the YAML that is sent. Nothing has been asked of the server."""

    name: str
    text: str
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        """The text that `--dry-run` prints."""
        return self.text


def plan(cluster: Cluster, *, dashboard_port: int | None = None) -> DstackPlan:
    """What `up` would send. The server is asked for its price alone, and only if the cost is limited."""
    if dashboard_port is not None:
        raise InputError(
            f"--dashboard-port {dashboard_port}: on dstack the dashboard is forwarded to 8265 if that is free",
            hint="Leave it out",
        )
    if cluster.max_cost is not None and cluster.price_per_hour is None:
        server = connect()
        quoted = quote(DstackPlan(cluster.name, to_dstack(cluster.replace(max_cost=None))), server)
        if quoted.price is None:
            diagnostics.check(server, quoted)
        cluster = with_price(cluster, quoted)
    return DstackPlan(cluster.name, to_dstack(cluster))


def with_price(cluster: Cluster, quoted: RunPlan) -> Cluster:
    """The same with the price that its agents count with: all nodes at the cheapest offer.

    Raises:
        InputError: the machines cost nothing.
    """
    if not quoted.price:
        raise InputError(
            f"max_cost {cluster.max_cost:g}: the machines that {cluster.name} would get cost nothing an hour",
            hint="Leave it out, or say what they cost you: --price-per-hour 12",
        )
    return cluster.replace(price_per_hour=round(quoted.price, 4))


def places(cluster: Cluster) -> NodePaths:
    """Where the nodes are going to keep what jobs read and write, in a container that runs as its usual user."""
    user = (cluster.user or "root").partition(":")[0]
    home = "/root" if user in ("root", "0") else f"/home/{user}"
    return NodePaths(cluster.checkpoints, f"{home}/data", "/dev/shm/cloudrl-0-RUN-ID")  # noqa: S108  as the agent does


def lacks_fleet(cluster: Cluster) -> bool:
    """Whether there is no machine for a cluster, and a new fleet might help.

    Raises:
        InputError: no server is configured, or it refuses the task.
        ConnectionFailed: it does not answer.
    """
    quoted = quote(DstackPlan(cluster.name, to_dstack(cluster.replace(max_cost=None))))
    is_taken = quoted.current is not None and not quoted.current.is_over
    return not (quoted.total_offers or cluster.dstack.get("fleets") or is_taken)


def quote(plan: DstackPlan, server: Server | None = None) -> RunPlan:
    """Ask the server for offers and prices. Uploads the node agent, starts nothing.

    Raises:
        InputError: no server is configured, or it refuses the task.
        ConnectionFailed: it does not answer.
    """
    server = server or connect()
    place = state.folder(server.project, plan.name)
    write_agent(place)
    (place / f"{plan.name}.dstack.yml").write_text(plan.text, encoding="utf-8")
    return runs.plan(server, plan.text, place)


def up(
    plan: Plan,
    *,
    on_status: Callable[[Status], None] | None = None,
    timeout_s: float = UP_TIMEOUT_S,
    detach: bool = True,
) -> Connection:
    """Apply the task and return once the cluster is READY.

    Raises:
        InputError: a run of this name is going on, or `detach` is False, which dstack has no way for.
        CapacityError: no machines.
        ClusterFailed: it ended before it was ready; the message has the reason, dstack's or the agent's.
        CloudrlError: something else; the message says whether a run that was submitted goes on, and its price.
        Interrupted: Ctrl-C. A run that was submitted goes on, and so does its price, which the message has.
    """
    if not isinstance(plan, DstackPlan):
        raise TypeError(f"a plan of another provider: {plan!r}")
    if not detach:
        raise InputError(
            "detach=False: a cluster on dstack outlives this program, whatever happens to it",
            hint='End it with the block: with cluster.up(on="dstack") as ray: ...\n'
            "Or by itself: Cluster(down_when_idle=..., max_cost=...)",
        )
    _check_ssh()
    server = connect()
    quoted: RunPlan | None = None
    try:
        quoted = quote(plan, server)
        diagnostics.check(server, quoted)
        return _start(server, quoted, on_status, timeout_s)
    except KeyboardInterrupt as error:
        raise up_errors.interrupted(server, quoted) from error


def _start(
    server: Server, quoted: RunPlan, on_status: Callable[[Status], None] | None, timeout_s: float
) -> Connection:
    """Submit and wait; from here on there may be a run that costs money, and every error says so."""
    try:
        _await_ready(server, runs.apply(server, quoted), on_status, timeout_s).close()
        route.keep_tunnel(server.project, quoted.name)
        return attach(quoted.name)
    except CloudrlError as error:
        raise up_errors.failed(server, quoted, error) from error


def attach(name: str) -> Connection:
    """Connect to a running cluster, also one that `dstack apply` has started.

    Raises:
        InputError: there is no run of that name, or it is over.
        ConnectionFailed: its head cannot be reached.
    """
    server = connect()
    run = runs.get(server, name)
    runs.refuse_over(run)
    return open_access(server, run).connection


def keep_open(name: str) -> None:
    """Keep a tunnel to it open in the background, until it ends or `cloudrl detach`.

    Raises:
        InputError: there is no run of that name, or it is over.
        ConnectionFailed: its head cannot be reached.
    """
    server = connect()
    runs.refuse_over(runs.get(server, name))
    route.keep_tunnel(server.project, name)


def status(name: str) -> Status:
    """One look at a cluster.

    Raises:
        InputError: there is no run of that name.
        ConnectionFailed: the server does not answer.
    """
    server = connect()
    run = runs.get(server, name)
    look = _present(server, run)
    return replace(
        look, previous_attempts=previous_attempts(server, run), price_per_hour=run.price, cost=run.cost
    )


def _present(server: Server, run: RunState) -> Status:
    if run.status != "running":
        return _from_run(server, run)
    try:
        access = open_access(server, run, timeout_s=15)
    except ConnectionFailed as error:
        return _from_run(server, run, detail=error.message)
    try:
        return _look(server, run, access)
    finally:
        access.close()


def down(name: str) -> bool:
    """End the run and the tunnel to it; False when nothing was running. Fleets stay.

    Raises:
        InputError: there is no run of that name.
    """
    server = connect()
    try:
        run = runs.get(server, name)
        if run.is_over:
            return False
        runs.stop(server, name)  # first: it is what costs money
        runs.wait_over(server, name)
        return True
    finally:
        route.close_tunnel(server.project, name)


def names() -> list[str]:
    """Runs of the present user that are going on and that run the node agent.

    A project has several users: what nobody has named must not be somebody else's.
    """
    server = connect()
    return [run.name for run in runs.list_active(server, runs.present_user(server)) if is_ours(run)]


def whose(name: str) -> str:
    """The user of its run, "" if that is the present one.

    Raises:
        InputError: there is no run of that name.
    """
    server = connect()
    user = runs.get(server, name).user
    return "" if user == runs.present_user(server) else user


def folder(name: str) -> Path:
    """Where this machine keeps what it knows of a cluster."""
    return state.folder(connect().project, name)


def logs(name: str) -> str:
    """The command that prints what its nodes have written."""
    return f"dstack logs {name}"


def what_stays(name: str) -> str:  # noqa: ARG001 - the protocol's
    """What `down` leaves."""
    return "its machines stay in their fleet until they were idle for its idle duration: cloudrl fleet list"


def keeping(name: str) -> CheckpointRetention:
    """What becomes of its checkpoints when it ends."""
    server = connect()
    run = runs.get(server, name)
    return retention.retention(server, run, checkpoint_folder(run))


def checkpoint_folder(run: RunState) -> str:
    """Where its jobs save, as the agent's command line says."""
    commands = getattr(run.answer.run_spec.configuration, "commands", None) or []
    found = re.search(r"--checkpoints[ =]('[^']*'|\S+)", "\n".join(commands))
    return found[1].strip("'\"") if found is not None else "/checkpoints"


def is_ours(run: RunState) -> bool:
    """Whether the run is a task with the node agent in it."""
    from cloudrl.render.agent import AGENT_FILE

    configuration = run.answer.run_spec.configuration
    commands = getattr(configuration, "commands", None) or []
    return any(AGENT_FILE in command for command in commands)


def _check_ssh() -> None:
    """Refuse to pay for what cannot be reached."""
    if shutil.which("ssh") is None:
        raise CloudrlError(
            "there is no ssh on this machine, and no other way to a cluster on dstack",
            hint="apt-get install openssh-client",
        )


def _await_ready(
    server: Server, run: RunState, on_status: Callable[[Status], None] | None, timeout_s: float
) -> Access:
    deadline = time.monotonic() + timeout_s
    poller = AccessPoller(server)
    before = 0
    past: tuple[Mapping[str, Any], ...] = ()
    try:
        while True:
            run = _get_patiently(server, run.name)
            if run.attempt != before:
                before, past = run.attempt, previous_attempts(server, run)
            if run.is_over:
                raise _failed(server, run)
            if (in_vain := diagnostics.unrecoverable_error(run)) is not None:
                runs.stop(server, run.name)
                runs.wait_over(server, run.name)
                raise in_vain
            access = poller.poll(run)
            look = (
                _look(server, run, access) if access is not None else _from_run(server, run, poller.problem)
            )
            if on_status is not None:
                on_status(replace(look, previous_attempts=past))
            if look.is_ready and access is not None:
                return poller.release()
            if time.monotonic() > deadline:
                raise ClusterFailed(
                    f"cluster {run.name!r} is not ready after {timeout_s:.0f} s: {look.phase}"
                )
            time.sleep(_POLL_S)
    finally:
        poller.close()


def _get_patiently(server: Server, name: str) -> RunState:
    """A look at the run; the server may be restarting, which changes nothing for the machines."""
    deadline = time.monotonic() + _SERVER_BACK_S
    while True:
        try:
            return runs.get(server, name)
        except ConnectionFailed as error:
            if time.monotonic() > deadline:
                hint = f"The run goes on. When the server is back: cloudrl status {name}"
                raise ConnectionFailed(error.message, hint=hint) from error
            time.sleep(_POLL_S)


def _look(server: Server, run: RunState, access: Access) -> Status:
    agent = access.connection.agent(timeout_s=5)
    if agent is None:
        raise TypeError("a connection without an agent")
    try:
        answer = agent.status()
    except (ConnectionFailed, ClusterFailed) as error:
        return _from_run(server, run, detail=error.message)
    return from_agent(run.name, answer, access.connection.ray_url if access.tunnel is None else None)


def from_agent(name: str, answer: Mapping[str, Any], dashboard_url: str | None) -> Status:
    """The head agent's answer as a `Status`."""
    failure = answer["failure"]
    return Status(
        name=name,
        provider="dstack",
        phase=str(answer["phase"]),
        nodes_wanted=int(answer["cluster"]["nodes"]),
        reason=str(failure["reason"]) if failure else "",
        nodes=tuple(answer["nodes"]),
        ready_at=answer["ready_at"],
        dashboard_url=dashboard_url,
        checkpoint_dir=answer["checkpoint_dir"],
        limits=answer.get("money") or {},
    )


def _from_run(server: Server, run: RunState, detail: str = "") -> Status:
    """What dstack alone knows: before the agent answers, and after the end."""
    phase, reason = run.status, run.reason
    if run.is_over:
        phase, reason = exit_reason(server, run)
    return Status(
        name=run.name,
        provider="dstack",
        phase=phase,
        nodes_wanted=len(run.nodes),
        reason=reason,
        nodes=tuple(_row(node, detail) for node in run.nodes),
    )


def _row(node: runs.Node, detail: str) -> dict[str, Any]:
    latest = node.latest
    return {
        "rank": node.rank, "ip": latest.hostname, "phase": latest.status,
        "detail": latest.reason or detail, "seen_s_ago": 0.0, "failure": None,
        "seconds": {"up": (latest.finished_at or time.time()) - latest.submitted_at},
    }  # fmt: skip


def _failed(server: Server, run: RunState) -> ClusterFailed:
    reason = exit_reason(server, run)[1] or run.reason or run.status
    return ClusterFailed(
        f"cluster {run.name!r} ended before it was ready: {reason}", hint=f"dstack logs {run.name}"
    )
