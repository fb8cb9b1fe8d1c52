"""What `attach` returns and all later stages use."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Connection:
    """Addresses and tokens of one running cluster.

    Attributes:
        name: the cluster's name, or its address where it has none.
        ray_url: Ray's dashboard, where jobs are submitted.
        ray_token: None for a cluster without token authentication. Not part of `repr`.
        agent_url: the agent of rank 0, None for a plain Ray cluster.
        cluster_id: checked before every submit, so that a job never reaches another cluster on the same port.
    """

    name: str
    ray_url: str
    ray_token: str | None = field(default=None, repr=False)
    agent_url: str | None = None
    agent_token: str | None = field(default=None, repr=False)
    cluster_id: str | None = None

    @property
    def env(self) -> dict[str, str]:
        """Variables for a raw `ray job submit`."""
        variables = {"RAY_ADDRESS": self.ray_url, "RAY_AUTH_MODE": "token" if self.ray_token else "disabled"}
        return {**variables, "RAY_AUTH_TOKEN": self.ray_token} if self.ray_token else variables
