"""From a run to a connection: the tunnel to its head, and the key that the tokens come from."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.connection import Connection
from cloudrl.errors import CloudrlError, ConnectionFailed
from cloudrl.node.tokens import derive
from cloudrl.providers.dstack import runs, ssh, state
from cloudrl.providers.dstack.tunnel import Tunnel, free_ports, ssh_environment, write_config
from cloudrl.spec.ports import AGENT_PORT, RAY_PORT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cloudrl.providers.dstack.runs import RunState
    from cloudrl.providers.dstack.server import Server

_SSH_TIMEOUT_S = 30.0
# node/tokens.py: node_key. A single node has no dstack_job; the agent keeps a key of its own.
_KEY_OF_RUN, _KEY_OF_NODE = "~/.ssh/dstack_job", "~/.cloudrl/run/key"


@dataclass(frozen=True)
class Access:
    """A way into a running cluster. `tunnel` is None when another process keeps it open."""

    connection: Connection
    tunnel: Tunnel | None

    def close(self) -> None:
        """Close the tunnel if it is ours."""
        if self.tunnel is not None:
            self.tunnel.close()


def reach(server: Server, run: RunState, *, timeout_s: float = 60.0) -> Access:
    """Open the way to a run's head, or take the one that is kept open.

    Raises:
        ConnectionFailed: the head cannot be reached through SSH, or has no key yet.
    """
    place = state.folder(server.project, run.name)
    kept = state.read_kept(place / "tunnel")
    if kept is not None and kept.run_id == run.id:
        ports = {RAY_PORT: kept.ray_port, AGENT_PORT: kept.agent_port}
        return Access(connect(server, run, ports), None)
    tunnel = open_tunnel(server, run, place, timeout_s=timeout_s)
    try:
        return Access(connect(server, run, tunnel.ports), tunnel)
    except BaseException:
        tunnel.close()
        raise


def open_tunnel(server: Server, run: RunState, place: Path, *, timeout_s: float = 60.0) -> Tunnel:
    """Forward Ray's and the agent's port; to 8265 and 8266 here if they are free.

    Raises:
        ConnectionFailed: the head cannot be reached through SSH.
    """
    first = run

    def find_route() -> ssh.Route:
        """Ask the server each time: after a resubmission the head is elsewhere."""
        nonlocal first
        with suppress(ConnectionFailed):  # the server may be restarting; the machines do not care
            first = runs.get(server, run.name)
        if first.is_over:
            raise ConnectionFailed(f"run {run.name!r} is over: {first.status} {first.reason}".rstrip())
        return ssh.route(server, first)

    tunnel = Tunnel(find_route, free_ports((RAY_PORT, AGENT_PORT)), place)
    tunnel.open(timeout_s)
    return tunnel


def connect(server: Server, run: RunState, ports: dict[int, int]) -> Connection:
    """Addresses and tokens; the key is read from the head at each call, since each resubmission has a new one.

    Raises:
        ConnectionFailed: the key cannot be read.
    """
    tokens = derive(read_key(server, run))
    return Connection(
        name=run.name,
        ray_url=f"http://127.0.0.1:{ports[RAY_PORT]}",
        ray_token=tokens.ray,
        agent_url=f"http://127.0.0.1:{ports[AGENT_PORT]}",
        agent_token=tokens.agent,
        cluster_id=run.id,
    )


def read_key(server: Server, run: RunState) -> bytes:
    """The key of a run's present attempt, from its head.

    Raises:
        ConnectionFailed: SSH fails, or there is no key: then the agent has not started.
    """
    path = _KEY_OF_RUN if len(run.nodes) > 1 else _KEY_OF_NODE
    key = _run(server, run, ["cat", path])
    if not key.strip():
        raise ConnectionFailed(
            f"the head of {run.name!r} has an empty {path}", hint=f"cloudrl status {run.name}"
        )
    return key


def _run(server: Server, run: RunState, command: Sequence[str]) -> bytes:
    """The standard output of a command on the head."""
    route = ssh.route(server, run)
    config = write_config(state.folder(server.project, run.name), route)
    try:
        done = subprocess.run(
            route.command(config, route.name, *command), capture_output=True, check=False,
            stdin=subprocess.DEVNULL, timeout=_SSH_TIMEOUT_S, env=ssh_environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConnectionFailed(
            f"the head of {run.name!r} does not answer through SSH within {_SSH_TIMEOUT_S:.0f} s"
        ) from None
    except FileNotFoundError:
        raise CloudrlError("there is no ssh on this machine", hint="apt-get install openssh-client") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1] if said else f"status {done.returncode}"
        raise ConnectionFailed(
            f"ssh to the head of {run.name!r}: {reason}", hint=f"cloudrl status {run.name}"
        )
    return done.stdout
