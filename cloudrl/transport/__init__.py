"""How a client reaches a running cluster: addresses and tokens, and the two clients behind them."""

from cloudrl.protocol.client import AgentClient
from cloudrl.transport.connection import Connection, TokenSource, inspect_cluster
from cloudrl.transport.ray_client import RayClient

__all__ = ["AgentClient", "Connection", "RayClient", "TokenSource", "inspect_cluster"]
