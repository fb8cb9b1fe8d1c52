"""Megatron's checkpoints: what is there, whether it is all, and no more."""

import os
import pickle
import random
from pathlib import Path

import pytest

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.megatron import named_files
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError

NAMES = ["__0_0.distcp", "__0_1.distcp", "__1_0.distcp"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder with the data files of a step that is whole."""
    role = tmp_path / "run" / "global_step_3" / "actor"
    folder = role / "model" / "dist_ckpt"
    folder.mkdir(parents=True)
    (role / "huggingface").mkdir()
    (role / "huggingface" / "config.json").write_text("{}")
    (role.parent / "data.pt").write_bytes(b"x")
    for name in NAMES:
        (folder / name).write_bytes(b"tensor")
    said = {f"layer {index}": {"relative_path": name, "offset": 0, "length": 6} for index, name in enumerate(NAMES)}
    (folder / ".metadata").write_bytes(pickle.dumps(said))
    return folder


def latest(data: Path) -> CheckpointHandle:
    return Checkpoints(LocalSource(data.parents[4])).select(3)


def test_a_whole_one(data: Path) -> None:
    found = latest(data)
    report = found.verify()
    assert found.complete
    assert found.info.world_size is None
    assert report.ok
    assert (report.ranks, report.size_bytes) == ((0, 1), 18)
    assert "tensors are not" in report.findings[-1].message
    with pytest.raises(CheckpointError, match="merging these is not supported yet") as caught:
        found.merge(data.parent / "model")
    assert "--backend megatron" in str(caught.value.hint)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_or_empty(data: Path, name: str) -> None:
    (data / name).write_bytes(b"")
    (empty, _) = latest(data).verify().findings
    assert (empty.fatal, empty.message) == (True, "the file is empty")
    (data / name).unlink()
    (missing, _) = latest(data).verify().findings
    assert f"model/dist_ckpt/{name} is named in .metadata, and is not there" in missing.message
    assert missing.rank == int(name[2])


def test_a_save_that_was_cut_off_has_no_metadata(data: Path) -> None:
    (data / ".metadata").unlink()
    found = latest(data)
    assert found.info.missing == ("model/dist_ckpt/.metadata",)
    assert not found.verify().ok


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle", b".", random.Random(0).randbytes(300)])
def test_damaged_metadata(data: Path, content: bytes) -> None:
    (data / ".metadata").write_bytes(content)
    assert not latest(data).verify().ok


class _Hostile:
    def __reduce__(self) -> object:
        return os.system, ("touch pwned",)


def test_nothing_in_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_files(pickle.dumps([_Hostile(), "__7_0.distcp"])) == {"__7_0.distcp"}
    assert list(tmp_path.iterdir()) == []
