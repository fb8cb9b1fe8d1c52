"""Agents come up: READY with one, two and three nodes, with data and models on each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from node_harness import IP, KEY, until

from cloudrl.connection import AgentApi
from cloudrl.node.tokens import derive

if TYPE_CHECKING:
    from collections.abc import Callable

    from node_harness import Nodes


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ready(nodes: Callable[..., Nodes], count: int) -> None:
    cluster = nodes(count).start().ready()
    status = cluster[0].status()
    assert status["phase"] == "ready"
    print(status["nodes"])
