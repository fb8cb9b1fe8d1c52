"""Clusters of many nodes are asked for their checkpoints: how often, how much is said, and what comes of silence."""

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from node_inventories import run, step

from cloudrl.errors import CheckpointError, ConnectionFailed, Unauthorized
from cloudrl.node import checkpoint_store
from cloudrl.node.checkpoint_store import CheckpointStore
from cloudrl.node.files import marker_path, write_marker
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import AT_ONCE
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.survey import cluster_inventory

pytestmark = pytest.mark.io
NODES = 256


class Cluster:
    """Nodes with real stores, each on a machine of its own; counts what is asked and said.

    Args:
        folders: Of each rank; nodes with the same one share it.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.stores = [
            CheckpointStore(folder, folder / "no-ray", run_id="run", rank=rank, child=None)  # type: ignore[arg-type]
            for rank, folder in enumerate(folders)
        ]
        for store in self.stores:
            store.mark()
        self.off: set[int] = set()
        self.asked: list[int] = []
        self.listed: list[int] = []
        self.bytes = self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def ask(self, rank: int, *, without: Collection[int] | None = None) -> Mapping[str, Any]:
        with self._lock:
            self.asked.append(rank)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if rank in self.off:
                raise ConnectionFailed(f"rank {rank} does not answer")
            answer = self.stores[rank].inventory(without=without)
        finally:
            with self._lock:
                self.at_once -= 1
        for place in answer["locations"]:
            place["identity"] = place["identity"] and f"boot-{rank}:1:2"
        with self._lock:
            self.bytes += len(json.dumps(answer))
            self.listed += [rank] if "runs" in answer["locations"][0] else []
        return answer

    def inventory(self) -> Inventory:
        return cluster_inventory([NodeReport(rank, f"10.0.0.{rank}") for rank in range(len(self.stores))], self.ask)


def save(folder: Path, number: int = 1, ranks: Iterable[int] = (0, 1), world_size: int = 2) -> None:
    role = folder / f"r/global_step_{number}/actor"
    (role / "huggingface").mkdir(parents=True)
    for rank in ranks:
        (role / f"model_world_size_{world_size}_rank_{rank}.pt").write_bytes(b"weights")
    (role / "huggingface/config.json").write_text("{}")
    (role.parent / "data.pt").write_bytes(b"data")


@pytest.fixture
def markers_read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    read: list[Path] = []
    text = checkpoint_store._text

    def counted(path: Path) -> str:
        read.append(path)
        return text(path)

    monkeypatch.setattr(checkpoint_store, "_text", counted)
    return read


def test_a_shared_folder_is_listed_once(tmp_path: Path, markers_read: list[Path]) -> None:
    save(tmp_path)
    one = len(json.dumps(Cluster([tmp_path]).ask(0)))
    markers_read.clear()
    cluster = Cluster([tmp_path] * NODES)
    (checkpoint,) = cluster.inventory().checkpoints
    (place,) = checkpoint.locations
    assert place.ranks == tuple(range(NODES))
    assert cluster.listed == [0]
    assert sorted(cluster.asked) == list(range(NODES))
    assert cluster.bytes < one + 1000 * NODES, "the others say no more than whose folder it is"
    assert len(markers_read) < 2 * NODES, "the one that lists it reads all, the others one"
    assert 1 < cluster.most_at_once <= AT_ONCE


def test_own_folders_are_listed_once_each(tmp_path: Path, markers_read: list[Path]) -> None:
    folders = [tmp_path / str(rank) for rank in range(NODES)]
    for rank, folder in enumerate(folders):
        save(folder, ranks=[rank], world_size=NODES)
    cluster = Cluster(folders)
    (checkpoint,) = cluster.inventory().checkpoints
    assert checkpoint.ranks == tuple(range(NODES))
    assert len(checkpoint.locations) == NODES
    assert sorted(cluster.listed) == sorted(cluster.asked) == list(range(NODES))
    assert len(markers_read) == NODES


def test_some_share_and_others_do_not(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ababbcbc"]
    for folder in set(folders):
        save(folder)
    cluster = Cluster(folders)
    found = cluster.inventory()
    (checkpoint,) = found.checkpoints
    places = {copy.location.ranks for copies in checkpoint.files.values() for copy in copies}
    assert places == {(0, 2), (1, 3, 4, 6), (5, 7)}
    assert sorted(cluster.listed) == [0, 1, 5]
    assert len(cluster.asked) == len(folders)


def test_another_node_lists_the_folder_of_one_that_is_silent(tmp_path: Path) -> None:
    save(tmp_path)
    cluster = Cluster([tmp_path] * NODES)
    cluster.off = {0}
    found = cluster.inventory()
    (place,) = found.checkpoints[0].locations
    assert place.ranks == tuple(range(1, NODES))
    assert cluster.listed == [1]
    assert found.silent == ("node 0 (10.0.0.0) says nothing of its checkpoints: rank 0 does not answer",)


def test_nodes_whose_folder_nobody_can_list_are_told_in_one_note(tmp_path: Path) -> None:
    """The volume is so slow that each listing takes too long."""
    save(tmp_path)
    cluster = Cluster([tmp_path] * NODES)

    def ask(rank: int, *, without: Collection[int] | None = None) -> Mapping[str, Any]:
        answer = cluster.ask(rank, without=without)
        if rank in cluster.listed:
            raise ConnectionFailed("timed out")
        return answer

    found = cluster_inventory([NodeReport(rank, "10.0.0.1") for rank in range(NODES)], ask)
    assert found.checkpoints == ()
    assert len(cluster.listed) <= 4, "not one after the other"
    assert found.silent[-1].startswith("the checkpoints of nodes 4-255 are not known: the folder is that of node ")
    assert len(found.silent) <= 5
    assert sum(map(len, found.silent)) < 1000
    with pytest.raises(ConnectionFailed, match="timed out"):
        found.select()


def test_many_that_are_silent_are_one_note(tmp_path: Path) -> None:
    cluster = Cluster([tmp_path / str(rank) for rank in range(NODES)])
    cluster.off = set(range(40, 200))
    notes = cluster.inventory().silent
    assert len(notes) == 4
    assert notes[-1] == "nodes 43-199 say nothing of their checkpoints either"


def test_a_marker_that_was_left_behind_hides_nothing(tmp_path: Path) -> None:
    """The volume of rank 1 was that of rank 0 before the nodes were started again."""
    folders = [tmp_path / str(rank) for rank in range(4)]
    cluster = Cluster(folders)
    for folder in folders[1:]:
        write_marker(folder, "run-0")
        save(folder)
    (checkpoint,) = cluster.inventory().checkpoints
    assert {copy.location.ranks for copies in checkpoint.files.values() for copy in copies} == {(1,), (2,), (3,)}


def test_a_copy_of_a_folder_is_another_folder(tmp_path: Path) -> None:
    """Mirrored with all that is in it, the other node's marker too."""
    folders = [tmp_path / "a", tmp_path / "b"]
    cluster = Cluster(folders)
    for folder in folders:
        save(folder)
    copied = marker_path(folders[0], "run-0")
    (folders[1] / copied.name).write_text(copied.read_text())
    (checkpoint,) = cluster.inventory().checkpoints
    assert {copy.location.ranks for copies in checkpoint.files.values() for copy in copies} == {(0,), (1,)}


def test_a_node_without_a_marker_lists_its_folder(tmp_path: Path) -> None:
    """Somebody has removed it, or the folder cannot be written."""
    save(tmp_path)
    cluster = Cluster([tmp_path] * 3)
    marker_path(tmp_path, "run-2").unlink()
    (checkpoint,) = cluster.inventory().checkpoints
    assert sorted(cluster.listed) == [0, 2]
    assert {copy.location.ranks for copies in checkpoint.files.values() for copy in copies} == {(0, 1), (2,)}


def test_another_clusters_marker_is_none_of_this_run(tmp_path: Path) -> None:
    cluster = Cluster([tmp_path])
    write_marker(tmp_path, "run-7-0")
    write_marker(tmp_path, "run-x")
    assert len(cluster.ask(0)["locations"][0]["markers"]) == 1


def test_a_refused_token_ends_it(tmp_path: Path) -> None:
    asked: list[int] = []

    def ask(rank: int, **_: object) -> Mapping[str, Any]:
        asked.append(rank)
        raise Unauthorized("wrong token")

    with pytest.raises(Unauthorized):
        cluster_inventory([NodeReport(rank, "10.0.0.1") for rank in range(NODES)], ask)
    assert len(asked) <= NODES


def test_nobody_is_asked_after_the_time_is_up() -> None:
    now = [0.0]

    def ask(rank: int, **_: object) -> Mapping[str, Any]:
        now[0] += 60.0
        raise ConnectionFailed(f"rank {rank} hangs")

    asked = cluster_inventory([NodeReport(rank, "10.0.0.1") for rank in range(NODES)], ask, clock=lambda: now[0])
    assert now[0] < (AT_ONCE + 5) * 60.0
    assert asked.silent[-1].endswith("-255 say nothing of their checkpoints either")


def test_an_inventory_names_no_path_outside() -> None:
    place = {"root": "checkpoints", "folder": "/c", "identity": "", "marker": "", "markers": []}

    def ask(rank: int, **_: object) -> Mapping[str, Any]:
        return {"rank": rank, "locations": [{**place, "runs": [run("../x", step(1))]}]}

    with pytest.raises(CheckpointError, match="not a path below"):
        cluster_inventory([NodeReport(0, "10.0.0.1")], ask)
