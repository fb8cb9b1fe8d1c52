"""The archive of a cluster that is up, on the volumes of its nodes."""

from pathlib import Path

import pytest
from fake_cluster import FakeCluster
from kept_logs import SESSION, keep

from cloudrl.errors import InputError, Unauthorized
from cloudrl.logs.archive import Archive
from cloudrl.logs.cluster_archive import ClusterArchive, ask_cluster
from cloudrl.protocol.client import AgentClient
from cloudrl.saves.archive import FOLDER

pytestmark = pytest.mark.io

RAYLET = "logs/raylet.out"


def ask(cluster: FakeCluster, *volumes: Path, run: str | None = None, token: str | None = None) -> ClusterArchive:
    """The archive of nodes that have these volumes; `run-1` is what runs."""
    cluster.status["facts"]["id"] = "run-1"
    cluster.disks = dict(enumerate(volumes))
    return ask_cluster("lab", AgentClient(cluster.agent_url, token or str(cluster.token)), (0, 1), run)


def texts(source: ClusterArchive) -> dict[tuple[int, str], list[str]]:
    archive = Archive(source)
    return {(each.rank, each.path): list(archive.lines(each)) for each in archive.of(source.run)}


def test_each_node_has_its_own_volume(cluster: FakeCluster, tmp_path: Path) -> None:
    for rank in (0, 1):
        keep(tmp_path / str(rank), RAYLET, f"rank {rank}\n".encode(), rank=rank)
    found = ask(cluster, tmp_path / "0", tmp_path / "1")
    assert texts(found) == {(0, RAYLET): ["rank 0"], (1, RAYLET): ["rank 1"]}
    assert (found.run, found.notes) == ("run-1", ())


def test_nodes_share_a_volume_and_each_knows_its_own_best(cluster: FakeCluster, tmp_path: Path) -> None:
    """A network file system may show another node's file as it was."""
    old, new = tmp_path / "old", tmp_path / "new"
    for rank in (0, 1):
        keep(old, RAYLET, b"one\n", rank=rank)
        keep(new, RAYLET, b"one\n", b"two\n", rank=rank)
    assert texts(ask(cluster, old, new)) == {(0, RAYLET): ["one"], (1, RAYLET): ["one", "two"]}


def test_who_shares_the_volume_of_rank_0_lists_only_its_own(cluster: FakeCluster, tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        keep(tmp_path / "shared", RAYLET, b"x\n", rank=rank)
    keep(tmp_path / "own", RAYLET, b"own\n", rank=1)
    keep(tmp_path / "own", "logs/earlier.out", b"as rank 0\n", rank=0)
    found = ask(cluster, tmp_path / "shared", tmp_path / "shared")
    assert cluster.archives_asked == [(0, False), (1, True)]
    assert sorted(texts(found)) == [(0, RAYLET), (1, RAYLET), (2, RAYLET)]

    cluster.archives_asked.clear()
    (tmp_path / "first").mkdir()
    keep(tmp_path / "first", RAYLET, b"x\n", rank=0)
    found = ask(cluster, tmp_path / "first", tmp_path / "own")
    assert cluster.archives_asked == [(0, False), (1, False)]
    assert sorted(texts(found)) == [(0, "logs/earlier.out"), (0, RAYLET), (1, RAYLET)]


def test_another_run_of_the_volume(cluster: FakeCluster, tmp_path: Path) -> None:
    keep(tmp_path, RAYLET, b"earlier\n", run="run-0")
    assert texts(ask(cluster, tmp_path, tmp_path, run="run-0")) == {(0, RAYLET): ["earlier"]}


@pytest.mark.parametrize("shared", [True, False])
def test_another_run_of_a_shared_volume_is_listed_once(cluster: FakeCluster, tmp_path: Path, shared: bool) -> None:
    volumes = [tmp_path / str(rank) for rank in ((0, 0) if shared else (0, 1))]
    for rank, volume in enumerate(volumes):
        keep(volume, RAYLET, b"present\n", rank=rank)
        keep(volume, RAYLET, b"earlier\n", rank=rank, run="run-0")
    found = ask(cluster, *volumes, run="run-0")
    assert texts(found) == {(0, RAYLET): ["earlier"], (1, RAYLET): ["earlier"]}
    assert cluster.archives_asked == [(0, False), (0, False), *([] if shared else [(1, False)])]


def test_the_present_run_by_its_name(cluster: FakeCluster, tmp_path: Path) -> None:
    for rank in (0, 1):
        keep(tmp_path, RAYLET, b"x\n", rank=rank)
    assert sorted(texts(ask(cluster, tmp_path, tmp_path, run="run-1"))) == [(0, RAYLET), (1, RAYLET)]
    assert cluster.archives_asked == [(0, False), (0, False), (1, True)]


def test_what_is_missing_is_told(cluster: FakeCluster, tmp_path: Path) -> None:
    keep(tmp_path, RAYLET, b"one\n")
    cluster.archive_problems[0] = "No space left on device"
    full, away = ask(cluster, tmp_path).notes
    assert full == "rank 0 cannot keep its logs now: No space left on device"
    assert away.startswith("rank 1 does not say what it has: ")


def test_a_piece_that_was_given_up_meanwhile_is_empty(cluster: FakeCluster, tmp_path: Path) -> None:
    file = keep(tmp_path, RAYLET, b"one\n")
    found = ask(cluster, tmp_path, tmp_path)
    file.unlink()
    assert texts(found) == {(0, RAYLET): []}


def test_a_name_that_is_no_piece_is_dropped(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"path": f"run-1/rank-0/{SESSION}/logs/../../x.out.0.gz", "size_bytes": 1, "modified_at": 1.0}
    monkeypatch.setattr("fake_cluster.scan_archive", lambda *_: [wrong])
    assert list(ask(cluster, FOLDER, FOLDER).pieces()) == []


@pytest.mark.parametrize("wrong", [{}, {"path": "x", "size_bytes": "many", "modified_at": 1.0}, 7])
def test_an_answer_of_nobody_of_ours(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, wrong: object) -> None:
    monkeypatch.setattr("fake_cluster.scan_archive", lambda *_: [wrong])
    full, away = ask(cluster, FOLDER, FOLDER).notes
    assert "is not a cloudrl agent" in full
    assert "is not a cloudrl agent" in away


def test_agents_that_refuse_or_are_older(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unauthorized):
        ask(cluster, tmp_path, token="another")
    monkeypatch.delattr(FakeCluster, "agent_archive")
    with pytest.raises(InputError, match="no such thing here"):
        ask(cluster, tmp_path)
