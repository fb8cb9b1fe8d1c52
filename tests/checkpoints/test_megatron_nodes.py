"""Megatron's checkpoints on two nodes with disks of their own: each file is where its rank wrote it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_cluster import FakeCluster
from megatron_files import expected, extracted
from shard_files import read_safetensors
from small_step import tree

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.sources import ClusterSource, LocalSource
from cloudrl.errors import CheckpointError

pytestmark = pytest.mark.io


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A step of two ranks; beside it the config of its model."""
    run = tmp_path / "whole" / "mine"
    extracted("qwen2-tied-stages", run)
    (run / "latest_checkpointed_iteration.txt").write_text("1")
    return run


@pytest.fixture
def base(run: Path, tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_bytes((run / "config.json").read_bytes())
    return tmp_path / "base"


@pytest.fixture
def cluster(run: Path, tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        cluster.hold_run(run, tmp_path)
        yield cluster


def latest(cluster: FakeCluster) -> CheckpointHandle:
    return Checkpoints(ClusterSource(cluster.connection())).latest()


def first(cluster: FakeCluster) -> CheckpointHandle:
    return Checkpoints(ClusterSource(cluster.connection())).select(1)


def test_a_merge_gathers_the_files(cluster: FakeCluster, run: Path, base: Path, tmp_path: Path) -> None:
    found = latest(cluster)
    assert {place.ranks: ranks for place, ranks in found.info.locations.items()} == {(0,): (0,), (1,): (1,)}
    found.merge(tmp_path / "model", base=str(base), dtype="keep")
    assert read_safetensors(tmp_path / "model") == expected(run)


def test_few_requests_for_many_items(cluster: FakeCluster, base: Path, tmp_path: Path) -> None:
    found = latest(cluster)
    cluster.requests.clear()
    found.merge(tmp_path / "model", base=str(base))
    of_items = [path for _, path in cluster.requests if path.endswith(".distcp")]
    tensors = len(read_safetensors(tmp_path / "model"))
    assert len(of_items) < 3 * tensors, "ends of all items at once, then a sum and a read for each"


def test_it_is_verified_where_it_lies(cluster: FakeCluster, tmp_path: Path) -> None:
    report = latest(cluster).verify()
    assert (report.findings, report.ranks, report.world_size) == ((), (0, 1), 2)
    (path,) = (tmp_path / "disk-1").rglob("__1_0.distcp")
    path.write_bytes(path.read_bytes()[:-1])
    assert not first(cluster).verify().ok
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp is cut"):
        latest(cluster)


def test_a_node_that_is_gone(cluster: FakeCluster, base: Path, tmp_path: Path) -> None:
    (path,) = (tmp_path / "disk-1").rglob("__1_0.distcp")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"1 files that \.metadata names are not there: __1_0\.distcp"):
        first(cluster).merge(tmp_path / "model", base=str(base))
    with pytest.raises(CheckpointError, match=r"lacks model/dist_ckpt/__1_0\.distcp"):
        latest(cluster)


@pytest.mark.parametrize("case", ["qwen2-tied-stages", "qwen2-default"])
def test_a_pull_brings_all_of_it(case: str, tmp_path: Path) -> None:
    run = tmp_path / "whole" / "mine"
    extracted(case, run)
    with FakeCluster() as cluster:
        cluster.hold_run(run, tmp_path)
        latest(cluster).pull(tmp_path / "pulled")
    assert tree(tmp_path / "pulled" / "global_step_1") == tree(run / "global_step_1")


def test_a_whole_model_comes_from_its_node(tmp_path: Path) -> None:
    run = tmp_path / "whole" / "mine"
    extracted("qwen2-default", run)
    with FakeCluster() as cluster:
        cluster.hold_run(run, tmp_path)
        latest(cluster).merge(tmp_path / "model", dtype="keep")
    assert read_safetensors(tmp_path / "model") == expected(run)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert Checkpoints(LocalSource(run)).latest().complete
