"""Whether the image and the shape of a cluster are what a recipe was made for."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from cloudrl import recipes
from cloudrl.connection import ClusterView
from cloudrl.errors import InputError
from cloudrl.jobs import Wishes
from cloudrl.jobs.plan import plan
from cloudrl.spec import HydraText

NOW = datetime(2026, 11, 21, 10, 5, 9, tzinfo=timezone.utc)
PATHS = {"train": "/d/train.parquet", "test": "/d/test.parquet"}


def notes(recipe: str, overrides: dict[str, HydraText] | None = None, **changes: Any) -> tuple[str, ...]:
    """What is said of a recipe on a cluster of two nodes with eight GPUs each, but for the changes."""
    job = recipes.load(recipe)
    shape: dict[str, Any] = {"nodes": 2, "gpus_per_node": 8, **changes}
    view = ClusterView(
        name="lab", id="id-1", device="gpu", checkpoint_dir="/checkpoints", verl_version="0.9.1",
        data=dict.fromkeys(job.data, PATHS), models={str(job.model): "/m"}, **shape,
    )  # fmt: skip
    return plan(job, view, Wishes(overrides=overrides or {}), now=NOW).notes


def test_an_image_without_the_engine_is_refused() -> None:
    with pytest.raises(
        InputError, match="generates with sglang, and the image of cluster 'lab' has vllm"
    ) as caught:
        notes("ppo-sglang-7b", rollouts=("vllm",))
    assert "--rollout sglang" in str(caught.value.hint)


def test_the_users_own_engine_counts() -> None:
    with pytest.raises(InputError, match="generates with sglang"):
        notes("ppo", {"actor_rollout_ref.rollout.name": HydraText("sglang")}, rollouts=("vllm",))


@pytest.mark.parametrize("rollouts", [("sglang",), ("vllm", "sglang"), ()])
def test_an_image_that_has_it_or_does_not_say(rollouts: tuple[str, ...]) -> None:
    assert notes("ppo-sglang-7b", rollouts=rollouts) == ()


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 4)])
def test_another_shape_is_said(nodes: int, gpus: int) -> None:
    [note] = notes("ppo", nodes=nodes, gpus_per_node=gpus)
    assert "made for 2 nodes with 8 GPUs" in note
    assert f"has {nodes} with {gpus}" in note


def test_the_shape_that_it_is_made_for() -> None:
    assert notes("ppo", nodes=2, gpus_per_node=8) == ()
