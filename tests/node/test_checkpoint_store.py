"""A node's checkpoint store: its sign of life, and what removals leave."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_harness import until

from cloudrl.child_process import Child
from cloudrl.node.checkpoint_store import CheckpointStore
from cloudrl.node.shard_worker_client import ShardWorkerClient
from cloudrl.saves.removal import _ASIDE, purge, remove_step, tombstone

pytestmark = pytest.mark.io


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def checkpoint_store(tmp_path: Path, said: list[str]) -> Iterator[CheckpointStore]:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    child = ShardWorkerClient(_no_child)
    made = CheckpointStore(
        folder, tmp_path / "ray", run_id="run", rank=1, child=child, say=said.append, renew_every_s=0.02
    )
    yield made
    made.close()


def _no_child(_: int) -> Child:
    raise AssertionError("no sums here")


def step(root: Path, run: str, number: int = 3) -> Path:
    folder = root / run / f"global_step_{number}"
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "model_world_size_2_rank_0.pt").write_bytes(b"weights")
    return folder


def rests(root: Path) -> list[Path]:
    """Not `rglob`: what is looked for goes meanwhile."""
    found = ((Path(text), name) for text, folders, _ in os.walk(root) for name in folders)
    return [folder / name for folder, name in found if name.startswith(_ASIDE)]


def test_it_lives_without_any_look_for_saves(checkpoint_store: CheckpointStore) -> None:
    """A look sums for minutes, and an older word than 60 s lets another rank take over the folder."""
    checkpoint_store.start()
    [word] = checkpoint_store.folder.glob(".cloudrl-marker-*")
    os.utime(word, (1.0, 1.0))
    until(lambda: word.stat().st_mtime > 1.0, "the marker is renewed")
    word.unlink()
    until(word.exists, "the marker is back")
    checkpoint_store.close()
    time.sleep(0.1)
    assert not word.exists()


def test_it_leaves_no_thread(checkpoint_store: CheckpointStore) -> None:
    before = set(threading.enumerate())
    checkpoint_store.start()
    assert set(threading.enumerate()) > before
    checkpoint_store.close()
    until(lambda: set(threading.enumerate()) <= before, "its threads have ended")


@pytest.mark.parametrize("run", ["run", "team/run", "."])
def test_what_a_removal_has_left_goes_with_the_next_start(checkpoint_store: CheckpointStore, run: str) -> None:
    """Its cluster ended before the bytes had gone; the step was the last of its run."""
    step(checkpoint_store.folder, run)
    kept = step(checkpoint_store.folder, "other")
    tombstone(checkpoint_store.folder, f"{run}/global_step_3".replace("./", ""))
    assert len(rests(checkpoint_store.folder)) == 1
    checkpoint_store.start()
    until(lambda: not rests(checkpoint_store.folder), "the rest has gone")
    assert len(list(kept.rglob("*.pt"))) == 1


def test_what_cannot_be_removed_is_said(checkpoint_store: CheckpointStore, said: list[str]) -> None:
    """A link stands for what the volume does not let go."""
    bad = stubborn(checkpoint_store.folder)
    step(checkpoint_store.folder, "run", 9)
    tombstone(checkpoint_store.folder, "run/global_step_9")
    checkpoint_store.start()
    until(lambda: said, "a warning")
    assert rests(checkpoint_store.folder) == [bad], "the rest has gone"
    assert said[0].startswith(f"warning: what was pruned of {bad.parent} still takes space: ")
    assert str(bad) in said[0]


def stubborn(root: Path) -> Path:
    bad = root / "run" / f"{_ASIDE}global_step_1-00"
    bad.parent.mkdir(parents=True, exist_ok=True)
    (root / "elsewhere").mkdir()
    bad.symlink_to(root / "elsewhere")
    return bad


def test_a_removal_by_hand_says_so_too(tmp_path: Path) -> None:
    bad = stubborn(tmp_path)
    gone = step(tmp_path, "run")
    with pytest.raises(OSError, match="symbolic link") as caught:
        remove_step(tmp_path, "run/global_step_3")
    assert caught.value.filename == str(bad)
    assert not gone.exists()


def test_two_that_purge_at_once(tmp_path: Path) -> None:
    step(tmp_path, "run")
    tombstone(tmp_path, "run/global_step_3")
    purge(tmp_path, "run")
    purge(tmp_path, "run")
    assert rests(tmp_path) == []


def test_whether_all_nodes_save_into_one_folder(checkpoint_store: CheckpointStore, tmp_path: Path) -> None:
    def other(folder: Path) -> CheckpointStore:
        return CheckpointStore(folder, tmp_path / "ray", run_id="run", rank=0, child=ShardWorkerClient(_no_child))

    checkpoint_store.mark()
    elsewhere = other(tmp_path / "elsewhere")
    elsewhere.mark()
    assert not checkpoint_store.is_on_all(2)
    beside = other(checkpoint_store.folder)
    beside.mark()
    assert checkpoint_store.is_on_all(2)
    assert not checkpoint_store.is_on_all(3)
    marker = next(checkpoint_store.folder.glob(".cloudrl-marker-run-0"))
    os.utime(marker, (0, 0))
    assert not checkpoint_store.is_on_all(2), "it was killed, and its rank is on another machine now"
    for store in (elsewhere, beside):
        store.close()
