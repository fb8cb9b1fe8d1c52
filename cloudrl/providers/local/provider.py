"""The verbs of provider `local`."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

from cloudrl.errors import ClusterFailed, ConnectionFailed, InputError, Interrupted, Unauthorized
from cloudrl.node.budget import DOWN
from cloudrl.node.job_secrets import folder_of
from cloudrl.node.tokens import derive
from cloudrl.providers.local import launch, processes, spec_support, state
from cloudrl.providers.local.launch import LocalPlan
from cloudrl.providers.model import UP_TIMEOUT_S, CheckpointRetention, NodePaths, Status
from cloudrl.transport import AgentClient, Connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cloudrl.providers.local.launch import AgentProcess
    from cloudrl.providers.local.state import LocalState
    from cloudrl.providers.model import Plan
    from cloudrl.spec import Cluster

_POLL_S = 0.2
_OTHERS_S = 15.0


def plan(cluster: Cluster, *, dashboard_port: int | None = None) -> LocalPlan:
    """What `up` would do, without doing it."""
    return launch.make_plan(cluster, dashboard_port=dashboard_port)


def places(cluster: Cluster) -> NodePaths:
    """Where the nodes are going to keep what jobs read and write."""
    folder = state.root() / cluster.name
    saved = spec_support.checkpoint_folder(cluster) or folder / "checkpoints"
    return NodePaths(str(saved), str(folder / "data"), str(folder_of("RUN-ID")), version("ray"))


def up(
    plan: Plan,
    *,
    on_status: Callable[[Status], None] | None = None,
    timeout_s: float = UP_TIMEOUT_S,
    detach: bool = True,
) -> Connection:
    """Start the agents and return once the cluster is READY.

    Whatever an earlier `up` of this name has left is ended first. If this program dies before the cluster is
    READY, even by SIGKILL, the agents end by themselves; without `detach` also afterwards.

    Raises:
        InputError: a cluster of this name is running, or a port was taken since the plan was made.
        ClusterFailed: it did not become ready; nothing of it runs any more.
        Interrupted: Ctrl-C; likewise.
    """
    if not isinstance(plan, LocalPlan):
        raise TypeError(f"a plan of another provider: {plan!r}")
    with state.lock(plan.name):
        _remove_stale(plan.name)
        started: list[AgentProcess] = []
        try:
            launch.prepare(plan)
            for rank in range(plan.state.nodes):
                started.append(launch.start_agent(plan, rank))  # noqa: PERF401  each counts as soon as it runs
            _await_ready(plan.state, started, on_status, timeout_s)
        except BaseException as error:
            _abort(plan.state, started)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted; what was started is ended again") from error
            raise
        if detach:
            for agent in started:
                agent.release()
    return attach(plan.name)


def attach(name: str) -> Connection:
    """Connect to a running cluster.

    Raises:
        InputError: there is none of that name, or it does not run.
    """
    known = state.read(name)
    if known is None or not processes.agents(known.id):
        running = [each for each in names() if status(each).phase != "down"]
        what = "is not running" if known else "does not exist"
        others = f"; running: {', '.join(running)}" if running else ""
        raise InputError(
            f"local cluster {name!r} {what}{others}", hint=f"Start it: cloudrl up {name} --on local --nodes 2"
        )
    return _connection(known)


def keep_open(name: str) -> None:
    """Nothing to do: its ports are this machine's."""


def status(name: str) -> Status:
    """One look. A cluster that has ended by itself is "failed" with its reason until `down` or the next `up`.

    One that has ended to save money is "down", with its reason.

    Raises:
        InputError: there is no cluster of that name.
    """
    known = state.read(name)
    if known is None:
        raise InputError(f"no local cluster {name!r}", hint="See what there is: cloudrl status")
    coming_or_going = processes.agents(known.id)
    if coming_or_going:
        try:
            return _live_status(known)
        except (ConnectionFailed, Unauthorized):
            pass  # it does not listen yet, or no more: then it has left its reason
    phase, reason = _outcome(known)
    if reason:
        return _offline_status(known, phase, reason)
    return _offline_status(known, "start" if coming_or_going else "down")


def down(name: str) -> bool:
    """End a cluster and remove its temporary files; False when nothing of it was running.

    Raises:
        InputError: there is no cluster of that name.
    """
    known = state.read(name)
    if known is None:
        raise InputError(f"no local cluster {name!r}", hint="See what there is: cloudrl status")
    with state.lock(name):
        agents = processes.agents(known.id)
        was_running = _end(known)
        for pid in agents:
            with suppress(ChildProcessError):  # most were started by another program, which has ended
                os.waitpid(pid, os.WNOHANG)
        for rank in range(known.nodes):
            (known.node_dir(rank) / "outcome.json").unlink(missing_ok=True)
        return was_running


def names() -> list[str]:
    """Clusters that are running or have left something, by name."""
    return state.names()


def whose(name: str) -> str:  # noqa: ARG001 - the protocol's
    """Clusters of this machine are one's own."""
    return ""


def folder(name: str) -> Path:
    """Where logs and volume of a cluster lie."""
    return state.root() / name


def logs(name: str) -> str:
    """The folder of its logs."""
    return str(folder(name))


def keeping(name: str) -> CheckpointRetention:
    """What becomes of its checkpoints when it ends: nothing."""
    return CheckpointRetention(destroyed=False, location=f"in {_checkpoint_dir(name)}")


def what_stays(name: str) -> str:
    """What `down` leaves."""
    saved, own = _checkpoint_dir(name), folder(name)
    return (
        f"checkpoints and logs stay in {own}"
        if own in saved.parents
        else f"checkpoints stay in {saved}, logs in {own}"
    )


def _checkpoint_dir(name: str) -> Path:
    known = state.read(name)
    return known.checkpoints if known is not None else folder(name) / "checkpoints"


def _connection(known: LocalState) -> Connection:
    tokens = derive(known.key_file.read_bytes())
    return Connection(
        name=known.name,
        ray_url=f"http://127.0.0.1:{known.dashboard_port}",
        ray_token=tokens.ray,
        agent_url=f"http://127.0.0.1:{known.agent_ports[0]}",
        agent_token=tokens.agent,
        cluster_id=known.id,
    )


def _remove_stale(name: str) -> None:
    """End what an earlier cluster of this name has left; a whole one is not touched."""
    known = state.read(name)
    if known is None:
        return
    if _is_up(known):
        raise InputError(
            f"cluster {name!r} is up already",
            hint=f"Use it: cloudrl submit grpo-tiny --cluster {name}   End it: cloudrl down {name}",
        )
    _end(known)


def _is_up(known: LocalState) -> bool:
    """Whether it has been handed over by its starter, which is no more.

    Agents whose starter was killed a moment ago look alive until they notice; those of a busy machine may be slow
    to answer ("start"), and must not be ended for that.
    """
    patience_s = {"ready": 3.0, "start": 5.0}
    began = time.monotonic()
    while processes.agents(known.id):
        phase = status(known.name).phase
        if phase not in patience_s:
            return False
        if time.monotonic() - began > patience_s[phase]:
            return True
        time.sleep(0.05)
    return False


def _abort(known: LocalState, started: list[AgentProcess]) -> None:
    _end(known)
    for agent in started:
        agent.abandon()
        agent.poll()


def _end(known: LocalState) -> bool:
    was_running = processes.end(known.id)
    shutil.rmtree(known.ray_temp_dir, ignore_errors=True)
    shutil.rmtree(folder_of(known.id), ignore_errors=True)  # the agents do so, unless they were killed
    return was_running


def _await_ready(
    known: LocalState,
    started: list[AgentProcess],
    on_status: Callable[[Status], None] | None,
    timeout_s: float,
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        look = status(known.name)
        if on_status is not None:
            on_status(look)
        if look.is_ready:
            return
        ended = [rank for rank, agent in enumerate(started) if agent.poll() is not None]
        if ended:
            raise _failure(known, started, ended[0])
        if time.monotonic() > deadline:
            raise ClusterFailed(
                f"cluster {known.name!r} is still in phase {look.phase} after {timeout_s:.0f} s"
            )
        time.sleep(_POLL_S)


def _failure(known: LocalState, started: list[AgentProcess], first: int) -> ClusterFailed:
    """Give the other agents a moment to agree on the cause, then name it."""
    deadline = time.monotonic() + _OTHERS_S
    while any(agent.poll() is None for agent in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    _, reason = _outcome(known)
    if not reason:
        reason = f"the agent of rank {first} died (status {started[first].poll()})"
    return ClusterFailed(
        f"cluster {known.name!r} failed: {reason}", hint=f"Its logs: {known.node_dir(first)}"
    )


def _outcome(known: LocalState) -> tuple[str, str]:
    """The last phase of a cluster that has ended, and why: as an agent has left it, rank 0's word first; or "", ""."""
    texts = []
    for rank in range(known.nodes):
        path = known.node_dir(rank) / "outcome.json"
        with suppress(FileNotFoundError, ValueError, KeyError):  # a disk that ran full may have cut it short
            outcome = json.loads(path.read_text())
            if outcome["failure"] is not None:
                phase = "down" if outcome["failure"].get("kind") == DOWN else "failed"
                return phase, str(outcome["text"])
            texts.append(str(outcome["text"]))
    return "failed", texts[0] if texts else ""


def _live_status(known: LocalState) -> Status:
    connection = _connection(known)
    value = AgentClient(str(connection.agent_url), str(connection.agent_token), timeout_s=5.0).status()
    failure = value["failure"]
    return Status(
        name=known.name,
        provider="local",
        phase=value["phase"],
        nodes_wanted=known.nodes,
        reason=failure["reason"] if failure else value["detail"],
        nodes=value["nodes"],
        ready_at=value.get("ready_at"),
        dashboard_url=connection.ray_url,
        checkpoint_dir=value["checkpoint_dir"],
        price_per_hour=value.get("money", {}).get("price_per_hour"),
        cost=value.get("money", {}).get("cost"),
        limits=value.get("money", {}),
    )


def _offline_status(known: LocalState, phase: str, reason: str = "") -> Status:
    return Status(
        name=known.name,
        provider="local",
        phase=phase,
        nodes_wanted=known.nodes,
        reason=reason,
        checkpoint_dir=os.fspath(known.checkpoints),
    )
