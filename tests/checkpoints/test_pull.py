"""Raw shards are copied whole, or go on where they stopped."""

import os
import shutil
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from small_step import smallest_zip, tree, write_step

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.places import FileCopy
from cloudrl.shards.source import LocalShard

SHARD = "actor/model_world_size_2_rank_1.pt"


class Cut(CheckpointError):
    """The link is gone for good."""


@dataclass
class Link:
    """Lets so many bytes pass, then breaks; `flips` damages them."""

    room: int = 10**9
    flips: bool = False
    passed: int = 0


class FarShard(LocalShard):
    """A file behind a link."""

    def __init__(self, path: Path, label: str, link: Link) -> None:
        super().__init__(path, label=label)
        self._link = link

    def read(self, offset: int, length: int) -> bytes:
        if self._link.room < length:
            raise Cut("cut")
        self._link.room -= length
        self._link.passed += length
        piece = super().read(offset, length)
        return bytes(len(piece)) if self._link.flips else piece

    def crc32(self, offset: int, length: int) -> int:
        return zlib.crc32(self.path.read_bytes()[offset : offset + length])


@dataclass(frozen=True)
class Shaky(LocalSource):
    link: Link = field(default_factory=Link)

    def open(self, file: FileCopy) -> FarShard:
        return FarShard(Path(file.location.folder) / file.path, file.label, self.link)


@pytest.fixture
def origin(tmp_path: Path) -> Shaky:
    write_step(tmp_path / "volume" / "run", 7)
    return Shaky(tmp_path / "volume")


def test_the_whole_step_and_a_tracker(origin: Shaky, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    pulled = Checkpoints(origin).latest().pull(tmp_path / "here", on_progress=lambda *done: seen.append(done))
    assert tree(tmp_path / "here") == tree(tmp_path / "volume" / "run")
    assert (pulled.folder, pulled.files) == (tmp_path / "here", 5)
    assert seen[-1] == (pulled.size_bytes, pulled.size_bytes)
    assert seen == sorted(seen)
    assert Checkpoints(LocalSource(tmp_path / "here")).latest().info.resumes


def test_it_goes_on_where_it_stopped(origin: Shaky, tmp_path: Path) -> None:
    latest = Checkpoints(origin).latest()
    origin.link.room = 9_000
    with pytest.raises(Cut):
        latest.pull(tmp_path / "here")
    assert not (tmp_path / "here" / "latest_checkpointed_iteration.txt").exists()
    first = origin.link.passed

    origin.link.room = 10**9
    total = latest.pull(tmp_path / "here").size_bytes
    assert tree(tmp_path / "here") == tree(tmp_path / "volume" / "run")
    assert 0 < first < total
    assert origin.link.passed == total, "nothing was read twice"

    latest.pull(tmp_path / "here")
    assert origin.link.passed == total


def test_half_a_file_is_kept(origin: Shaky, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.checkpoints.pull._PIECE_BYTES", 1000)
    latest = Checkpoints(origin).latest()
    origin.link.room = 3_500
    with pytest.raises(Cut):
        latest.pull(tmp_path / "here")
    (part,) = (tmp_path / "here").rglob("*.part")
    assert part.stat().st_size >= 1000
    origin.link.room = 10**9
    total = latest.pull(tmp_path / "here").size_bytes
    assert origin.link.passed == total
    assert tree(tmp_path / "here") == tree(tmp_path / "volume" / "run")


def test_a_step_that_was_saved_again_is_taken_anew(origin: Shaky, tmp_path: Path) -> None:
    Checkpoints(origin).latest().pull(tmp_path / "here")
    shard = tmp_path / "volume" / "run" / "global_step_7" / SHARD
    half = tmp_path / "here" / "global_step_7" / "actor" / f".{shard.name}.999-1.part"
    half.write_bytes(b"of a save that was pulled half")
    shard.write_bytes(smallest_zip(b"saved again" * 1000))
    Checkpoints(origin).latest().pull(tmp_path / "here")
    assert tree(tmp_path / "here") == tree(tmp_path / "volume" / "run")


def test_what_is_damaged_on_its_way_does_not_appear(origin: Shaky, tmp_path: Path) -> None:
    origin.link.flips = True
    with pytest.raises(CheckpointError, match=r"is damaged on its way: its CRC-32 is [0-9a-f]{8}, and [0-9a-f]{8}"):
        Checkpoints(origin).latest().pull(tmp_path / "here")
    assert tree(tmp_path / "here") == {}


def test_a_step_that_is_still_being_saved_is_not_pulled(origin: Shaky, tmp_path: Path) -> None:
    step = tmp_path / "volume" / "run" / "global_step_7"
    latest = Checkpoints(origin)[0]
    shutil.copytree(step / "actor", step / "critic")
    (step / "critic" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(CheckpointError, match=r"run: step 7 is incomplete, .* missing: critic: rank 1\n") as raised:
        Checkpoints(origin).select(7).pull(tmp_path / "here")
    assert "cloudrl checkpoints list" in str(raised.value.hint)
    assert not (tmp_path / "here").exists()
    assert latest.pull(tmp_path / "here").files == 5

    shutil.rmtree(step / "critic")
    for name in ("data.pt", "../latest_checkpointed_iteration.txt"):
        (step / name).unlink()
    with pytest.raises(CheckpointError, match="missing: actor: the end of its saving"):
        Checkpoints(origin).select(7).pull(tmp_path / "there")


def test_a_folder_that_cannot_be_written(origin: Shaky, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Checkpoints(origin).latest().pull(tmp_path / "here")


def test_no_room(origin: Shaky, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.checkpoints.staging._SPARE_BYTES", 1 << 60)
    with pytest.raises(CheckpointError, match="are to be written"):
        Checkpoints(origin).latest().pull(tmp_path / "here")
    assert tree(tmp_path / "here") == {}


def test_an_earlier_step_does_not_set_the_tracker_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (9, 10, 20):
        write_step(run, step)
    tracker = tmp_path / "here" / "latest_checkpointed_iteration.txt"
    for step, named in ((9, "9"), (20, "20"), (10, "20"), (20, "20")):
        pulled = Checkpoints(LocalSource(run)).select(step).pull(tmp_path / "here")
        assert tracker.read_text() == named
        how = f"trainer.resume_mode=resume_path trainer.resume_from_path={tmp_path / 'here' / 'global_step_10'}"
        note = f"{tracker} still names step 20, which is there and later. To go on from step 10: {how}"
        assert pulled.notes == ((note,) if step == 10 else ())
    shutil.rmtree(tmp_path / "here" / "global_step_20")
    assert Checkpoints(LocalSource(run)).select(10).pull(tmp_path / "here").notes == ()
    assert tracker.read_text() == "10", "what it named is gone"
    tracker.write_text("")
    Checkpoints(LocalSource(run)).select(9).pull(tmp_path / "here")
    assert tracker.read_text() == "9"


def test_a_file_that_rotted_since_is_brought_again(origin: Shaky, tmp_path: Path) -> None:
    Checkpoints(origin).latest().pull(tmp_path / "here")
    shard = tmp_path / "here" / "global_step_7" / SHARD
    date, content = shard.stat(), bytearray(shard.read_bytes())
    content[3000] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(date.st_atime_ns, date.st_mtime_ns))
    pulled = Checkpoints(origin).latest().pull(tmp_path / "here")
    assert pulled.notes == (f"{shard} was damaged since it was pulled: it was copied again",)
    assert tree(tmp_path / "here") == tree(tmp_path / "volume" / "run")
    passed = origin.link.passed
    assert Checkpoints(origin).latest().pull(tmp_path / "here").notes == ()
    assert origin.link.passed == passed, "sums alone travel"
