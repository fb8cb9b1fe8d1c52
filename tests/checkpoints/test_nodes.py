"""Two real agents with disks of their own: list, verify, merge, pull and prune, also over a link that is cut."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_lab import Lab
from node.conftest import image, nodes, nothing_left  # noqa: F401 - fixtures
from node.node_harness import Image, Nodes, until
from node_image import link_numpy
from small_step import tree

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.saves.prune import plan_prune
from cloudrl.saves.resume import Ranks, plan_resume
from cloudrl.saves.zip_directory import directory_digest

pytestmark = pytest.mark.agents

WORLD_SIZE = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 5 and 6 of a run of four ranks, all in one folder."""
    run = tmp_path_factory.mktemp("whole") / "my run"
    program = Path(__file__).parents[1] / "make_sharded.py"
    subprocess.run([sys.executable, program, run, str(WORLD_SIZE), "5", "6"], check=True, timeout=120)
    return run


@pytest.fixture(scope="module")
def expected(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a merge of the folder gives."""
    target = tmp_path_factory.mktemp("expected") / "model"
    Checkpoints(LocalSource(whole)).latest().merge(target)
    return tree(target)


@pytest.fixture
def lab(nodes: Callable[[int], Nodes], image: Image, whole: Path) -> Iterator[Lab]:  # noqa: F811
    link_numpy(image.packages)
    lab = Lab(nodes(2), whole)
    yield lab
    lab.link.down()


def test_a_step_on_two_nodes_is_cut_anew_like_one_folder(lab: Lab, whole: Path, tmp_path: Path) -> None:
    for name, found in (("nodes", lab.checkpoints()), ("folder", Checkpoints(LocalSource(whole)))):
        found.latest().reshard(tmp_path / name, 3)
    assert tree(tmp_path / "nodes") == tree(tmp_path / "folder")
    assert Checkpoints(LocalSource(tmp_path / "nodes")).latest().verify().ok


def test_two_nodes_are_as_good_as_one_folder(lab: Lab, expected: dict[str, bytes], tmp_path: Path) -> None:
    found = lab.checkpoints()
    five, six = found
    assert (five.step, six.step) == (5, 6)
    assert six.complete
    assert six.info.resumes
    assert {place.ranks: ranks for place, ranks in six.info.locations.items()} == {(0,): (0, 1), (1,): (2, 3)}
    assert found.notes == ()

    report = six.verify()
    assert report.ok, report.findings
    assert (report.step, report.world_size) == (6, WORLD_SIZE)

    before = lab.link.passed
    six.merge(tmp_path / "model")
    assert tree(tmp_path / "model") == expected
    travelled = lab.link.passed - before
    assert travelled < 0.6 * sum(file.size_bytes for file in six.info.shards("model").values()), (
        "values were cast where they are"
    )
    assert lab.said == []


def test_an_image_without_numpy_sends_what_it_has(
    nodes: Callable[[int], Nodes],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    whole: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
) -> None:
    from node.node_harness import make_image

    cluster = replace(nodes(2), image=make_image(tmp_path_factory.mktemp("plain")))
    lab = Lab(cluster, whole)
    try:
        lab.checkpoints().latest().merge(tmp_path / "model")
        assert tree(tmp_path / "model") == expected
    finally:
        lab.link.down()
        cluster.end()


def test_a_node_that_is_cut_off_in_the_middle(lab: Lab, expected: dict[str, bytes], tmp_path: Path) -> None:
    latest = lab.checkpoints().latest()
    lab.link.cut_at = [lab.link.passed + count for count in (1_000_000, 1_500_000, 2_500_000)]
    waited = threading.Event()

    def cut(done_bytes: int, total_bytes: int) -> None:
        if done_bytes > total_bytes // 2 and not waited.is_set():
            waited.set()
            lab.link.down()
            threading.Timer(1.5, lab.link.up).start()

    latest.merge(tmp_path / "model", on_progress=cut)

    assert tree(tmp_path / "model") == expected
    assert waited.is_set()
    assert lab.link.cut_at == []
    assert any("trying again" in sentence for sentence in lab.said)


def test_a_worker_that_stops_for_a_while(lab: Lab, expected: dict[str, bytes], tmp_path: Path) -> None:
    """Its agent hangs: the head gets no answer from it, and says so to whoever asks."""
    import signal

    latest = lab.checkpoints().latest()
    stopped = threading.Event()
    pid = lab.cluster[1].pid

    def stop(done_bytes: int, total_bytes: int) -> None:
        if done_bytes > total_bytes // 3 and not stopped.is_set():
            stopped.set()
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()

    latest.merge(tmp_path / "model", on_progress=stop)
    assert tree(tmp_path / "model") == expected
    assert stopped.is_set()


def test_a_shared_folder_counts_once(nodes: Callable[[int], Nodes], whole: Path, tmp_path: Path) -> None:  # noqa: F811
    lab = Lab(nodes(2), whole, shared=True)
    try:
        latest = lab.checkpoints().latest()
        assert [place.ranks for place in latest.info.locations] == [(0, 1)]
        assert latest.info.size_bytes == sum(
            path.stat().st_size for path in (whole / "global_step_6" / "actor").rglob("*") if path.is_file()
        )
    finally:
        lab.link.down()
    lab.cluster.end()
    assert not list(lab.cluster.folder.rglob("*cloudrl-marker*"))


def test_saves_are_written_down_on_the_node_that_has_them(lab: Lab, whole: Path) -> None:
    records = [lab.folders[1] / "my run/global_step_6/actor" / name(rank) for rank in (2, 3)]
    until(lambda: all(path.exists() for path in records), "records of the save")
    said = json.loads(records[0].read_text())
    shard = whole / "global_step_6" / "actor" / f"model_world_size_{WORLD_SIZE}_rank_2.pt"
    assert said["step"] == 6
    with shard.open("rb") as file:
        directory = directory_digest(file.fileno())
    assert said["files"][shard.name] == {"size_bytes": shard.stat().st_size, "sha256": directory}
    until(lambda: len(lab.checkpoints().latest().info.records) == WORLD_SIZE, "the others' records")
    assert lab.checkpoints().latest().verify().step_source == "record"

    latest = lab.checkpoints().latest()  # with the records: the node forgets one when it sees its file change
    older = lab.folders[1] / "my run/global_step_5/actor" / shard.name
    shutil.copyfile(older, lab.folders[1] / "my run/global_step_6/actor" / shard.name)
    report = latest.verify()
    assert not report.ok
    assert 2 in {finding.rank for finding in report.findings if finding.fatal}
    lost = "the record of rank 2, whose files changed after they were saved"
    until(lambda: lost in lab.checkpoints()[1].info.missing, "the doubt")
    os.truncate(lab.folders[1] / "my run/global_step_6/actor" / shard.name, 1000)  # now it never gets another one
    until(lambda: lab.checkpoints()[1].info.damaged, "the damage")
    assert lab.checkpoints().latest().step == 5


@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_shard_that_is_cut_on_its_node(lab: Lab, keep: float) -> None:
    shard = lab.folders[1] / "my run/global_step_6/actor" / f"model_world_size_{WORLD_SIZE}_rank_3.pt"
    assert lab.checkpoints().latest().step == 6
    before = shard.stat()
    os.truncate(shard, int(before.st_size * keep))
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = lab.checkpoints()
    assert found.latest().step == 5
    assert list(found[1].info.damaged) == [shard.name]
    assert plan_prune(found.inventory, 1).removals == ()
    plan = plan_resume(
        found.inventory, "my run", ranks=Ranks(WORLD_SIZE, 2, {0: "10.0.0.1", 1: "10.0.0.2"}),
        checkpoint_dir="/checkpoints", cluster="lab",
    )  # fmt: skip
    assert plan is not None
    assert plan.step == 5


def name(rank: int) -> str:
    return f"cloudrl_save_world_size_{WORLD_SIZE}_rank_{rank}.json"


def test_a_step_is_pulled_and_an_old_one_removed(lab: Lab, whole: Path, tmp_path: Path) -> None:
    found = lab.checkpoints()
    lab.link.cut_at = [lab.link.passed + 2_000_000]
    found.latest().pull(tmp_path / "pulled")
    for path in (whole / "global_step_6").rglob("*.pt"):
        assert (tmp_path / "pulled" / path.relative_to(whole)).read_bytes() == path.read_bytes()
    assert (tmp_path / "pulled" / "latest_checkpointed_iteration.txt").read_text() == "6"
    assert Checkpoints(LocalSource(tmp_path / "pulled")).latest().verify().ok

    for place in found[0].info.locations:
        found.source.remove(place, "my run/global_step_5")
    assert [each.step for each in lab.checkpoints()] == [6]
    until(lambda: not list(lab.cluster.folder.glob("disk-*/my run/.cloudrl-pruned*")), "the removal")
