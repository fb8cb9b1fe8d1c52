"""Layouts that verl has beside `actor/` with FSDP: found, verified, merged and pulled through two real agents."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_lab import Lab
from megatron_files import expected, extracted
from node.conftest import image  # noqa: F401 - a fixture
from node.node_harness import Image, making, marked, until
from node_image import link_numpy
from shard_files import read_safetensors
from small_step import as_sft, tree, write_step

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.sources import LocalSource

pytestmark = pytest.mark.agents

DISTRIBUTED = ("qwen2-tied-stages", "qwen3-moe")
MEGATRON = ("qwen2-default", "qwen2-default-critic", *DISTRIBUTED)
RUNS = ("sft", "sft-megatron", *MEGATRON)
TRACKER = "latest_checkpointed_iteration.txt"


def write_runs(folder: Path) -> None:
    """By name; those of Megatron were saved by verl's own manager."""
    as_sft(write_step(folder / "sft", 7))
    for case in MEGATRON:
        extracted(case, folder / case)
        (folder / case / TRACKER).write_text("1")
    step = extracted("qwen2-tied-stages", folder / "sft-megatron").parent
    for path in (step / "actor").iterdir():
        path.rename(step / path.name)
    (step / "actor").rmdir()
    (step / "data.pt").rename(step / "data_0.pt")
    (folder / "sft-megatron" / TRACKER).write_text("1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, each in one piece."""
    folder = tmp_path_factory.mktemp("whole")
    write_runs(folder)
    return folder


@pytest.fixture(scope="module")
def lab(image: Image, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:  # noqa: F811
    link_numpy(image.packages)
    with marked(uuid.uuid4().hex), making(tmp_path_factory.mktemp("lab"), image) as make:
        lab = Lab(make(2), *sorted(whole.iterdir()))
        yield lab
        lab.link.down()


def found(checkpoints: Checkpoints, run: str) -> CheckpointHandle:
    """The only step of a run."""
    (only,) = (each for each in checkpoints if each.run == run)
    return only


def ranks(checkpoint: CheckpointHandle) -> list[int]:
    return sorted(rank for ranks in checkpoint.info.locations.values() for rank in ranks)


def local(run: Path) -> CheckpointHandle:
    (only,) = Checkpoints(LocalSource(run))
    return only


@pytest.mark.parametrize("run", RUNS)
def test_it_is_found_and_verified(lab: Lab, whole: Path, run: str) -> None:
    here, there = local(whole / run), found(lab.checkpoints(), run)
    assert (there.complete, there.info.resumes, there.info.is_megatron) == (True, True, run != "sft")
    assert (there.step, there.role, there.info.world_size) == (here.step, here.role, here.info.world_size)
    assert (there.info.weights, ranks(there)) == (here.info.weights, ranks(here))
    one, other = here.verify(), there.verify()
    assert other.ok, other.findings
    assert (one.tensors, one.ranks, one.size_bytes) == (other.tensors, other.ranks, other.size_bytes)


@pytest.mark.parametrize("run", RUNS)
def test_it_is_merged(lab: Lab, whole: Path, run: str, tmp_path: Path) -> None:
    base = str(whole / run) if run in (*DISTRIBUTED, "sft-megatron") else None
    for dtype in ("keep", "bf16"):
        local(whole / run).merge(tmp_path / f"{dtype}-here", dtype=dtype, base=base)
        found(lab.checkpoints(), run).merge(tmp_path / f"{dtype}-there", dtype=dtype, base=base)
        assert tree(tmp_path / f"{dtype}-there") == tree(tmp_path / f"{dtype}-here")
    if run in MEGATRON:
        wanted = expected(whole / run)
        merged = read_safetensors(tmp_path / "keep-there")
        assert {name: merged[name] for name in wanted} == wanted
    assert lab.said == []


@pytest.mark.parametrize("run", RUNS)
def test_it_is_pulled(lab: Lab, whole: Path, run: str, tmp_path: Path) -> None:
    found(lab.checkpoints(), run).pull(tmp_path / "pulled")
    (step,) = whole.glob(f"{run}/global_step_*")
    brought = tree(tmp_path / "pulled" / step.name)
    assert {name: data for name, data in brought.items() if "cloudrl_save" not in name} == tree(step)
    assert local(tmp_path / "pulled").info.resumes


def test_a_part_that_is_gone_is_told(lab: Lab, tmp_path: Path) -> None:
    part = (lab.folders[1] / "sft").rename(tmp_path / "sft")
    try:
        assert "rank 1" in found(lab.checkpoints(), "sft").info.missing
    finally:
        part.rename(lab.folders[1] / "sft")
    part = (lab.folders[1] / "qwen3-moe").rename(tmp_path / "qwen3-moe")
    try:
        said = [each.message for each in found(lab.checkpoints(), "qwen3-moe").verify().findings]
        assert "model/dist_ckpt/__1_0.distcp is named in .metadata, and is not there" in said
    finally:
        part.rename(lab.folders[1] / "qwen3-moe")


def test_shards_in_the_folder_of_the_step_are_recorded(lab: Lab) -> None:
    record = lab.folders[0] / "sft" / "global_step_7" / "cloudrl_save_world_size_2_rank_0.json"
    until(record.exists, "a record of the save")
    until(lambda: 0 in found(lab.checkpoints(), "sft").info.records, "it in the inventory")
