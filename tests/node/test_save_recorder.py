"""Finished saves are noticed and written down; others are not."""

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cloudrl.node.save_recorder import SaveRecorder
from cloudrl.saves.zip_directory import directory_digest


def shard(content: bytes = b"weights") -> bytes:
    """A zip, as torch writes one."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model/data.pkl", content)
    return packed.getvalue()


class Counter:
    """Remembers whose directories are read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, descriptor: int) -> str:
        self.read.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        return directory_digest(descriptor)


@pytest.fixture
def role(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "global_step_10" / "actor"
    folder.mkdir(parents=True)
    return folder


LATER = 5e9
"""Than any file of these tests was written."""


def saves(root: Path, counter: Counter | None = None, at: float = LATER) -> SaveRecorder:
    return SaveRecorder(root, digest=counter or Counter(), clock=lambda: at)


def write(role: Path, kind: str, content: bytes, rank: int = 1) -> str:
    name = f"{kind}_world_size_2_rank_{rank}.pt"
    (role / name).write_bytes(content)
    return name


RECORD = "cloudrl_save_world_size_2_rank_1.json"


def record(role: Path, rank: int = 1) -> dict[str, Any]:
    return dict(json.loads((role / RECORD.replace("rank_1", f"rank_{rank}")).read_text()))


def has_record(role: Path) -> bool:
    return (role / RECORD).exists()


def recorded(root: Path, role: Path) -> str:
    """A step with its record; returns the name of the file."""
    name = write(role, "model", shard(b"step of the first attempt"))
    assert len(scan_twice(saves(root))) == 1
    return name


def scan_twice(watch: SaveRecorder) -> list[str]:
    """Names of the records that the second look has written."""
    watch.scan_once()
    return [path.name for path in watch.scan_once()]


def test_a_finished_save_is_recorded_at_the_second_look(tmp_path: Path, role: Path) -> None:
    content = shard()
    name = write(role, "model", content)
    watch = saves(tmp_path)

    assert watch.scan_once() == []
    assert [path.name for path in watch.scan_once()] == [RECORD]
    assert record(role) == {
        "format": 2, "step": 10, "role": "actor", "rank": 1, "world_size": 2, "recorded_at": LATER,
        "files": {name: {"size_bytes": len(content), "sha256": digest(role / name)}},
    }  # fmt: skip
    assert watch.scan_once() == []
    assert sorted(path.name for path in role.iterdir()) == [RECORD, name]


@pytest.mark.parametrize("run", ["run", "."])
def test_a_step_without_roles(tmp_path: Path, run: str) -> None:
    """As verl's SFT trainer saves it."""
    step = tmp_path / run / "global_step_10"
    step.mkdir(parents=True)
    name = write(step, "model", shard())
    watch = saves(tmp_path)
    assert scan_twice(watch) == [RECORD]
    assert (record(step)["role"], record(step)["files"].keys()) == ("actor", {name})
    write(step, "model", shard(b"of a later save"))
    watch.scan_once()
    assert not has_record(step)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return directory_digest(file.fileno())


def test_of_a_shard_only_its_directory_is_read(tmp_path: Path, role: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = shard(bytes(1 << 20))
    write(role, "model", content)
    asked: list[tuple[int, int]] = []
    pread = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        asked.append((offset, length))
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert len(scan_twice(saves(tmp_path))) == 1
    assert min(offset for offset, _ in asked) >= content.index(b"PK\1\2") - 100
    assert sum(length for _, length in asked) < 300


def test_rank_0_has_the_small_files_of_no_rank(tmp_path: Path, role: Path) -> None:
    write(role, "model", shard(), rank=0)
    write(role, "model", shard(), rank=1)
    (role / "huggingface").mkdir()
    (role / "huggingface" / "config.json").write_text("{}")
    (role / "huggingface" / "model.safetensors").write_bytes(b"weights")
    with (role / "huggingface" / "tokenizer.json").open("wb") as tokenizer:
        tokenizer.truncate(33 << 20)
    with (role / "huggingface" / "core").open("wb") as other:
        other.truncate((64 << 20) + 1)
    assert len(scan_twice(saves(tmp_path))) == 2
    small = {"size_bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    names = {"model_world_size_2_rank_0.pt", "huggingface/config.json", "huggingface/tokenizer.json"}
    assert record(role, 0)["files"].keys() == names
    assert record(role, 0)["files"]["huggingface/config.json"] == small
    assert record(role, 1)["files"].keys() == {"model_world_size_2_rank_1.pt"}


def test_a_file_that_comes_later_is_added(tmp_path: Path, role: Path) -> None:
    recorded(tmp_path, role)
    watch = saves(tmp_path)
    watch.scan_once()
    write(role, "optim", shard())
    watch.scan_once()
    assert not has_record(role)
    watch.scan_once()
    assert len(record(role)["files"]) == 2


def test_a_step_that_is_pruned_meanwhile(tmp_path: Path, role: Path) -> None:
    def prune(_: int) -> str:
        for path in role.iterdir():
            path.unlink()
        role.rmdir()
        return "0"

    write(role, "model", shard())
    watch = SaveRecorder(tmp_path, digest=prune)
    for _ in range(3):
        assert watch.scan_once() == []
    assert not role.exists()


def test_a_file_that_cannot_be_read_is_in_nobodys_way(tmp_path: Path, role: Path) -> None:
    def broken(descriptor: int) -> str:
        if "rank_0" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(5, "Input/output error")
        return "0"

    write(role, "model", shard(), rank=0)
    write(role, "model", shard(), rank=1)
    assert scan_twice(SaveRecorder(tmp_path, digest=broken)) == [RECORD]


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


def test_a_new_agent_believes_the_record_that_it_finds(tmp_path: Path, role: Path) -> None:
    """It is older than whatever happened to the files since: a bit that has flipped must not become the truth."""
    name = recorded(tmp_path, role)
    before = record(role)
    rotten = bytearray((role / name).read_bytes())
    rotten[40] ^= 1
    (role / name).write_bytes(rotten)

    counter = Counter()
    second = saves(tmp_path, counter)
    for _ in range(3):
        assert second.scan_once() == []
    assert record(role) == before
    assert counter.read == []


# -- a record of another save is worse than none -----------------------------------------------------------------


def test_the_record_of_a_step_that_is_saved_again_goes_at_once(tmp_path: Path, role: Path) -> None:
    """Same sizes, other CRCs: merging by the old record would fail."""
    counter = Counter()
    watch = saves(tmp_path, counter)
    name = write(role, "model", shard(b"first"))
    assert len(scan_twice(watch)) == 1
    write(role, "model", shard(b"again"))
    os.utime(role / name, (7.0, 7.0))
    assert watch.scan_once() == []
    assert not has_record(role)
    assert len(counter.read) == 1
    assert len(watch.scan_once()) == 1
    assert has_record(role)


def test_what_is_written_while_it_is_read_is_not_recorded(tmp_path: Path, role: Path) -> None:
    def slow(descriptor: int) -> str:
        found = directory_digest(descriptor)
        if not again:
            again.append(write(role, "model", shard(b"again")))
            os.utime(role / again[0], (7.0, 7.0))
        return found

    again: list[str] = []
    write(role, "model", shard(b"first"))
    watch = SaveRecorder(tmp_path, digest=slow)
    assert scan_twice(watch) == []
    assert not has_record(role)
    scan_twice(watch)
    assert record(role)["files"][again[0]]["sha256"] == digest(role / again[0])


@pytest.mark.parametrize(
    "change",
    [
        {"recorded_at": 1000.0},  # before the file was written: the agent was killed while it was saved again
        {"recorded_at": None},
        {"recorded_at": "soon"},
        {"recorded_at": float("nan")},
        {"files": {"model_world_size_2_rank_1.pt": {"size_bytes": 1, "sha256": "2"}}},
    ],
)
def test_a_record_that_is_older_than_a_file_or_of_other_sizes_is_not_believed(
    tmp_path: Path, role: Path, change: dict[str, object]
) -> None:
    recorded(tmp_path, role)
    before = record(role)
    (role / RECORD).write_text(json.dumps({**before, **change}))
    second = saves(tmp_path)
    second.scan_once()
    assert not has_record(role)
    assert len(second.scan_once()) == 1
    assert record(role) == before


def test_a_run_that_cannot_be_written_is_in_nobodys_way(
    tmp_path: Path, role: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is another user's: the looks broke off there, and no save of the cluster was recorded any more."""
    write(role, "model", shard(), rank=0)
    write(role, "model", shard(), rank=1)
    monkeypatch.setattr("cloudrl.private_files.secrets.token_hex", lambda _: "draft")
    stubborn = [role / f".cloudrl_save_world_size_2_rank_{rank}.json.draft.part" for rank in (0, 1)]
    for each in stubborn:
        each.mkdir()
    other = tmp_path / "x-other-run" / "global_step_10" / "actor"
    other.mkdir(parents=True)
    write(other, "model", shard())
    now, said, counter = [0.0], [], Counter()
    watch = SaveRecorder(tmp_path, digest=counter, timer=lambda: now[0], say=said.append)

    watch.scan_once()
    for _ in range(3):
        watch.scan_once()
    assert has_record(other)
    assert not has_record(role)
    assert said == [f"warning: finished saves of {tmp_path / 'run'} cannot be recorded: File exists"]
    for each in stubborn:
        each.rmdir()
    assert watch.scan_once() == [], "not at each look"
    now[0] = 61.0
    assert len(watch.scan_once()) == 2
    assert len(said) == 1


def test_a_slow_listing_counts_for_the_pause(tmp_path: Path, role: Path) -> None:
    times = iter([0.0, 2.0, 2.0])
    watch = SaveRecorder(tmp_path, timer=lambda: next(times))
    assert watch.pause_s == 5.0
    watch.scan_once()
    assert watch.pause_s == 38.0


def flip_bit(path: Path) -> None:
    """As a disk does, without a trace in size and time."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 16] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("is_new_agent", [False, True])
def test_a_small_file_is_no_reason_to_bless_the_shards_anew(tmp_path: Path, role: Path, is_new_agent: bool) -> None:
    name = write(role, "model", shard(), rank=0)
    (role / "huggingface").mkdir()
    (role / "huggingface" / "config.json").write_text("{}")
    counter = Counter()
    watch = saves(tmp_path, counter, at=os.stat(role / name).st_mtime + 100)
    scan_twice(watch)
    before = record(role, 0)
    flip_bit(role / name)
    (role / "model_card.md").write_text("mine")
    (role / "huggingface" / "config.json").write_text("{ }")
    if is_new_agent:
        watch = saves(tmp_path, counter)
        os.utime(role / "model_card.md", (LATER, LATER))
    for _ in range(4):
        watch.scan_once()
    after = record(role, 0)
    assert {**after, "files": None} == {**before, "files": None}
    assert after["files"][name] == before["files"][name]
    assert after["files"].keys() == {name, "huggingface/config.json", "model_card.md"}
    assert after["files"]["huggingface/config.json"]["sha256"] == hashlib.sha256(b"{ }").hexdigest()
    assert counter.read == [name]
    (role / "model_card.md").unlink()
    watch.scan_once()
    assert record(role, 0)["files"].keys() == {name, "huggingface/config.json"}
    assert watch.scan_once() == []


def test_a_save_that_was_cut_off_is_not_read_at_each_look(tmp_path: Path, role: Path) -> None:
    write(role, "model", shard())
    write(role, "optim", shard()[:-5])
    now, counter = [0.0], Counter()
    watch = SaveRecorder(tmp_path, digest=counter, timer=lambda: now[0])
    for _ in range(10):
        watch.scan_once()
    assert len(counter.read) == 2
    now[0] = 61.0
    scan_twice(watch)
    assert len(counter.read) == 4
    write(role, "optim", shard(b"complete by now"))
    assert len(scan_twice(watch)) == 1, "what changes is not kept waiting"


def test_what_another_node_has_recorded_meanwhile_is_believed(tmp_path: Path, role: Path) -> None:
    """Rank 0 was away, rank 1 has recorded a new step: rank 0 neither reads nor writes it again."""
    counter = Counter()
    watch = saves(tmp_path, counter)
    watch.scan_once()
    watch.reset()
    recorded(tmp_path, role)
    before = record(role)
    for _ in range(3):
        assert watch.scan_once() == []
    assert counter.read == []
    assert record(role) == before
