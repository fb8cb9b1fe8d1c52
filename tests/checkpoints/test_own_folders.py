"""What users keep beside the shards, such as a merged model: it is not part of a save, and hides none."""

import os
import shutil
from pathlib import Path

import pytest
from small_step import write_step

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError
from cloudrl.saves.prune import plan_prune

ACTOR = "global_step_20/actor"
MODEL = ("config.json", "model.safetensors")


def write_run(run: Path, *steps: int) -> Path:
    for step in steps:
        write_step(run, step)
    return run


def add_folder(run: Path, name: str) -> None:
    """A model as a merge writes it, into a folder that any tool may have named."""
    folder = run / name
    folder.mkdir(parents=True)
    for each in MODEL:
        (folder / each).write_bytes(b"{}" if each.endswith(".json") else b"\2\0\0\0\0\0\0\0{}")


def in_folder(run: Path) -> Checkpoints:
    return Checkpoints(LocalSource(run))


OWN = ("eval", "merged", "huggingface", "model", "actor/model", "actor/merged", "actor_hf")


@pytest.mark.parametrize("name", OWN)
def test_a_step_with_a_folder_of_the_user_is_complete(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    add_folder(run, f"global_step_20/{name}")

    found = in_folder(run)

    assert [(each.step, each.role, each.info.ranks) for each in found] == [(10, "actor", (0, 1)), (20, "actor", (0, 1))]
    assert all(each.complete and not each.info.is_megatron for each in found)
    assert [each.step for each in plan_prune(found.inventory, 1).removals] == [10]
    found.latest().pull(tmp_path / "pulled")
    assert found.latest().merge(tmp_path / "merged").parameters > 0


@pytest.mark.parametrize("name", OWN)
def test_it_does_not_hide_that_a_shard_is_cut(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    os.truncate(run / ACTOR / "model_world_size_2_rank_1.pt", 0)
    add_folder(run, f"global_step_20/{name}")

    found = in_folder(run)

    assert [each.complete for each in found] == [True, False]
    assert plan_prune(found.inventory, 1).removals == ()
    with pytest.raises(CheckpointError, match="incomplete"):
        found.select(20).pull(tmp_path / "pulled")


@pytest.mark.parametrize("name", ["huggingface", "dist_ckpt", "model/huggingface"])
def test_a_model_beside_the_steps_does_not_hide_them(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", 10, 20)
    add_folder(run, name)
    (run / name / ".metadata").write_bytes(b"\x80.")

    assert [each.step for each in in_folder(run)] == [10, 20]
    assert [each.step for each in in_folder(tmp_path)] == [10, 20]


def test_a_step_without_roles_may_have_one_too(tmp_path: Path) -> None:
    """As verl's SFT trainer saves it."""
    run = write_run(tmp_path / "run", 20)
    for each in (run / ACTOR).iterdir():
        shutil.move(each, run / "global_step_20" / each.name)
    (run / ACTOR).rmdir()
    (run / "global_step_20/data.pt").rename(run / "global_step_20/data_0.pt")
    add_folder(run, "global_step_20/model")

    [step] = in_folder(run)

    assert step.complete
    assert (step.role, step.info.is_megatron) == ("actor", False)
