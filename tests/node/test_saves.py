"""Finished saves are noticed and written down; others are not."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from cloudrl.node.saves import Saves
from cloudrl.node.shards import ShardChildFailed

if TYPE_CHECKING:
    from pathlib import Path


def shard(content: bytes = b"weights") -> bytes:
    """A zip, as torch writes one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model/data.pkl", content)
    return packed.getvalue()


class Counter:
    """Sums files, and remembers which."""

    def __init__(self) -> None:
        self.summed: list[str] = []
        self.fails = False

    def __call__(self, file: BinaryIO) -> dict[str, int]:
        if self.fails:
            raise ShardChildFailed("killed")
        content = file.read()
        self.summed.append(os.readlink(f"/proc/self/fd/{file.fileno()}").rpartition("/")[2])
        return {"size_bytes": len(content), "crc32": zlib.crc32(content)}


@pytest.fixture
def role(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "global_step_10" / "actor"
    folder.mkdir(parents=True)
    return folder


def saves(root: Path, counter: Counter | None = None) -> Saves:
    return Saves(root, counter or Counter(), clock=lambda: 5.0)


def write(role: Path, kind: str, content: bytes, rank: int = 1) -> str:
    name = f"{kind}_world_size_2_rank_{rank}.pt"
    (role / name).write_bytes(content)
    return name


def record(role: Path, rank: int = 1) -> dict[str, Any]:
    return dict(json.loads((role / f"cloudrl_save_world_size_2_rank_{rank}.json").read_text()))


def test_a_finished_save_is_recorded_at_the_second_look(tmp_path: Path, role: Path) -> None:
    content = shard()
    name = write(role, "model", content)
    watch = saves(tmp_path)

    assert watch.look() == []
    assert [path.name for path in watch.look()] == ["cloudrl_save_world_size_2_rank_1.json"]
    assert record(role) == {
        "format": 1, "step": 10, "role": "actor", "rank": 1, "world_size": 2, "recorded_at": 5.0,
        "files": {name: {"size_bytes": len(content), "crc32": zlib.crc32(content)}},
    }  # fmt: skip
    assert watch.look() == []
    assert sorted(path.name for path in role.iterdir()) == ["cloudrl_save_world_size_2_rank_1.json", name]


def test_each_rank_has_its_own_record(tmp_path: Path, role: Path) -> None:
    write(role, "model", shard(), rank=0)
    write(role, "optim", shard(), rank=1)
    watch = saves(tmp_path)
    watch.look()
    assert len(watch.look()) == 2
    assert list(record(role, 0)["files"]) == ["model_world_size_2_rank_0.pt"]
    assert list(record(role, 1)["files"]) == ["optim_world_size_2_rank_1.pt"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04half", shard()[:-5], b"x" * 100])
def test_an_unfinished_file_is_waited_for(tmp_path: Path, role: Path, content: bytes) -> None:
    write(role, "model", shard())
    write(role, "optim", content)
    watch = saves(tmp_path)
    for _ in range(4):
        assert watch.look() == []
    write(role, "optim", shard(b"complete by now"))
    assert watch.look() == []
    assert len(watch.look()) == 1
    assert len(record(role)["files"]) == 2


def test_what_still_grows_is_not_touched(tmp_path: Path, role: Path) -> None:
    watch = saves(tmp_path)
    for length in range(5):
        write(role, "model", shard(b"x" * length))
        assert watch.look() == []


def test_a_file_that_comes_later_is_added_and_only_it_is_read(tmp_path: Path, role: Path) -> None:
    counter = Counter()
    watch = saves(tmp_path, counter)
    write(role, "model", shard())
    watch.look()
    watch.look()
    write(role, "optim", shard())
    watch.look()
    watch.look()
    assert counter.summed == ["model_world_size_2_rank_1.pt", "optim_world_size_2_rank_1.pt"]
    assert len(record(role)["files"]) == 2


def test_a_step_that_is_saved_again_is_recorded_again(tmp_path: Path, role: Path) -> None:
    watch = saves(tmp_path)
    write(role, "model", shard())
    watch.look()
    watch.look()
    before = record(role)
    write(role, "model", shard(b"other weights"))
    watch.look()
    watch.look()
    assert record(role) != before


def test_a_new_agent_believes_the_record_that_it_finds(tmp_path: Path, role: Path) -> None:
    """It is older than whatever happened to the files since: a bit that has flipped must not become the truth."""
    name = write(role, "model", shard())
    first = saves(tmp_path)
    first.look()
    first.look()
    before = record(role)
    rotten = bytearray((role / name).read_bytes())
    rotten[40] ^= 1
    (role / name).write_bytes(rotten)

    counter = Counter()
    second = saves(tmp_path, counter)
    for _ in range(3):
        assert second.look() == []
    assert record(role) == before
    assert counter.summed == []


def test_a_new_agent_records_what_has_no_record_or_another_size(tmp_path: Path, role: Path) -> None:
    name = write(role, "model", shard())
    value = {"step": 10, "rank": 1, "world_size": 2, "files": {name: {"size_bytes": 1, "crc32": 2}}}
    (role / "cloudrl_save_world_size_2_rank_1.json").write_text(json.dumps(value))
    watch = saves(tmp_path)
    watch.look()
    assert len(watch.look()) == 1
    assert record(role)["files"][name]["size_bytes"] > 1


def test_a_child_that_dies_is_asked_again(tmp_path: Path, role: Path) -> None:
    counter = Counter()
    counter.fails = True
    watch = saves(tmp_path, counter)
    write(role, "model", shard())
    for _ in range(3):
        assert watch.look() == []
    counter.fails = False
    assert len(watch.look()) == 1


def test_a_step_that_is_pruned_meanwhile(tmp_path: Path, role: Path) -> None:
    def prune(file: BinaryIO) -> dict[str, int]:
        size = len(file.read())
        for path in role.iterdir():
            path.unlink()
        role.rmdir()
        return {"size_bytes": size, "crc32": 0}

    write(role, "model", shard())
    watch = Saves(tmp_path, prune)
    watch.look()
    assert watch.look() == []
    assert watch.look() == []
    assert not role.exists()
