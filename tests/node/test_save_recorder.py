"""Finished saves are noticed and written down; others are not."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from cloudrl.node.save_recorder import SaveRecorder, SaveRecorderThread
from cloudrl.node.shard_worker_client import ShardWorkerFailed

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
            raise ShardWorkerFailed("killed")
        content = file.read()
        self.summed.append(os.readlink(f"/proc/self/fd/{file.fileno()}").rpartition("/")[2])
        return {"size_bytes": len(content), "crc32": zlib.crc32(content)}


@pytest.fixture
def role(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "global_step_10" / "actor"
    folder.mkdir(parents=True)
    return folder


LATER = 5e9
"""Than any file of these tests was written."""


def saves(root: Path, counter: Counter | None = None, at: float = LATER) -> SaveRecorder:
    return SaveRecorder(root, counter or Counter(), clock=lambda: at)


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

    assert watch.scan_once() == []
    assert [path.name for path in watch.scan_once()] == ["cloudrl_save_world_size_2_rank_1.json"]
    assert record(role) == {
        "format": 1, "step": 10, "role": "actor", "rank": 1, "world_size": 2, "recorded_at": LATER,
        "files": {name: {"size_bytes": len(content), "crc32": zlib.crc32(content)}},
    }  # fmt: skip
    assert watch.scan_once() == []
    assert sorted(path.name for path in role.iterdir()) == ["cloudrl_save_world_size_2_rank_1.json", name]


def test_each_rank_has_its_own_record(tmp_path: Path, role: Path) -> None:
    write(role, "model", shard(), rank=0)
    write(role, "optim", shard(), rank=1)
    watch = saves(tmp_path)
    watch.scan_once()
    assert len(watch.scan_once()) == 2
    assert list(record(role, 0)["files"]) == ["model_world_size_2_rank_0.pt"]
    assert list(record(role, 1)["files"]) == ["optim_world_size_2_rank_1.pt"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04half", shard()[:-5], b"x" * 100])
def test_an_unfinished_file_is_waited_for(tmp_path: Path, role: Path, content: bytes) -> None:
    write(role, "model", shard())
    write(role, "optim", content)
    watch = saves(tmp_path)
    for _ in range(4):
        assert watch.scan_once() == []
    write(role, "optim", shard(b"complete by now"))
    assert watch.scan_once() == []
    assert len(watch.scan_once()) == 1
    assert len(record(role)["files"]) == 2


def test_what_still_grows_is_not_touched(tmp_path: Path, role: Path) -> None:
    watch = saves(tmp_path)
    for length in range(5):
        write(role, "model", shard(b"x" * length))
        assert watch.scan_once() == []


def test_a_file_that_comes_later_is_added_and_only_it_is_read(tmp_path: Path, role: Path) -> None:
    counter = Counter()
    watch = saves(tmp_path, counter)
    write(role, "model", shard())
    watch.scan_once()
    watch.scan_once()
    write(role, "optim", shard())
    watch.scan_once()
    watch.scan_once()
    assert counter.summed == ["model_world_size_2_rank_1.pt", "optim_world_size_2_rank_1.pt"]
    assert len(record(role)["files"]) == 2


def test_a_step_that_is_saved_again_is_recorded_again(tmp_path: Path, role: Path) -> None:
    watch = saves(tmp_path)
    write(role, "model", shard())
    watch.scan_once()
    watch.scan_once()
    before = record(role)
    write(role, "model", shard(b"other weights"))
    watch.scan_once()
    watch.scan_once()
    assert record(role) != before


def test_a_new_agent_believes_the_record_that_it_finds(tmp_path: Path, role: Path) -> None:
    """It is older than whatever happened to the files since: a bit that has flipped must not become the truth."""
    name = write(role, "model", shard())
    first = saves(tmp_path)
    first.scan_once()
    first.scan_once()
    before = record(role)
    rotten = bytearray((role / name).read_bytes())
    rotten[40] ^= 1
    (role / name).write_bytes(rotten)

    counter = Counter()
    second = saves(tmp_path, counter)
    for _ in range(3):
        assert second.scan_once() == []
    assert record(role) == before
    assert counter.summed == []


def test_a_new_agent_records_what_has_no_record_or_another_size(tmp_path: Path, role: Path) -> None:
    name = write(role, "model", shard())
    files = {name: {"size_bytes": 1, "crc32": 2}}
    value = {"step": 10, "rank": 1, "world_size": 2, "recorded_at": LATER, "files": files}
    (role / "cloudrl_save_world_size_2_rank_1.json").write_text(json.dumps(value))
    watch = saves(tmp_path)
    watch.scan_once()
    assert len(watch.scan_once()) == 1
    assert record(role)["files"][name]["size_bytes"] > 1


def test_a_child_that_dies_is_asked_again(tmp_path: Path, role: Path) -> None:
    counter = Counter()
    counter.fails = True
    watch = saves(tmp_path, counter)
    write(role, "model", shard())
    for _ in range(3):
        assert watch.scan_once() == []
    counter.fails = False
    assert len(watch.scan_once()) == 1


def test_a_step_that_is_pruned_meanwhile(tmp_path: Path, role: Path) -> None:
    def prune(file: BinaryIO) -> dict[str, int]:
        size = len(file.read())
        for path in role.iterdir():
            path.unlink()
        role.rmdir()
        return {"size_bytes": size, "crc32": 0}

    write(role, "model", shard())
    watch = SaveRecorder(tmp_path, prune)
    watch.scan_once()
    assert watch.scan_once() == []
    assert watch.scan_once() == []
    assert not role.exists()


# -- a record of another save is worse than none -----------------------------------------------------------------


def has_record(role: Path) -> bool:
    return (role / "cloudrl_save_world_size_2_rank_1.json").exists()


def recorded(root: Path, role: Path, *, at: float = LATER) -> str:
    """A step with its record; returns the name of the file."""
    name = write(role, "model", shard(b"step of the first attempt"))
    watch = saves(root, at=at)
    watch.scan_once()
    assert len(watch.scan_once()) == 1
    return name


def test_the_record_of_a_step_that_is_saved_again_goes_before_any_sum(tmp_path: Path, role: Path) -> None:
    """Same sizes, other CRC: merging by the old record would fail."""
    counter = Counter()
    watch = saves(tmp_path, counter)
    name = write(role, "model", shard(b"first"))
    watch.scan_once()
    watch.scan_once()
    assert has_record(role)
    write(role, "model", shard(b"again"))
    os.utime(role / name, (7.0, 7.0))
    assert watch.scan_once() == []
    assert not has_record(role)
    assert len(counter.summed) == 1
    assert len(watch.scan_once()) == 1
    assert has_record(role)


def test_a_new_agent_does_not_believe_a_record_that_is_older_than_a_file(tmp_path: Path, role: Path) -> None:
    """The agent was killed while the step was saved again."""
    name = recorded(tmp_path, role, at=1000.0)
    os.utime(role / name, (1000.5, 1000.5))
    second = saves(tmp_path)
    assert second.scan_once() == []
    assert not has_record(role)
    assert len(second.scan_once()) == 1
    assert record(role)["recorded_at"] == LATER


@pytest.mark.parametrize("said", [None, "soon", float("nan")])
def test_a_record_without_its_time_is_not_believed(tmp_path: Path, role: Path, said: object) -> None:
    recorded(tmp_path, role)
    path = role / "cloudrl_save_world_size_2_rank_1.json"
    path.write_text(json.dumps({**record(role), "recorded_at": said}))
    second = saves(tmp_path)
    second.scan_once()
    assert not has_record(role)
    assert len(second.scan_once()) == 1


def test_what_is_written_while_it_is_summed_is_not_recorded(tmp_path: Path, role: Path) -> None:
    def slow(file: BinaryIO) -> dict[str, int]:
        content = file.read()
        if not again:
            again.append(write(role, "model", shard(b"again")))
            os.utime(role / again[0], (7.0, 7.0))
        return {"size_bytes": len(content), "crc32": zlib.crc32(content)}

    again: list[str] = []
    write(role, "model", shard(b"first"))
    watch = SaveRecorder(tmp_path, slow)
    watch.scan_once()
    assert watch.scan_once() == []
    assert not has_record(role)
    watch.scan_once()
    watch.scan_once()
    assert record(role)["files"][again[0]]["crc32"] == zlib.crc32(shard_at(role, again[0]))


def shard_at(role: Path, name: str) -> bytes:
    return (role / name).read_bytes()


# -- sums take minutes -------------------------------------------------------------------------------------------


class SlowCounter(Counter):
    """Each sum takes 20 s of its own clock."""

    now = 0.0

    def __call__(self, file: BinaryIO) -> dict[str, int]:
        self.now += 20.0
        return super().__call__(file)


def test_a_look_that_takes_long_is_broken_off_and_the_next_goes_on(tmp_path: Path, role: Path) -> None:
    counter = SlowCounter()
    for kind in ("extra_state", "model", "optim"):
        write(role, kind, shard())
    watch = SaveRecorder(tmp_path, counter, timer=lambda: counter.now)
    watch.scan_once()
    assert watch.scan_once() == []
    assert (len(counter.summed), watch.is_behind) == (2, True)
    assert len(watch.scan_once()) == 1
    assert (len(counter.summed), watch.is_behind) == (3, False)


def test_a_file_that_cannot_be_read_is_in_nobodys_way(tmp_path: Path, role: Path) -> None:
    """The disk needs 40 s to say so: other ranks are recorded all the same, and it is not asked all the time."""
    asked: list[str] = []
    now = [0.0]

    def crc32(file: BinaryIO) -> dict[str, int]:
        asked.append(os.readlink(f"/proc/self/fd/{file.fileno()}").rpartition("/")[2])
        if "rank_0" in asked[-1]:
            now[0] += 40.0
            raise OSError(5, "Input/output error")
        return {"size_bytes": len(file.read()), "crc32": 0}

    write(role, "model", shard(), rank=0)
    write(role, "model", shard(), rank=1)
    watch = SaveRecorder(tmp_path, crc32, timer=lambda: now[0])
    watch.scan_once()
    assert [path.name for path in watch.scan_once()] == ["cloudrl_save_world_size_2_rank_1.json"]
    for _ in range(3):
        watch.scan_once()
    assert len(asked) == 2
    now[0] = 800.0
    watch.scan_once()
    assert len(asked) == 3


def test_a_run_that_cannot_be_written_is_in_nobodys_way(tmp_path: Path, role: Path) -> None:
    """Its folder is another user's: the looks broke off there, and no save of the cluster was recorded any more."""
    write(role, "model", shard(), rank=0)
    write(role, "model", shard(), rank=1)
    stubborn = [role / f".cloudrl_save_world_size_2_rank_{rank}.json.{os.getpid()}.part" for rank in (0, 1)]
    for each in stubborn:
        each.mkdir()
    other = tmp_path / "x-other-run" / "global_step_10" / "actor"
    other.mkdir(parents=True)
    write(other, "model", shard())
    now, said, counter = [0.0], [], Counter()
    watch = SaveRecorder(tmp_path, counter, timer=lambda: now[0], say=said.append)

    watch.scan_once()
    for _ in range(3):
        watch.scan_once()
    assert has_record(other)
    assert not has_record(role)
    assert said == [f"warning: finished saves of {tmp_path / 'run'} cannot be written down: Is a directory"]
    for each in stubborn:
        each.rmdir()
    assert watch.scan_once() == [], "not at each look"
    now[0] = 61.0
    assert len(watch.scan_once()) == 2
    assert len(counter.summed) == 3
    assert len(said) == 1


def test_what_changes_between_two_files_of_a_long_step_is_seen(tmp_path: Path, role: Path) -> None:
    recorded(tmp_path, role)
    other = role.parent.parent / "global_step_20" / "actor"
    other.mkdir(parents=True)
    counter = SlowCounter()
    for kind in ("extra_state", "model", "optim"):
        write(other, kind, shard())
    watch = SaveRecorder(tmp_path, counter, timer=lambda: counter.now)
    watch.scan_once()
    watch.scan_once()
    name = write(role, "model", shard(b"step of another attempt"))
    os.utime(role / name, (7.0, 7.0))
    watch.scan_once()
    assert not has_record(role)


def test_sums_do_not_count_for_the_pause(tmp_path: Path, role: Path) -> None:
    """20 s for a sum were 380 s until the next look."""
    counter = SlowCounter()
    for kind in ("extra_state", "model", "optim"):
        write(role, kind, shard())
    watch = SaveRecorder(tmp_path, counter, timer=lambda: counter.now)
    keeper = SaveRecorderThread(watch, is_mine=lambda: True, every_s=5.0)
    pauses = []
    for _ in range(3):
        keeper._look()
        pauses.append(keeper._pause_s())
    assert pauses == [5.0, 0.0, 5.0]


def test_a_slow_listing_counts_for_the_pause(tmp_path: Path, role: Path) -> None:
    times = iter([0.0, 2.0, 2.0])
    watch = SaveRecorder(tmp_path, Counter(), timer=lambda: next(times))
    keeper = SaveRecorderThread(watch, is_mine=lambda: True, every_s=5.0)
    keeper._look()
    assert keeper._pause_s() == 38.0


def test_what_another_node_has_recorded_meanwhile_is_believed(tmp_path: Path, role: Path) -> None:
    """Rank 0 was away, rank 1 has recorded a new step: rank 0 neither sums it nor writes again."""
    counter = Counter()
    mine = [True]
    keeper = SaveRecorderThread(saves(tmp_path, counter), is_mine=lambda: mine[0])
    keeper._look()
    mine[0] = False
    keeper._look()
    recorded(tmp_path, role)
    before = record(role)
    mine[0] = True
    for _ in range(3):
        keeper._look()
    assert counter.summed == []
    assert record(role) == before
