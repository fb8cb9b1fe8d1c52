"""A step cut for another number of ranks in its own folder, here and by a job on the head."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from running_head import Head
from small_step import tree, write_step

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.remote_reshard import cut_on_head, step_to_cut
from cloudrl.checkpoints.reshard_beside import Beside, reshard_beside
from cloudrl.checkpoints.sources import ClusterSource, LocalSource
from cloudrl.errors import CheckpointError
from cloudrl.saves.aggregate import local_inventory

pytestmark = pytest.mark.io

THREE = [f"model_world_size_3_rank_{rank}.pt" for rank in range(3)]  # the save has no optimizer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of checkpoints with step 7 of two ranks."""
    step = write_step(tmp_path / "root" / "mine", 7)
    (step / "actor" / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 2}')
    return tmp_path / "root"


def cut(root: Path, world_size: int = 3) -> Beside:
    inventory = local_inventory(root)
    roles = [one for one in inventory.checkpoints if one.world_size == 2]
    return reshard_beside(roles, LocalSource(root).open, root, world_size)


def test_the_new_shards_are_those_of_a_reshard_and_the_old_ones_stay(root: Path, tmp_path: Path) -> None:
    before = tree(root)
    Checkpoints(LocalSource(root)).latest().reshard(tmp_path / "apart", 3)

    done = cut(root)

    after, apart = tree(root), tree(tmp_path / "apart")
    assert {path: after[path] for path in before} == before
    new = {path.removeprefix("mine/"): content for path, content in after.items() if path not in before}
    assert sorted(Path(path).name for path in new) == THREE
    assert all(apart[path] == content for path, content in new.items())
    assert (done.was, done.world_size, done.size_bytes) == (2, 3, sum(map(len, new.values())))


def test_it_is_a_whole_step_for_both_numbers_of_ranks(root: Path) -> None:
    saved_at = local_inventory(root).checkpoints[0].modified_at
    cut(root)
    found = local_inventory(root).checkpoints
    assert {(one.world_size, one.complete, one.step) for one in found} == {(2, True, 7), (3, True, 7)}
    assert [one.modified_at for one in found] == pytest.approx([saved_at] * 2, abs=0.01), (
        "it is not newer than its save"
    )
    assert step_to_cut(local_inventory(root), "mine", 3) == step_to_cut(local_inventory(root), "mine", 2) == []
    assert [role.world_size for role in step_to_cut(local_inventory(root), "mine", 1)] == [3]


def test_a_call_that_was_killed_is_repeated(root: Path) -> None:
    cut(root)
    whole = tree(root)
    actor = root / "mine" / "global_step_7" / "actor"
    (actor / "model_world_size_3_rank_2.pt").unlink()
    assert step_to_cut(local_inventory(root), "mine", 3) != []
    cut(root)
    assert tree(root) == whole


def test_another_file_of_that_name_is_never_replaced(root: Path) -> None:
    other = root / "mine" / "global_step_7" / "actor" / "model_world_size_3_rank_1.pt"
    other.write_bytes(b"of somebody")
    with pytest.raises(CheckpointError, match="is there already and differs") as caught:
        cut(root)
    assert other.read_bytes() == b"of somebody"
    assert str(caught.value.hint).startswith("It may be of an earlier attempt")


def test_without_room_nothing_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(root)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match=r"free; .* are to be written"):
        cut(root)
    assert tree(root) == before


@pytest.fixture
def head(root: Path, tmp_path: Path) -> Iterator[Head]:
    with Head(tmp_path) as head:
        head.hold_run(root / "mine", tmp_path)
        yield head


def test_the_head_cuts_what_lies_on_two_nodes(head: Head, root: Path, tmp_path: Path) -> None:
    source, disks = ClusterSource(head.connection()), [tmp_path / f"disk-{rank}" for rank in range(2)]
    before, seen = [tree(disk) for disk in disks], list[tuple[int, int]]()

    def told(*at: int) -> None:
        seen.append((at[0], at[1]))

    done = cut_on_head(source, step_to_cut(source.inventory(), "mine", 1), 1, str(disks[0]), on_progress=told)

    after = [tree(disk) for disk in disks]
    assert after[1] == before[1]
    assert {Path(path).name for path in after[0].keys() - before[0].keys()} == {"model_world_size_1_rank_0.pt"}
    assert (done.was, done.world_size, done.files) == (2, 1, 1)
    assert seen[-1][0] == seen[-1][1] > 0
    cut(root, 1)
    alone = tree(root)
    assert all(alone[path] == content for path, content in after[0].items() if "world_size_1" in path)


def test_what_it_refuses_is_told_here(head: Head, tmp_path: Path) -> None:
    source = ClusterSource(head.connection())
    roles = step_to_cut(source.inventory(), "mine", 1)
    other = tmp_path / "disk-0" / "mine" / "global_step_7" / "actor" / "model_world_size_1_rank_0.pt"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(b"of somebody")
    with pytest.raises(CheckpointError, match=r"on the head: .* is there already"):
        cut_on_head(source, roles, 1, str(tmp_path / "disk-0"))
