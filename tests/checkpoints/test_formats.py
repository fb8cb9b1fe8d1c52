"""The rows of the formats: which one a save has, and how often a merge reads its config."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from megatron_files import extracted
from shard_files import copied

from cloudrl.checkpoints.formats import format_of
from cloudrl.checkpoints.merge import merge
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import InputError
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.places import FileCopy
from cloudrl.shards.source import LocalShard, ShardSource


class Counted(bytes):
    """Bytes that tell how often they are parsed as JSON."""

    parsed = 0

    def decode(self, *args: str) -> str:  # type: ignore[override]
        Counted.parsed += 1
        return super().decode(*args)


class CountedShard(LocalShard):
    reads = 0

    def read(self, offset: int, length: int) -> bytes:
        CountedShard.reads += 1
        return Counted(super().read(offset, length))


def open_counted(file: FileCopy) -> ShardSource:
    kind = CountedShard if file.path.endswith("/config.json") else LocalShard
    return kind(Path(file.location.folder) / file.path)


def only(run: Path) -> Checkpoint:
    (found,) = LocalSource(run).inventory().checkpoints
    return found


def fsdp(run: Path) -> Checkpoint:
    copied("torch-2.13.0/fsdp2", run)
    return only(run)


def megatron(run: Path) -> Checkpoint:
    extracted("qwen2-default", run)
    return only(run)


def distributed(run: Path) -> Checkpoint:
    """With its config beside it, as verl 0.8 wrote it."""
    role = extracted("qwen2-uneven-padded", run)
    (role / "huggingface").mkdir()
    (run / "config.json").rename(role / "huggingface" / "config.json")
    return only(run)


def model(run: Path) -> Checkpoint:
    """Of FSDP, with `hf_model` alone."""
    role = extracted("qwen2-default", run)
    (role / "model" / "huggingface").rename(role / "huggingface")
    for folder in ("model", "optimizer", "extra"):
        shutil.rmtree(role / folder, ignore_errors=True)
    (role / "ckpt_contents.json").unlink()
    return only(run)


@pytest.mark.parametrize(
    ("make", "label"), [(fsdp, "FSDP"), (megatron, "Megatron"), (distributed, "Megatron"), (model, "model")]
)
def test_a_merge_reads_the_config_once(
    make: Callable[[Path], Checkpoint], label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "parsed", 0)
    monkeypatch.setattr(CountedShard, "reads", 0)
    found = make(tmp_path / "run")
    assert format_of(found).label == label
    merge(SavedFiles(found, open_counted), tmp_path / "model")
    assert (CountedShard.reads, Counted.parsed) == (1, 1)


@pytest.mark.parametrize("make", [fsdp, megatron, model])
def test_a_base_that_has_no_use(make: Callable[[Path], Checkpoint], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has its own config, so --base x has no use"):
        merge(SavedFiles(make(tmp_path / "run"), open_counted, "x"), tmp_path / "model")
