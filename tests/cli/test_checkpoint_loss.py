"""Checkpoints on disks that are about to be destroyed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from fake_local import KEY, FakeLocal

from cloudrl.cli import _checkpoint_loss
from cloudrl.node.tokens import derive
from cloudrl.protocol.phases import Phase
from cloudrl.providers.model import CheckpointRetention, Status
from cloudrl.transport import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.io


RENTED = Status(
    "lab", "dstack", Phase.READY,
    retention=CheckpointRetention(destroyed=True, location="on the machines' own disks"),
)  # fmt: skip
OWN = replace(
    RENTED, retention=CheckpointRetention(destroyed=False, location="in /checkpoints of your hosts 10.0.0.1")
)


@pytest.fixture
def lab(home: Path) -> Iterator[FakeLocal]:
    with FakeLocal("lab") as fake:
        yield fake


@pytest.fixture
def connection(lab: FakeLocal) -> Connection:
    tokens = derive(KEY)
    return Connection("lab", lab.cluster.url, tokens.ray, lab.cluster.agent_url, tokens.agent)


def save(lab: FakeLocal, folder: Path) -> None:
    """Two ranks, each with its shard on its own node."""
    for rank in (0, 1):
        disk = folder / f"disk-{rank}"
        actor = disk / "grpo" / "global_step_10" / "actor"
        actor.mkdir(parents=True)
        (actor / f"model_world_size_2_rank_{rank}.pt").write_bytes(b"x" * 1000)
        lab.cluster.disks[rank] = disk


def test_those_of_rented_machines_are_listed(lab: FakeLocal, connection: Connection, tmp_path: Path) -> None:
    save(lab, tmp_path)
    keeping, [line, *_] = _checkpoint_loss.look(RENTED, connection)
    assert keeping is not None
    assert keeping.destroyed
    assert line.startswith("grpo, step 10, actor, 2.0 kB, ranks 0 on node 0; 1 on node 1")


def test_nothing_saved_is_nothing_to_lose(lab: FakeLocal, connection: Connection, tmp_path: Path) -> None:
    lab.cluster.disks = {0: tmp_path, 1: tmp_path}
    assert _checkpoint_loss.look(RENTED, connection) == (None, [])


def test_a_node_that_says_nothing_may_have_some(
    lab: FakeLocal, connection: Connection, tmp_path: Path
) -> None:
    lab.cluster.disks = {0: tmp_path}
    keeping, lines = _checkpoint_loss.look(RENTED, connection)
    assert keeping is not None
    assert "node 1" in lines[0]


def test_a_cluster_that_does_not_answer_may_have_some(lab: FakeLocal, connection: Connection) -> None:
    lab.cluster.down()
    keeping, lines = _checkpoint_loss.look(RENTED, connection)
    assert keeping is not None
    assert "they cannot be listed" in lines[0]


def test_ones_own_hosts_are_not_asked(lab: FakeLocal, connection: Connection) -> None:
    assert _checkpoint_loss.look(OWN, connection) == (OWN.retention, [])
    assert not [path for _, path in lab.cluster.requests if "inventory" in path]


@pytest.mark.parametrize("phase", ["provisioning", "fetch", "down", "failed", "ended"])
def test_a_cluster_that_is_not_up_has_none(phase: str) -> None:
    assert _checkpoint_loss.look(replace(RENTED, phase=Phase(phase)), None) == (None, [])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"phase": Phase.RUNNING},
        {"phase": Phase.PROVISIONING, "previous_attempts": ({"attempt": 0},)},
        {"phase": Phase.FETCH, "ready_at": 1.0},
    ],
)
def test_one_that_cannot_be_reached_may_have_some(changes: dict[str, Any]) -> None:
    keeping, lines = _checkpoint_loss.look(replace(RENTED, **changes), None)
    assert keeping is not None
    assert "they cannot be listed" in lines[0]
    assert _checkpoint_loss.look(replace(OWN, **changes), None) == (OWN.retention, [])


def test_a_long_list_shows_the_latest(capsys: pytest.CaptureFixture[str]) -> None:
    _checkpoint_loss.listed([f"step {step}" for step in range(30)])
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "  (10 more)"
    assert said[-1] == "  step 29"
    assert len(said) == 21
