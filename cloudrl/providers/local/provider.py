"""Provider `local`: the nodes of a cluster are agents on this machine.

Its status is from its head agent where that answers, else what its agents have left.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from cloudrl.errors import ClusterFailed, ConnectionFailed, InputError, Interrupted
from cloudrl.node.job_secrets import folder_of
from cloudrl.node.tokens import read_or_make_key
from cloudrl.private_files import make_new_folder, refuse_foreign, write_file
from cloudrl.protocol import outcome
from cloudrl.protocol.client import NoAgent
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.outcome import FILE as OUTCOME_FILE
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.tokens import derive
from cloudrl.providers.local import processes, state
from cloudrl.providers.local.made_models import bring_models, keep_models
from cloudrl.providers.local.plan import LocalPlan, is_taken, make_plan
from cloudrl.providers.local.processes import AgentProcess
from cloudrl.providers.local.state import LocalState
from cloudrl.providers.model import (
    UP_TIMEOUT_S,
    CheckpointRetention,
    Plan,
    Provider,
    Status,
    agent_fields,
)
from cloudrl.providers.state_folder import make_state_folder
from cloudrl.render.agent import AGENT_FILE, RETRIEVER_FILE, build_agent, build_retriever
from cloudrl.spec import Cluster
from cloudrl.spec.services import parse_search
from cloudrl.transport import AgentClient, Connection
from cloudrl.units import duration_text

_POLL_S = 0.2
_OTHERS_S = 15.0
_REMOVED_S = 2.0


@final
class LocalProvider(Provider):
    """The verbs, on this machine."""

    name = "local"
    default_cluster = "local-cluster"
    nodes_are_here = True
    has_gpus = False
    state_pattern = "clusters/*/"

    def is_configured(self) -> bool:
        """See `Provider`."""
        return True

    def plan(self, cluster: Cluster) -> LocalPlan:
        """See `Provider`."""
        return make_plan(cluster)

    def up(
        self,
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
                _prepare(plan)
                for rank, command in enumerate(plan.commands):
                    log = plan.state.node_dir(rank) / "stdout.log"
                    started.append(processes.start_agent(command, plan.node_env(rank), log))
                _await_ready(plan.state, started, on_status, timeout_s)
                keep_models(plan.state)
            except BaseException as error:
                _end(plan.state)
                if state.read(plan.name) == plan.state:
                    replace(plan.state, is_down=True).write()
                for agent in started:
                    agent.abandon()
                    agent.poll()
                if isinstance(error, KeyboardInterrupt):
                    raise Interrupted("interrupted; what was started is ended again") from error
                raise
            if detach:
                for agent in started:
                    agent.release()
        return self.attach(plan.name)

    def attach(self, name: str, *, keep_open: bool = False) -> Connection:  # noqa: ARG002  its ports are this machine's
        """Connect to a running cluster.

        Raises:
            InputError: no cluster has that name, or it does not run.
        """
        cluster = state.read(name)
        if cluster is None or not processes.agents(cluster.id):
            what = "is not running" if cluster else "does not exist"
            raise InputError(f"local cluster {name!r} {what}", hint=f"Start it: cloudrl up {name} --on local --nodes 2")
        return connection(cluster)

    def status(self, name: str) -> Status:
        """See `Provider`."""
        return read_status(_known(name))

    def down(self, name: str) -> bool:
        """End a cluster and remove its temporary files; False when nothing of it was running.

        Raises:
            InputError: there is no cluster of that name.
        """
        cluster = _known(name)
        with state.lock(name):
            agents = processes.agents(cluster.id)
            was_running = _end(cluster)
            for pid in agents:
                with suppress(ChildProcessError):  # most were started by another program, which has ended
                    os.waitpid(pid, os.WNOHANG)
            for rank in range(cluster.nodes):
                (cluster.node_dir(rank) / OUTCOME_FILE).unlink(missing_ok=True)
            replace(cluster, is_down=True).write()
            return was_running

    def list(self, name: str | None = None) -> tuple[Status, ...]:
        """See `Provider`."""
        names = [cluster_name for cluster_name in state.names() if name in (None, cluster_name)]
        return tuple(self.status(cluster_name) for cluster_name in names)


def _known(name: str) -> LocalState:
    left = state.read(name)
    if left is None:
        raise InputError(f"no local cluster {name!r}", hint="See what there is: cloudrl status")
    return left


def _remove_stale(name: str) -> None:
    """End what an earlier cluster of this name has left; a whole one is not touched."""
    left = state.read(name)
    if left is None:
        return
    if _is_up(left):
        raise InputError(
            f"cluster {name!r} is up already",
            hint=f"Use it: cloudrl submit grpo-tiny --cluster {name}   End it: cloudrl down {name}",
        )
    _end(left)


def _prepare(plan: LocalPlan) -> None:
    """Write what the agents need: a new key, the agent's file, folders, the volume, and what `down` must know.

    Raises:
        InputError: a port, or the name of Ray's folder, has been taken since the plan was made.
    """
    cluster = plan.state
    for port in cluster.ports:
        if is_taken(port, cluster.name):
            raise InputError(
                f"port {port} was taken by another program a moment ago", hint="Try again: other ports are chosen"
            )
    cluster.write()
    try:
        make_new_folder(Path(cluster.ray_temp_dir))
    except FileExistsError:
        raise InputError(
            f"{cluster.ray_temp_dir} was made by another program a moment ago", hint="Try again: another name is chosen"
        ) from None
    cluster.key_file.unlink(missing_ok=True)
    read_or_make_key(cluster.key_file)
    write_file(cluster.folder / AGENT_FILE, build_agent(for_cpu=True))
    if any(parse_search(service) is not None for service in plan.cluster.services):
        write_file(cluster.folder / RETRIEVER_FILE, build_retriever())
    _make_volume(cluster)
    bring_models(cluster)
    for old in cluster.folder.glob("node-*"):  # the archive keeps the logs of earlier starts
        shutil.rmtree(old)
    for rank in range(cluster.nodes):
        make_new_folder(cluster.node_dir(rank))


def _make_volume(cluster: LocalState) -> None:
    """Make the folder of checkpoints. The user's own has the mode that the user's umask gives.

    Raises:
        InputError: It cannot be made or written to.
    """
    if not cluster.checkpoint_dir:
        make_state_folder(cluster.checkpoints)
        return
    hint = "Name another one: --checkpoints DIR"
    try:
        cluster.checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {cluster.checkpoints} cannot be made: {error.strerror}", hint=hint) from error
    if not os.access(cluster.checkpoints, os.W_OK | os.X_OK):
        raise InputError(f"the folder {cluster.checkpoints} cannot be written to by this user", hint=hint)


def _is_up(cluster: LocalState) -> bool:
    """Whether it has been handed over by its starter, which is no more.

    Agents whose starter was killed a moment ago look alive until they notice; those of a busy machine may be slow
    to answer ("start"), and must not be ended for that.
    """
    settled_after_s = {Phase.READY: 3.0, Phase.START: 5.0}
    began = time.monotonic()
    while processes.agents(cluster.id):
        phase = read_status(cluster).phase
        if phase not in settled_after_s:
            return False
        if time.monotonic() - began > settled_after_s[phase]:
            return True
        time.sleep(0.05)
    return False


def _end(cluster: LocalState) -> bool:
    was_running = processes.end(cluster.id)
    # left by agents that were killed
    for folder in filter(_is_ours, (Path(cluster.ray_temp_dir), folder_of(cluster.id))):
        deadline = time.monotonic() + _REMOVED_S
        shutil.rmtree(folder, ignore_errors=True)
        while folder.exists() and time.monotonic() < deadline:  # a process that ends may have written there meanwhile
            time.sleep(0.05)
            shutil.rmtree(folder, ignore_errors=True)
    return was_running


def _is_ours(folder: Path) -> bool:
    try:
        refuse_foreign(folder)
    except OSError:  # it does not exist, or belongs to another user
        return False
    return True


def _await_ready(
    cluster: LocalState, started: list[AgentProcess], on_status: Callable[[Status], None] | None, timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status = read_status(cluster)
        if on_status is not None:
            on_status(status)
        if status.is_ready:
            return
        ended = [rank for rank, agent in enumerate(started) if agent.poll() is not None]
        if ended:
            raise _failure(cluster, started, ended[0])
        if time.monotonic() > deadline:
            raise ClusterFailed(
                f"cluster {cluster.name!r} is still in phase {status.phase} after {duration_text(timeout_s)}"
            )
        time.sleep(_POLL_S)


def _failure(cluster: LocalState, started: list[AgentProcess], first: int) -> ClusterFailed:
    """Give the other agents a moment to agree on the cause, then name it."""
    deadline = time.monotonic() + _OTHERS_S
    while any(agent.poll() is None for agent in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    _, reason = exit_reason(cluster)
    if not reason:
        reason = f"the agent of rank {first} died (status {started[first].poll()})"
    return ClusterFailed(f"cluster {cluster.name!r} failed: {reason}", hint=f"Its logs: {cluster.node_dir(first)}")


def read_status(cluster: LocalState) -> Status:
    """The status now. A cluster that has ended by itself is "failed" with its reason until `down` or the next `up`.

    One that has ended to save money is "down", with its reason.
    """
    coming_or_going = processes.agents(cluster.id)
    saved, own = cluster.checkpoints, cluster.folder
    stay = "checkpoints and logs stay" if own in saved.parents else f"checkpoints stay in {saved}, logs"
    status = Status(
        ClusterFacts(cluster.name, cluster.id, "local", cluster.nodes, checkpoint_dir=str(saved)),
        Phase.START if coming_or_going else Phase.DOWN,
        started_at=cluster.started_at,
        retention=CheckpointRetention(destroyed=False, location=f"in {saved}"),
        teardown_summary=f"{stay} in {own}",
        logs_command=str(own),
        state_dir=str(own),
    )
    if coming_or_going:
        try:
            way = connection(cluster)
            answer = AgentClient(str(way.agent_url), str(way.agent_token), timeout_s=5.0).status()
            budget = answer.budget
            status = replace(status, price_per_hour=budget.price_per_hour, cost=budget.cost, **agent_fields(answer))
            return replace(status, dashboard_url=way.ray_url)
        except NoAgent as error:
            return replace(status, reason=error.message)
        except ConnectionFailed:  # it does not listen yet, or no more: then it has left its reason
            pass
    phase, reason = exit_reason(cluster)
    if reason:
        return replace(status, phase=phase, reason=reason)
    was_killed = not coming_or_going and not cluster.is_down
    return replace(status, phase=Phase.FAILED, reason=_killed(cluster)) if was_killed else status


def _killed(cluster: LocalState) -> str:
    """Why nothing runs of a cluster that has left no reason."""
    if cluster.boot_id != state.boot_id():
        return "this machine was restarted while the cluster was up"
    return "all of its processes were killed"


def exit_reason(cluster: LocalState) -> tuple[Phase, str]:
    """How a cluster has ended, and why: as an agent has left it, rank 0's word first; no reason where none has."""
    reasons = []
    for rank in range(cluster.nodes):
        with suppress(FileNotFoundError):
            if (left := outcome.from_text((cluster.node_dir(rank) / outcome.FILE).read_text())) is not None:
                reasons.append(left)
    for reason in reasons:
        if reason.phase is not Phase.ENDED:
            return reason.phase, reason.reason
    return Phase.FAILED, reasons[0].reason if reasons else ""


def connection(cluster: LocalState) -> Connection:
    """Addresses and tokens of a cluster that runs."""
    tokens = derive(cluster.key_file.read_bytes())
    return Connection(
        name=cluster.name,
        ray_url=f"http://127.0.0.1:{cluster.dashboard_port}",
        ray_token=tokens.ray,
        agent_url=f"http://127.0.0.1:{cluster.agent_ports[0]}",
        agent_token=tokens.agent,
        cluster_id=cluster.id,
        token_source=_Restarts(cluster.name),
        nodes_are_here=True,
    )


@dataclass(frozen=True)
class _Restarts:
    """See `TokenSource`: whoever starts the cluster again gives it a new key, and lets it keep its ports."""

    name: str

    def refresh(self, refused: str) -> Connection:  # noqa: ARG002  there is only one key
        """See `TokenSource`."""
        try:
            return connection(_known(self.name))
        except FileNotFoundError as error:
            raise ConnectionFailed(f"local cluster {self.name!r} is being started again: it has no key yet") from error

    def ensure_alive(self) -> None:
        """See `TokenSource`: one that has ended may be started again at any time."""
