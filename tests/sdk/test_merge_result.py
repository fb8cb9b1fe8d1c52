"""What a job has trained is brought home whole, or the user is told which step is not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_local import FakeLocal
from small_step import write_step

import cloudrl
from cloudrl.errors import CheckpointError, ConnectionFailed
from cloudrl.jobs import JobHandle
from cloudrl.sdk.callbacks import Notice, Transfer
from cloudrl.sdk.checkpoints import merge_result

pytestmark = pytest.mark.io


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    for number in (1, 2):
        write_step(tmp_path / "disk" / "mine", number)
    return tmp_path / "disk"


@pytest.fixture
def lab(home: Path, disk: Path) -> Iterator[FakeLocal]:
    with FakeLocal("lab") as fake:
        fake.cluster.disks = {0: disk, 1: disk}
        yield fake


@pytest.fixture
def job(lab: FakeLocal, disk: Path) -> JobHandle:
    return JobHandle(cloudrl.attach("lab").connection, "mine-1", "mine", str(disk / "mine"))


def test_the_last_step(job: JobHandle, tmp_path: Path) -> None:
    told: list[object] = []
    checkpoint, merged = merge_result(job, tmp_path / "model", on_progress=told.append)
    assert (checkpoint.run, checkpoint.step, merged.path) == ("mine", 2, tmp_path / "model")
    last = [each for each in told if isinstance(each, Transfer)][-1]
    assert (last.what, last.done_bytes) == ("merging step 2", last.total_bytes)


def test_a_node_that_is_silent(job: JobHandle, lab: FakeLocal, tmp_path: Path) -> None:
    del lab.cluster.disks[1]
    with pytest.raises(ConnectionFailed, match=r"node 1 .* says nothing of its checkpoints.*the last step") as raised:
        merge_result(job, tmp_path / "model")
    assert raised.value.hint == f"When it answers: cloudrl checkpoints merge --cluster lab --to {tmp_path / 'model'}"
    assert not (tmp_path / "model").exists()


def test_a_last_step_that_is_incomplete(job: JobHandle, disk: Path, tmp_path: Path) -> None:
    three = write_step(disk / "mine", 3)
    (three / "actor" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(
        CheckpointError, match=r"step 3, is incomplete: it lacks rank 1; the one before is step 2"
    ) as raised:
        merge_result(job, tmp_path / "my model")
    to = f"--to '{tmp_path}/my model'"
    assert raised.value.hint == f"To take that one: cloudrl checkpoints merge 2 --cluster lab --name mine {to}"
    assert not (tmp_path / "my model").exists()


def test_a_run_whose_name_has_a_space(job: JobHandle, disk: Path, tmp_path: Path) -> None:
    mine = disk / "my run"
    (disk / "mine").rename(mine)
    (write_step(mine, 3) / "actor" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(CheckpointError) as raised:
        merge_result(replace(job, name="my run", checkpoint_dir=str(mine)), tmp_path / "model")
    assert f"merge 2 --cluster lab --name 'my run' --to {tmp_path}/model" in str(raised.value.hint)


def test_a_job_that_has_left_nothing(lab: FakeLocal, job: JobHandle, disk: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="left no checkpoint") as raised:
        merge_result(replace(job, checkpoint_dir=str(disk / "other")), tmp_path / "model")
    assert raised.value.hint == "See all: cloudrl checkpoints list --cluster lab"


def test_notes_are_told(job: JobHandle, disk: Path, tmp_path: Path) -> None:
    (disk / "mine" / "latest_checkpointed_iteration.txt").unlink()
    told: list[object] = []
    merge_result(job, tmp_path / "model", on_progress=told.append)
    note = next(each.text for each in told if isinstance(each, Notice))
    assert note.startswith("note: mine: there is no latest_checkpointed_iteration.txt")
