"""Megatron's distributed format: what is there, whether it is all, and what it merges to."""

import json
import random
import shutil
import struct
from pathlib import Path

import pytest
from megatron_files import expected, extracted, latest, weights
from shard_files import read_safetensors

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.megatron_layout import Kind
from cloudrl.saves.names import INDEX
from cloudrl.shards.report import Report


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder with weights in the distributed format, of a step that is whole, saved by verl's own manager."""
    return weights(extracted("qwen2-uneven-padded", tmp_path / "run"))


@pytest.fixture
def base(data: Path) -> Path:
    """A folder with what the base model has beside its weights."""
    folder = data.parents[4] / "base"
    folder.mkdir()
    (data.parents[3] / "config.json").rename(folder / "config.json")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / INDEX).write_text("{}")
    return folder


def test_the_distributed_format(data: Path, base: Path, tmp_path: Path) -> None:
    found = latest(data)
    assert (found.complete, found.info.weights) == (True, (Kind.DIST, "model/dist_ckpt/"))
    assert found.info.locations.popitem()[1] == (0, 1, 2, 3)
    report = found.verify()
    assert (report.findings, report.ranks, report.world_size) == ((), (0, 1, 2, 3), 4)
    assert (report.step, report.tensors) == (1, 10)
    with pytest.raises(CheckpointError, match="neither config nor tokenizer") as caught:
        found.merge(tmp_path / "model")
    assert "--base MODEL" in str(caught.value.hint)
    merged = found.merge(tmp_path / "model", base=str(base), dtype="keep")
    assert read_safetensors(merged.path) == expected(tmp_path / "run")
    assert sorted(path.name for path in merged.path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_config_beside_it_as_in_verl_0_8(data: Path, base: Path, tmp_path: Path) -> None:
    role = data.parents[1]
    data.rename(role / "dist_ckpt")
    shutil.rmtree(role / "model")
    shutil.rmtree(role / "extra")
    base.rename(role / "huggingface")
    for name in ("model.safetensors", INDEX):
        (role / "huggingface" / name).unlink()
    (role / "ckpt_contents.json").unlink()
    found = Checkpoints(LocalSource(tmp_path / "run")).latest()
    assert found.info.weights == (Kind.DIST, "dist_ckpt/")
    assert read_safetensors(found.merge(tmp_path / "model", dtype="keep").path) == expected(tmp_path / "run")


@pytest.mark.parametrize("name", ["", "nothing/such/as/this", "./missing", "~/missing", "missing"])
def test_a_base_that_is_none(data: Path, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a folder|has no config"):
        latest(data).merge(tmp_path / "model", base=name or str(tmp_path))


def test_a_base_that_another_run_had(data: Path, base: Path, tmp_path: Path) -> None:
    text = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(text | {"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match="num_hidden_layers = 2, and the run had 3"):
        latest(data).merge(tmp_path / "model", base=str(base))


def damage(report: Report) -> list[str]:
    return [finding.message for finding in report.findings if finding.fatal]


@pytest.mark.parametrize("folder", ["model", "extra"])
def test_a_file_that_is_missing_or_empty(data: Path, folder: str) -> None:
    path = max((data.parents[1] / folder / "dist_ckpt").glob("*.distcp"), key=lambda path: path.stat().st_size)
    path.write_bytes(b"")
    (empty,) = damage(latest(data).verify())
    assert "has 0 bytes, and an item of it ends at" in empty
    path.unlink()
    (missing,) = damage(latest(data).verify())
    assert missing == f"{folder}/dist_ckpt/{path.name} is named in .metadata, and is not there"


@pytest.mark.parametrize("folder", ["model", "extra"])
def test_a_bit_that_has_flipped(data: Path, folder: str) -> None:
    path = max((data.parents[1] / folder / "dist_ckpt").glob("*.distcp"), key=lambda path: path.stat().st_size)
    good = path.read_bytes()
    for at in range(200, len(good), 997):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        if zipped_bytes(good, at):
            assert damage(latest(data).verify()), at


def zipped_bytes(data: bytes, at: int) -> bool:
    """Whether a byte is in a storage: headers, dates and what fills up may change without harm."""
    start = data.rindex(b"PK\3\4", 0, at)
    name, extra = struct.unpack_from("<2H", data, start + 26)
    return (
        b"/data/" in data[start + 30 : start + 30 + name]
        and start + 30 + name + extra <= at < start + 30 + name + extra + 16
    )


def test_a_save_that_was_cut_off_has_no_metadata(data: Path, tmp_path: Path) -> None:
    (data / ".metadata").unlink()
    found = Checkpoints(LocalSource(data.parents[4])).select(1)
    assert found.info.missing == ("model/dist_ckpt/.metadata",)
    assert not found.verify().ok
    with pytest.raises(CheckpointError, match=r"has no model/dist_ckpt/\.metadata"):
        found.merge(tmp_path / "model", base="x")


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle", b".", random.Random(0).randbytes(300)])
def test_damaged_metadata(data: Path, content: bytes) -> None:
    (data / ".metadata").write_bytes(content)
    assert len(damage(latest(data).verify())) == 1


@pytest.mark.parametrize("case", ["qwen2-default", "qwen2-default-critic"])
def test_what_verl_saves_by_default(case: str, tmp_path: Path) -> None:
    role = extracted(case, tmp_path / "run")
    found = Checkpoints(LocalSource(tmp_path / "run")).latest(role=role.name)
    assert (found.info.missing, found.verify().ok) == ((), True)
    wanted = expected(tmp_path / "run")
    if role.name == "critic":
        wanted["score.bias"] = ("BF16", (1,), bytes(2))
    assert read_safetensors(found.merge(tmp_path / "model", dtype="keep").path) == wanted
