"""Checkpoints on disks that are about to be destroyed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake_local import KEY, FakeLocal

from cloudrl.cli import _checkpoint_loss
from cloudrl.node.tokens import derive
from cloudrl.providers.dstack.left import Left
from cloudrl.providers.model import Keeping, Status
from cloudrl.transport import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.io

READY = Status("lab", "dstack", "ready")


class Home:
    """A provider that says what becomes of checkpoints."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping

    def keeping(self, _name: str) -> Keeping:
        return self._keeping


RENTED: Any = Home(Keeping(lost=True, where="on the machines' own disks", fleet="gpu-fleet"))
OWN: Any = Home(Keeping(lost=False, where="in /checkpoints of your hosts 10.0.0.1"))
VOLUME: Any = Home(Keeping(lost=False, where="on network volume ckpt", volumes=("ckpt",)))


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
    keeping, [line, *_] = _checkpoint_loss.look(RENTED, READY, connection)
    assert keeping is not None
    assert keeping.lost
    assert line.startswith("grpo, step 10, actor, 2.0 kB, ranks 0 on node 0; 1 on node 1")


def test_nothing_saved_is_nothing_to_lose(lab: FakeLocal, connection: Connection, tmp_path: Path) -> None:
    lab.cluster.disks = {0: tmp_path, 1: tmp_path}
    assert _checkpoint_loss.look(RENTED, READY, connection) == (None, [])


def test_a_node_that_says_nothing_may_have_some(
    lab: FakeLocal, connection: Connection, tmp_path: Path
) -> None:
    lab.cluster.disks = {0: tmp_path}
    keeping, lines = _checkpoint_loss.look(RENTED, READY, connection)
    assert keeping is not None
    assert "node 1" in lines[0]


def test_a_cluster_that_does_not_answer_may_have_some(lab: FakeLocal, connection: Connection) -> None:
    lab.cluster.down()
    keeping, lines = _checkpoint_loss.look(RENTED, READY, connection)
    assert keeping is not None
    assert "they cannot be listed" in lines[0]


def test_ones_own_hosts_are_not_asked(lab: FakeLocal, connection: Connection) -> None:
    assert _checkpoint_loss.look(OWN, READY, connection) == (OWN.keeping(""), [])
    assert not [path for _, path in lab.cluster.requests if "inventory" in path]


def test_those_of_a_volume_are_noted(lab: FakeLocal, connection: Connection, tmp_path: Path) -> None:
    save(lab, tmp_path)
    keeping, lines = _checkpoint_loss.look(VOLUME, READY, connection)
    assert keeping is not None
    assert not keeping.lost
    assert len(lines) >= 1


@pytest.mark.parametrize("phase", ["provisioning", "fetch", "down", "failed", "ended"])
def test_a_cluster_that_is_not_up_has_none(phase: str) -> None:
    assert _checkpoint_loss.look(RENTED, Status("lab", "dstack", phase), None) == (None, [])


@pytest.mark.parametrize(
    "status",
    [
        READY,
        Status("lab", "dstack", "running"),
        Status("lab", "dstack", "provisioning", earlier=({"attempt": 0},)),
        Status("lab", "dstack", "fetch", ready_at=1.0),
    ],
)
def test_one_that_cannot_be_reached_may_have_some(status: Status) -> None:
    for home in (RENTED, VOLUME):
        keeping, lines = _checkpoint_loss.look(home, status, None)
        assert keeping is not None
        assert "they cannot be listed" in lines[0]
    assert _checkpoint_loss.look(OWN, status, None) == (OWN.keeping(""), [])


def test_a_long_list_shows_the_latest(capsys: pytest.CaptureFixture[str]) -> None:
    _checkpoint_loss.listed([f"step {step}" for step in range(30)])
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "  (10 more)"
    assert said[-1] == "  step 29"
    assert len(said) == 21


def test_what_was_left_by_clusters_that_are_over(capsys: pytest.CaptureFixture[str]) -> None:
    _checkpoint_loss.listed_left([], "on their disks")
    assert capsys.readouterr().err == ""
    _checkpoint_loss.listed_left(
        [Left("lab", "gpu-fleet", ["10.0.0.1"], [], ["grpo, step 10"])], "on their disks"
    )
    said = capsys.readouterr().err
    assert "What is known to lie on their disks and nowhere else:" in said
    assert "lab: grpo, step 10" in said
