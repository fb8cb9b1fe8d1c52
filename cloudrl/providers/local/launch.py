"""From a cluster to N running agents: ports, command lines, processes."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.errors import CapacityError, InputError
from cloudrl.node.host_info import count_gpus
from cloudrl.node.identity import address_towards
from cloudrl.node.job_secrets import folder_of
from cloudrl.node.shutdown import RELEASE
from cloudrl.node.tokens import read_or_make_key
from cloudrl.protocol.options import AgentOptions, Ports, parse_service
from cloudrl.protocol.outcome import FILE as OUTCOME_FILE
from cloudrl.providers.local import ports, spec_support
from cloudrl.providers.local.processes import MARK
from cloudrl.providers.local.state import LocalState, make_folder
from cloudrl.providers.model import Plan
from cloudrl.render.agent import AGENT_FILE, write_agent
from cloudrl.render.dstack import CPU_SLOTS, budget_limits
from cloudrl.spec import data_argument
from cloudrl.spec.names import is_secret

if TYPE_CHECKING:
    from cloudrl.spec import Cluster

OBJECT_STORE_BYTES = 256 * 1024**2
DATA = ("addition",)
MODELS = ("tiny-adder",)


@dataclass(frozen=True, kw_only=True)
class LocalPlan(Plan):
    """The agents that `up` would start."""

    state: LocalState
    commands: tuple[tuple[str, ...], ...]

    def node_env(self, rank: int) -> dict[str, str]:
        """What one agent gets in addition to the environment of this command."""
        state = self.state
        return {
            **self.cluster.env,
            "CLOUDRL_PROVIDER": "local",
            "CLOUDRL_CLUSTER": state.name,
            MARK: state.id,
            "CLOUDRL_NODE_RANK": str(rank),
            "CLOUDRL_NODES_NUM": str(state.nodes),
            "CLOUDRL_HEAD_IP": state.ip,
            "CLOUDRL_NODE_IP": state.ip,
        }

    def render(self) -> str:
        """One shell line a node; secrets are masked."""
        lines = [f"# {self.state.nodes} agents on this machine; state in {self.state.folder}"]
        lines += [f"# {note}" for note in self.notes]
        for rank, command in enumerate(self.commands):
            variables = [f"{key}={_redacted(key, value)}" for key, value in self.node_env(rank).items()]
            lines.append(" ".join([*variables, shlex.join(command)]))
        return "\n".join(lines) + "\n"


def _redacted(name: str, value: str) -> str:
    return "***" if is_secret(name) else shlex.quote(value)


def make_plan(cluster: Cluster, *, dashboard_port: int | None = None) -> LocalPlan:
    """Decide ports and folders.

    Raises:
        CapacityError: the cluster asks for GPUs that this machine does not have.
        InputError: `dashboard_port` is given and in use, or this shell does not have a secret.
    """
    spec_support.check_secrets(cluster)
    gpus = _gpus(cluster)
    dashboard = ports.dashboard_port(dashboard_port, cluster=cluster.name)
    gcs, client, *agent_ports = ports.free_ports(2 + cluster.nodes, cluster=cluster.name, avoid=dashboard)
    cluster_id = secrets.token_hex(8)
    state = LocalState(
        name=cluster.name,
        id=cluster_id,
        nodes=cluster.nodes,
        device=cluster.device,
        gpus_per_node=gpus,
        ip=address_towards("192.0.2.1"),
        gcs_port=gcs,
        dashboard_port=dashboard,
        client_port=client,
        agent_ports=tuple(agent_ports),
        ray_temp_dir=f"/tmp/cloudrl-{cluster_id[:8]}",  # noqa: S108  short: Unix socket paths end at 107 bytes
        checkpoint_dir=str(spec_support.checkpoint_folder(cluster) or ""),
    )
    commands = tuple(_command(cluster, state, rank) for rank in range(cluster.nodes))
    unused = ", ".join(spec_support.unsupported_fields(cluster))
    notes = (f"without effect on this machine: {unused}",) if unused else ()
    return LocalPlan(
        provider="local",
        cluster=cluster,
        checkpoint_dir=str(state.checkpoints),
        data_dir=str(state.data),
        secrets_dir=str(folder_of("RUN-ID")),
        ray_version=version("ray"),
        nodes_are_here=True,
        notes=notes,
        state=state,
        commands=commands,
    )


@dataclass
class AgentProcess:
    """One agent that was started, and the lease that keeps it: our end of a pipe.

    Not a `subprocess.Popen`, which cannot let go of a process that shall outlive it.
    """

    pid: int
    lease: int
    exit_status: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        if self.exit_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit_status = os.waitstatus_to_exitcode(status) if pid else None
        return self.exit_status

    def release(self) -> None:
        """Let the agent outlive this command; one that died a moment ago is left to `status`."""
        with suppress(BrokenPipeError):
            os.write(self.lease, RELEASE)
        self.abandon()

    def abandon(self) -> None:
        """Close the lease; an agent that was not released ends."""
        os.close(self.lease)


def prepare(plan: LocalPlan) -> None:
    """Write what the agents need: a new key, the agent's file, the volume, and what `down` must know.

    Raises:
        InputError: a port has been taken since the plan was made.
    """
    state = plan.state
    for port in state.ports:
        if ports.is_taken(port, state.name):
            raise InputError(
                f"port {port} was taken by another program a moment ago",
                hint="Try again: other ports are chosen",
            )
    state.write()
    state.key_file.unlink(missing_ok=True)
    read_or_make_key(state.key_file)
    write_agent(state.folder)
    make_folder(state.checkpoints, "Name another one: --checkpoints DIR")


def start_agent(plan: LocalPlan, rank: int) -> AgentProcess:
    """Start one agent in its own session. It ends by itself when the lease is dropped before its release."""
    folder = plan.state.node_dir(rank)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (OUTCOME_FILE, "agent.log"):
        (folder / old).unlink(missing_ok=True)
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    words = [*plan.commands[rank], f"--lease-fd={reading}"]
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        pid = os.posix_spawn(
            words[0],
            words,
            {**os.environ, **plan.node_env(rank)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(folder / "stdout.log"), log_flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(reading)
    return AgentProcess(pid, writing)


def _command(cluster: Cluster, state: LocalState, rank: int) -> tuple[str, ...]:
    node_ports = Ports(
        agent=state.agent_ports[rank], head_agent=state.agent_ports[0], gcs=state.gcs_port,
        dashboard=state.dashboard_port, client=state.client_port,
        # zero: Ray takes free ports, several nodes share this machine
        dashboard_agent=0, node_manager=0, object_manager=0, worker=(0, 0),
    )  # fmt: skip
    options = AgentOptions(
        device=state.device,
        gpus=state.gpus_per_node,
        cpus=CPU_SLOTS if state.device == "cpu" else None,
        setup=tuple(cluster.setup),
        # one for all: the nodes share this machine and its ports
        services=tuple(map(parse_service, cluster.services)) if rank == 0 else (),
        data=tuple(map(data_argument, cluster.data)) or DATA,
        models=tuple(cluster.models) or MODELS,
        checkpoints=state.checkpoints,
        data_dir=state.data,
        run_dir=state.node_dir(rank),
        ray_temp_dir=Path(state.ray_temp_dir, str(rank)),
        object_store_bytes=OBJECT_STORE_BYTES,
        key_file=state.key_file,
        ports=node_ports,
        join_timeout_s=120,
        limits=budget_limits(cluster),
    )
    return (sys.executable, str(state.folder / AGENT_FILE), "run", *options.to_argv())


def _gpus(cluster: Cluster) -> int:
    """GPUs a node; without GPUs one slot, since verl counts nothing else (verl-project, single_controller/ray)."""
    if cluster.device == "cpu":
        return 1
    _, here = count_gpus()
    wanted = (cluster.gpus_per_node or 1) * cluster.nodes
    if wanted > here:
        raise CapacityError(
            f"{cluster.nodes} nodes with {cluster.gpu} ask for {wanted} GPUs; this machine has {here}",
            hint="Leave gpu out to train on the CPU of this machine",
        )
    if cluster.nodes > 1:
        raise InputError("several nodes on one machine would share its GPUs", hint="Take nodes=1")
    return wanted
