"""Samples of a run of a cluster with many nodes: whom a file is asked of, and how often."""

from types import SimpleNamespace
from typing import Any

import pytest

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.report import NodeReport
from cloudrl.sdk.samples import NodeFiles

NODES = 256


class Agent:
    """Rank 0 of a cluster whose samples are on some nodes; others do not answer."""

    def __init__(self, holders: set[int], off: set[int] | None = None) -> None:
        self._holders, self._off = holders, off or set()
        self.asked: list[int] = []

    def status(self) -> Any:
        nodes = tuple(NodeReport(rank, f"10.0.0.{rank}") for rank in range(NODES))
        return SimpleNamespace(nodes=nodes, facts=SimpleNamespace(checkpoint_dir="/checkpoints"))

    def checkpoint_file(self, rank: int, path: str, _limit_bytes: int) -> bytes | None:
        self.asked.append(rank)
        if rank in self._off:
            raise ConnectionFailed(f"rank {rank} does not answer")
        return path.encode() if rank in self._holders else None


def files(agent: Agent) -> NodeFiles:
    job: Any = SimpleNamespace(connection=SimpleNamespace(agent=lambda: agent))
    return NodeFiles(job)


def test_a_shared_folder_is_read_on_one_node() -> None:
    agent = Agent(set(range(NODES)))
    assert files(agent)("/checkpoints/run/validation", 3) == b"run/validation/3.jsonl"
    assert agent.asked == [0]


def test_who_has_one_is_asked_first_for_the_next() -> None:
    agent = Agent({200}, off={7})
    read = files(agent)
    assert read("/checkpoints/run", 1) == b"run/1.jsonl"
    assert sorted(agent.asked) == list(range(NODES))
    agent.asked.clear()
    assert read("/checkpoints/run", 2) == b"run/2.jsonl"
    assert agent.asked == [200]


def test_nobody_has_it() -> None:
    assert files(Agent(set()))("/checkpoints/run", 1) is None
    with pytest.raises(ConnectionFailed, match="rank 7 "):
        files(Agent(set(), off={7}))("/checkpoints/run", 1)
    assert files(Agent(set()))("/elsewhere/run", 1) is None
