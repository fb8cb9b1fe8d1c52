"""How a client reaches a running cluster: addresses and tokens, and the two APIs behind them."""

from cloudrl.connection.agent_api import AgentApi
from cloudrl.connection.cluster import ClusterView, view
from cloudrl.connection.model import Connection, Home
from cloudrl.connection.ray_api import RayApi

__all__ = ["AgentApi", "ClusterView", "Connection", "Home", "RayApi", "view"]
