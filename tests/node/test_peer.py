"""Talking to another node's agent."""

from __future__ import annotations

from inspect import signature

from cloudrl.checkpoints.agent_files import RangeClient
from cloudrl.node.peer import RELAY_TIMEOUT_S, relay_peer
from cloudrl.node.report import Report
from cloudrl.transport import agent_client


def test_a_call_that_is_passed_on_may_take_as_long_as_clients_wait() -> None:
    """For a listing of a slow volume: after 10 s the client got 504 instead."""
    peer = relay_peer("token", Report(rank=1, ip="10.0.0.2", hostname="node-1", agent_port=8266))
    assert (peer.ip, peer.port) == ("10.0.0.2", 8266)
    assert peer._timeout_s == RELAY_TIMEOUT_S == agent_client._LISTING_TIMEOUT_S
    assert signature(RangeClient).parameters["timeout_s"].default <= RELAY_TIMEOUT_S
