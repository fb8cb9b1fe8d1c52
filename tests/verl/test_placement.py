"""Whether verl's workers, the replicas of its rollout and its queue fit onto a cluster."""

import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from planning import cluster, notes, plan

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.findings import JobRefused
from cloudrl.spec import HydraText
from cloudrl.verl.keys import QUEUE_UNITS
from cloudrl.verl.placement import USUAL_QUEUE_UNITS, check_replicas, queue_room

# -- replicas of the rollout -----------------------------------------------------------------------------------------

TP, DP, PP = (
    f"actor_rollout_ref.rollout.{name}_size"
    for name in ("tensor_model_parallel", "data_parallel", "pipeline_model_parallel")
)


@pytest.mark.parametrize(
    ("nodes", "gpus", "given", "message", "hint"),
    [
        (1, 1, {TP: 2}, f"{TP}=2: a replica of the rollout takes 2 GPUs, and 1 node with 1 GPU", 1),
        (2, 8, {TP: 32}, f"{TP}=32: a replica of the rollout takes 32 GPUs, and 2 nodes with 8 GPUs", 16),
        (2, 8, {TP: 3}, f"{TP}=3: a replica of the rollout takes 3 GPUs, and 2 nodes with 8 GPUs", 2),
        (2, 8, {TP: 8, DP: 4}, f"{TP}=8 and {DP}=4: a replica of the rollout takes 32 GPUs", 8),
        (2, 8, {TP: 4, DP: 8}, f"{TP}=4 and {DP}=8: a replica of the rollout takes 32 GPUs", 4),
        (2, 8, {TP: 1, PP: 3}, f"{PP}=3: a replica of the rollout takes 3 GPUs", 1),
        (2, 8, {TP: 4, "trainer.nnodes": 1, "trainer.n_gpus_per_node": 2}, "takes 4 GPUs, and 1 node with 2 GPUs", 2),
    ],
)  # fmt: skip
def test_replicas_that_do_not_fit_are_refused(
    nodes: int, gpus: int, given: dict[str, Any], message: str, hint: int
) -> None:
    overrides = {key: HydraText(str(value)) for key, value in given.items()}
    with pytest.raises(JobRefused, match=re.escape(message)) as caught:
        notes("ppo", overrides, nodes=nodes, gpus_per_node=gpus)
    first = caught.value.findings[0]
    assert first.text.endswith("cannot be divided into replicas of that size")
    of_data = [f"{DP}={math.gcd(nodes * gpus // hint, given[DP])}"] if DP in given else []
    others = of_data + ([f"{PP}=1"] if PP in given else [])
    fits = " ".join([f"{TP}={hint}", *others])
    assert first.hint == fits or len(caught.value.findings) > 1, "with the heads of the model it may be less"


@pytest.mark.parametrize(
    "given",
    [
        {TP: 16},  # over both nodes
        {TP: 2, DP: 8},
        {TP: "${oc.env:TP}"},  # known on the nodes
        {TP: 3, "actor_rollout_ref.rollout.nnodes": 1},  # on GPUs of its own
        {TP: 3, "actor_rollout_ref.rollout.disaggregation.enabled": True},
        {TP: 3, "trainer.nnodes": "${oc.env:N}"},
    ],
)
def test_replicas_that_fit_or_are_not_for_us_to_judge(given: dict[str, Any]) -> None:
    check_replicas({key: str(value) for key, value in given.items()}, cluster())


def test_a_recipe_for_more_gpus_than_the_cluster_has_is_refused_where_it_cannot_work() -> None:
    with pytest.raises(
        InputError, match=r"takes 4 GPUs, and 1 node with 2 GPUs cannot be divided into replicas of that size"
    ):
        notes("grpo-qwen3-32b", nodes=1, gpus_per_node=2)


# -- CPUs for the queue and for the workers --------------------------------------------------------------------------


def queue_units(cpus: int | None, overrides: dict[str, Any] | None = None, **changes: Any) -> str | None:
    """The settings that a job makes by itself or takes from its options."""
    job = recipes.load("ppo").replace(verl=None, **changes.pop("job", {}))
    view = cluster(cpus_per_node=cpus, models={str(job.model): "/m"}, **changes)
    argv = plan(job, view, SubmitOptions(overrides=overrides or {}, unchecked=True)).argv
    return dict(word.split("=", 1) for word in argv if "=" in word).get(QUEUE_UNITS)


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "units"),
    [
        (2, 8, 29, None),  # 24 for the workers, 4 units, and the controller on either node
        (2, 8, 28, "6"),
        (2, 8, 26, "2"),
        (3, 8, 28, None),
        (1, 8, 33, None),
        (1, 8, 32, "7"),
        (1, 1, 8, "4"),
        (2, 8, None, None),
    ],
)
def test_the_queue_gets_as_many_units_as_leave_the_workers_their_cpus(
    nodes: int, gpus: int, cpus: int | None, units: str | None
) -> None:
    assert queue_units(cpus, nodes=nodes, gpus_per_node=gpus) == units


def test_nodes_of_the_rollout_count_in_the_room_of_the_queue() -> None:
    separate = {
        "trainer.v1.trainer_mode": "separate_async", "trainer.nnodes": "1", "actor_rollout_ref.rollout.nnodes": "1",
    }  # fmt: skip
    assert queue_room(recipes.load("ppo"), separate, cluster(cpus_per_node=28)) == 6
    assert queue_units(28, separate, nodes=2, gpus_per_node=8) == "2"  # of an asynchronous mode, as everywhere


@pytest.mark.parametrize(
    ("cpus", "units", "hint"),
    [(28, 8, f"{QUEUE_UNITS}=6"), (25, None, "--set cpu=26.."), (24, 1, "trainer.use_v1=False")],
)
def test_too_few_cpus_for_the_queue_are_refused(cpus: int, units: int | None, hint: str) -> None:
    with pytest.raises(InputError, match=f"{cpus} CPUs a node are too few for verl") as caught:
        queue_units(cpus, {QUEUE_UNITS: units} if units else {})
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ({"trainer.use_v1": False}, {}),
        ({"transfer_queue.backend.storage_backend": "MooncakeStore"}, {}),
        ({"trainer.nnodes": 1}, {}),  # the other node may have the queue
        ({}, {"verl_version": "0.8.0"}),
        ({}, {"job": {"entrypoint": ["python3", "-m", "my.trainer"]}}),
    ],
)
def test_where_there_is_no_such_queue_nothing_is_said(overrides: dict[str, Any], changes: dict[str, Any]) -> None:
    assert queue_units(24, overrides, **changes) is None


def test_the_usual_number_of_units_is_the_installed_verls() -> None:
    config = Path(str(find_spec("verl").origin)).parent / "trainer/config/transfer_queue/transfer_queue.yaml"
    assert yaml.safe_load(config.read_text())["backend"]["SimpleStorage"]["num_data_storage_units"] == USUAL_QUEUE_UNITS
