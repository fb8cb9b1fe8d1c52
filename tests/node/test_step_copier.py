"""Copies of a step from one node to another, over a real server."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from server_harness import TOKEN, Served

from cloudrl.errors import InputError
from cloudrl.node import step_copier
from cloudrl.node.step_copier import StepCopier
from cloudrl.protocol import job_calls
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.failures import ApiError
from cloudrl.protocol.step_copies import ClearOrder, CopyOrder, WantedFile
from cloudrl.saves.below import Refused

pytestmark = pytest.mark.io

STEP = "run/global_step_3"
SHARD, RECORD = f"{STEP}/actor/model_world_size_2_rank_1.pt", f"{STEP}/actor/cloudrl_save_world_size_2_rank_1.json"
NOTED = ".cloudrl_copies.json"
SHARD_BYTES, DATE = os.urandom(100_000), 1.5e9


@pytest.fixture
def order(worker: Served) -> CopyOrder:
    """For files of rank 1."""
    files = []
    for path, content in ((SHARD, SHARD_BYTES), (RECORD, b"{}")):
        target = worker.checkpoints / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        os.utime(target, (DATE, DATE))
        files.append(WantedFile(path, len(content), DATE))
    return CopyOrder(0, 1, STEP, tuple(files), f"127.0.0.1:{worker.port}", is_urgent=True)


def _copier(root: Path, free_bytes: int = 10**12) -> StepCopier:
    root.mkdir(exist_ok=True)
    return StepCopier(
        root, lambda at: AgentClient(f"http://{at}", TOKEN), free_bytes=lambda _: free_bytes, sleep=lambda _: None
    )


def _all(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != NOTED]


def test_a_copy_has_the_bytes_and_the_date_of_its_original(tmp_path: Path, order: CopyOrder) -> None:
    root = tmp_path / "copies"

    _copier(root).copy(order)

    assert (root / SHARD).read_bytes() == SHARD_BYTES
    assert (root / SHARD).stat().st_mtime == DATE
    assert sorted(_all(root)) == [RECORD, SHARD]


def test_copies_that_are_not_needed_any_more_are_cleared_and_what_was_saved_here_stays(
    tmp_path: Path, head: Served, worker: Served, order: CopyOrder
) -> None:
    _copier(head.checkpoints).copy(order)
    own = head.checkpoints / STEP / "data.pt"
    own.write_bytes(b"abc")
    files = (*order.files, WantedFile(f"{STEP}/data.pt", 3, own.stat().st_mtime))
    agent = AgentClient(f"http://127.0.0.1:{head.port}", TOKEN)

    freed = job_calls.clear_copies(agent, ClearOrder(0, STEP, files))

    assert freed == len(SHARD_BYTES) + 2
    assert _all(head.checkpoints / STEP) == ["data.pt"]
    with pytest.raises(InputError, match="is not a step"):
        job_calls.clear_copies(agent, ClearOrder(0, "run", ()))


def test_a_file_that_changes_or_breaks_off_is_not_copied_and_neither_are_the_others(
    tmp_path: Path, worker: Served, order: CopyOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "copies"
    copier = _copier(root)
    with pytest.raises(OSError, match="broke off after 100 kB of 110 kB"):
        copier.copy(replace(order, files=(order.files[1], replace(order.files[0], size_bytes=110_000))))
    with pytest.raises(OSError, match="has grown"):
        copier.copy(replace(order, files=(order.files[1], replace(order.files[0], size_bytes=90_000))))
    monkeypatch.setattr(step_copier.zlib, "crc32", lambda *_: 1)  # as if a bit had been flipped on the way
    with pytest.raises(OSError, match="was damaged on its way"):
        copier.copy(order)

    assert _all(root) == []


def test_a_full_disk_and_a_link_in_the_way_are_refused(tmp_path: Path, order: CopyOrder) -> None:
    with pytest.raises(OSError, match=r"100 kB are to be copied here, .*; 1\.1 GB are free"):
        _copier(tmp_path / "full", free_bytes=(1 << 30) + 150_000).copy(order)
    root = tmp_path / "copies"
    copier = _copier(root)
    (tmp_path / "outside").mkdir()
    (root / "run").symlink_to(tmp_path / "outside")

    with pytest.raises(Refused):
        copier.copy(order)

    assert _all(tmp_path / "outside") == []


@pytest.mark.parametrize(
    "folder", ["run", "../global_step_3", "/global_step_3", "run/global_step_3/actor", "other/global_step_3"]
)
def test_an_order_is_for_the_files_of_one_step(tmp_path: Path, order: CopyOrder, folder: str) -> None:
    with pytest.raises(ApiError, match="is not a step, or has no such files"):
        _copier(tmp_path / "copies").take(replace(order, folder=folder))


def test_an_order_is_carried_out_once_and_its_failure_is_told_to_who_asks_again(
    tmp_path: Path, worker: Served, order: CopyOrder
) -> None:
    root = tmp_path / "copies"
    copier = _copier(root)
    (worker.checkpoints / RECORD).unlink()

    assert copier.take(order).error == ""
    deadline = time.monotonic() + 60
    while not (state := copier.take(order)).error and time.monotonic() < deadline:
        time.sleep(0.01)

    assert "no such file" in state.error
    assert _all(root) == []
