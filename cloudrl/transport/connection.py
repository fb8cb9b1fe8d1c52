"""What `attach` returns and all later stages use, and one look at the cluster behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cloudrl.errors import ClusterFailed, ConnectionFailed, Unauthorized
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.exchange import Send, send
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.transport import httpx_send
from cloudrl.transport.job_url import job_url
from cloudrl.transport.ray_client import RayClient


class TokenSource(Protocol):
    """Whoever made a connection; asked when a token is refused, or when the cluster no longer answers."""

    def refresh(self, refused: str) -> Connection:
        """The connection with tokens that are newer than the refused one, or the same if there are no newer ones.

        Raises:
            ConnectionFailed: they cannot be read now, for example since the cluster is being started again.
        """

    def ensure_alive(self) -> None:
        """Return if the cluster exists, is being started again, or its state is unknown.

        Raises:
            ClusterFailed: it is over for good, so that waiting for it is in vain.
        """


@dataclass(frozen=True)
class Connection:
    """Addresses and tokens of one running cluster.

    Attributes:
        name: the cluster's name, or its address where it has none.
        ray_url: Ray's dashboard, where jobs are submitted.
        ray_token: None for a cluster without token authentication. Not part of `repr`.
        agent_url: the agent of rank 0, None for a plain Ray cluster.
        cluster_id: checked before every submit, so that a job never reaches another cluster on the same port.
        token_source: who can read new tokens after a restart; None where tokens never change.
        nodes_are_here: whether its nodes read this machine's own files.
        send: the seam at which requests leave, see `cloudrl.testing`; None for the network.
    """

    name: str
    ray_url: str
    ray_token: str | None = field(default=None, repr=False)
    agent_url: str | None = None
    agent_token: str | None = field(default=None, repr=False)
    cluster_id: str | None = None
    token_source: TokenSource | None = field(default=None, repr=False, compare=False)
    nodes_are_here: bool = False
    send: Send | None = field(default=None, repr=False, compare=False)

    @property
    def env(self) -> dict[str, str]:
        """Variables for a raw `ray job submit`."""
        variables = {"RAY_ADDRESS": self.ray_url, "RAY_AUTH_MODE": "token" if self.ray_token else "disabled"}
        return {**variables, "RAY_AUTH_TOKEN": self.ray_token} if self.ray_token else variables

    @property
    def _own_name(self) -> str | None:
        return self.name if self.cluster_id is not None else None

    def job_url(self, submission_id: str) -> str:
        """A job of this cluster in one word."""
        return job_url(submission_id, self.ray_url, self._own_name)

    def ray(self) -> RayClient:
        """Ray's job server; a refused token is read again once."""
        refresh, through = self._refresher("ray_token"), self.send or httpx_send.send
        return RayClient(self.ray_url, self.ray_token, refresh=refresh, send=through, cluster=self._own_name)

    def agent(self, *, timeout_s: float = 10.0) -> AgentClient | None:
        """The agent of rank 0; None for a plain Ray cluster. A refused token is read again once."""
        if self.agent_url is None or self.agent_token is None:
            return None
        refresh = self._refresher("agent_token")
        return AgentClient(
            self.agent_url, self.agent_token, timeout_s=timeout_s, refresh=refresh, send=self.send or send
        )

    def _refresher(self, which: str) -> Callable[[str], str] | None:
        source = self.token_source
        return None if source is None else lambda refused: getattr(source.refresh(refused), which) or ""


def inspect_cluster(connection: Connection) -> ClusterFacts:
    """Look at the cluster behind a connection.

    Raises:
        ConnectionFailed: the cluster does not answer, or another one does.
        ClusterFailed: the cluster has failed, or is not ready yet.
    """
    agent = connection.agent()
    if agent is None:
        return _plain(connection)
    try:
        status = agent.status()
    except Unauthorized as error:
        raise Unauthorized(error.message, hint=_again(connection.name)) from error
    facts = status.facts
    if connection.cluster_id is not None and facts.id != connection.cluster_id:
        raise ConnectionFailed(
            f"{connection.agent_url} belongs to cluster {facts.name!r} ({facts.id}), "
            f"not to {connection.name!r} ({connection.cluster_id})",
            hint=_again(connection.name),
        )
    if status.phase is not Phase.READY:
        raise ClusterFailed(
            f"cluster {facts.name!r} is not ready: its phase is {status.phase}", hint=f"cloudrl status {facts.name}"
        )
    return facts


def _again(name: str) -> str:
    return f"Reconnect to {name}: cloudrl detach {name}; cloudrl attach {name}"


def _plain(connection: Connection) -> ClusterFacts:
    """A Ray cluster without agents: what Ray itself knows. Uneven nodes count as the smallest of them."""
    nodes = [node for node in connection.ray().nodes() if node.gpus > 0]
    gpus = min((int(node.gpus) for node in nodes), default=0)
    return ClusterFacts(connection.name, "", "", len(nodes), gpu_nodes=len(nodes), gpus_per_node=gpus)
