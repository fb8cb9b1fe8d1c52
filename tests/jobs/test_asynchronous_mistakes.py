"""What one can get wrong with an asynchronous mode: `check` tells all of it at once, with a remedy that passes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from planning import PATHS, cluster, typed

from cloudrl import recipes
from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.draft import Machines, Snapshot
from cloudrl.jobs.findings import JobRefused, with_fix
from cloudrl.jobs.local_files import LocalFiles

ROLLOUT, HYBRID = "actor_rollout_ref.rollout", "actor_rollout_ref.hybrid_engine"
ENGINE, SAMPLER = f"{ROLLOUT}.checkpoint_engine", "trainer.v1.sampler"
BUCKET, BYPASS = f"{ENGINE}.update_weights_bucket_megabytes", "algorithm.rollout_correction.bypass_mode"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
SWITCH = "trainer.v1.separate_async.hybrid_rollout"
TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
REWARD, LORA = "reward.reward_model", "actor_rollout_ref.model"
CUPY = "pip install --no-deps cupy-cuda13x==14.0.1"
SPLIT: dict[str, Any] = {"rollout_nodes": 2}
GRPO = recipes.load("grpo")
RENTED = cluster(
    provider="dstack", nodes=4, gpu="H100:8", cpus_per_node=64, data=dict.fromkeys(GRPO.data, PATHS),
    models={str(GRPO.model): "/m"},
)  # fmt: skip
MACHINES, OWN_DISKS = Machines(setup=(CUPY,)), Machines(has_own_disks=True, setup=(CUPY,))


def checked(options: SubmitOptions, machines: Machines = MACHINES, **facts: Any) -> Submission:
    """What `check grpo --gpu H100:8 --nodes 4` plans for machines that it would rent."""
    now = datetime(2026, 11, 26, tzinfo=timezone.utc)
    view = replace(RENTED, **facts)
    snapshot = Snapshot(view, LocalFiles(Path("/nowhere")), is_expected=True, machines=machines, now=now)
    return plan_job(GRPO, options, snapshot)


class Mistake(NamedTuple):
    """Number of a mistake -> what is typed, and the message."""

    number: int
    words: tuple[str, ...]
    told: str
    fix: tuple[str, ...]
    options: dict[str, Any] = SPLIT


REFUSED = (
    Mistake(1, (f"{SYNC_STEP}=3",), "parameter_sync_step=3 times", (f"{SYNC_STEP}=4",)),
    Mistake(2, (f"{ROLLOUT}.nnodes=0",), f"{ROLLOUT}.nnodes=0",
            (f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.n_gpus_per_node=8")),
    Mistake(3, (f"{ENGINE}.backend=naive",), "cannot reach GPUs of another pool", (f"{ENGINE}.backend=nccl",)),
    Mistake(3, (f"{ENGINE}.backend=hccl",), "backend=hccl: verl has delta_sharded", (f"{ENGINE}.backend=nccl",)),
    Mistake(3, (f"{ENGINE}.backend=mine",), "backend=mine: verl has delta_sharded", (f"{ENGINE}.backend=nccl",)),
    Mistake(5, (f"{ROLLOUT}.nnodes=3",), "40 GPUs are needed (16 for training, 24 for the rollout)",
            ("trainer.nnodes=1",)),
    Mistake(6, (f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=2", f"{TENSOR}=4"), "one replica takes 4",
            (f"{TENSOR}=2",)),
    Mistake(7, ("trainer.nnodes=1", "trainer.n_gpus_per_node=2", f"{TENSOR}=4"), "do not divide the 2 of training",
            (f"{TENSOR}=2",)),
    Mistake(9, (f"{HYBRID}=False",), "a line of verl's log ends the job", (f"{HYBRID}=True",)),
    Mistake(11, (f"{LORA}.lora_rank=8",), "the adapter never reaches the rollout", (f"{LORA}.lora.merge=True",)),
    Mistake(12, (f"{REWARD}.enable=True", f"{REWARD}.model_path=/rm", f"{REWARD}.rollout.name=vllm"),
            "a reward model with GPUs of its own",
            (f"{REWARD}.enable_resource_pool=True", "trainer.nnodes=1", f"{REWARD}.nnodes=1",
             f"{REWARD}.n_gpus_per_node=8")),
    Mistake(13, (f"{SAMPLER}.max_off_policy_threshold=0",), "at least 1", (f"{SAMPLER}.max_off_policy_threshold=8",)),
    Mistake(13, (f"{SAMPLER}.max_off_policy_strategy=waits",), "drop, wait",
            (f"{SAMPLER}.max_off_policy_strategy=wait",)),
    Mistake(15, (f"{SWITCH}.enable_switch=True", f"{ROLLOUT}.disaggregation.enabled=True",
                 f"{ROLLOUT}.disaggregation.decode_replicas=1"), "exclude each other",
            (f"{SWITCH}.enable_switch=False",)),
    Mistake(15, (f"{SWITCH}.switch_threshold_ratio=0",), "not above 0", (f"{SWITCH}.switch_threshold_ratio=0.4",)),
    Mistake(15, (f"{SWITCH}.switch_cost_window_size=0",), "less than 1", (f"{SWITCH}.switch_cost_window_size=3",)),
)  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED, ids=lambda each: f"{each.number}-{each.words[0].rpartition('.')[2]}")
def test_what_cannot_run_is_refused_once_with_a_fix_that_passes(mistake: Mistake) -> None:
    overrides = typed(*mistake.words)
    with pytest.raises(JobRefused) as refusal:
        checked(SubmitOptions(overrides=overrides, **mistake.options))
    told = [finding.text for finding in refusal.value.findings]
    assert any(mistake.told in text for text in told), told
    assert set(mistake.fix) <= set(refusal.value.fix)
    assert refusal.value.rest == ()
    checked(SubmitOptions(overrides=with_fix(GRPO, overrides, refusal.value.fix), **mistake.options))


WARNED = (
    Mistake(6, (f"{ROLLOUT}.n_gpus_per_node=5", f"{TENSOR}=4"), "2 of 10 GPUs of the rollout stay idle",
            (f"{TENSOR}=2",)),
    Mistake(10, (f"{HYBRID}=False",), "is made for trainer.v1.trainer_mode=separate_async", (f"{HYBRID}=True",),
            {"asynchronous": True}),
    Mistake(14, (f"{SAMPLER}.max_off_policy_threshold=2",), "drops every prompt that was prefetched",
            (f"{SAMPLER}.max_off_policy_threshold=3",)),
    Mistake(16, (f"{SAMPLER}.custom_sampler.path=/x.py", f"{SAMPLER}.custom_sampler.name=Mine"),
            "takes the place of ReplayBufferAsync", (f"{SAMPLER}.custom_sampler.path=null",)),
    Mistake(20, ("trainer.nnodes=2",), "16 of the 32 GPUs of cluster 'lab' stay idle", ("trainer.nnodes=4",), {}),
)  # fmt: skip


@pytest.mark.parametrize("mistake", WARNED, ids=lambda each: str(each.number))
def test_what_is_wasted_is_a_warning_that_names_the_way_out(mistake: Mistake) -> None:
    def warnings(*words: str) -> list[str]:
        sent = checked(SubmitOptions(overrides=typed(*words), **mistake.options))
        return [text for text in sent.warnings if mistake.told in text]

    [told] = warnings(*mistake.words)
    assert all(word in told for word in mistake.fix), told
    assert warnings(*mistake.words, *mistake.fix) == []


def told(options: SubmitOptions, **given: Any) -> str:
    with pytest.raises(JobRefused) as refusal:
        checked(options, **given)
    return str(refusal.value)


def test_the_engine_that_needs_cupy_is_a_warning_unless_the_machines_install_it() -> None:
    """Mistake 4."""
    assert checked(SubmitOptions(**SPLIT)).warnings == ()
    [warning] = checked(SubmitOptions(**SPLIT), Machines()).warnings
    assert f"setup=[{CUPY}]" in warning


def test_machines_with_too_few_cpus_for_the_workers_of_their_gpus() -> None:
    """Mistake 8."""
    refusal = told(SubmitOptions(**SPLIT), cpus_per_node=20)
    assert "--set cpu=26.." in refusal
    assert "use_v1" not in refusal  # the older trainer has no such mode
    checked(SubmitOptions(**SPLIT), cpus_per_node=26)


def test_a_queue_that_cannot_be_saved() -> None:
    """Mistake 17."""
    own_path = SubmitOptions(env={"PYTHONPATH": "/mine"}, overrides={"trainer.save_freq": 5}, **SPLIT)
    refusal = told(own_path, machines=OWN_DISKS)
    assert "saves its queue into one folder that all nodes see" in refusal
    assert "--set volumes=[NAME:/checkpoints]" in refusal
    checked(own_path)


def test_shards_on_the_disks_of_nodes_that_need_not_train_again() -> None:
    assert checked(SubmitOptions(**SPLIT), OWN_DISKS).warnings == ()  # the job's command finds them
    older: dict[str, Any] = {"machines": OWN_DISKS, "places_training": False}
    [warning] = checked(SubmitOptions(**SPLIT), **older).warnings
    assert "Start the cluster again" in warning
    assert checked(SubmitOptions(rollout_nodes=1), **older, nodes=2, gpu_nodes=2).warnings == ()
    never = SubmitOptions(overrides={"trainer.save_freq": -1}, **SPLIT)
    assert warning not in checked(never, **older).warnings


def test_a_durable_job_with_rollout_nodes() -> None:
    durable: dict[str, Any] = {"durable": True, "overrides": {"trainer.save_freq": 5}, **SPLIT}
    plan = checked(SubmitOptions(**durable), OWN_DISKS).durable
    assert plan is not None
    assert (plan.world_size, plan.training_nodes, plan.is_placed) == (16, 2, True)
    older = told(SubmitOptions(**durable), machines=OWN_DISKS, divides_nodes=False)
    assert "the agents of cluster 'lab' are of an older release" in older
    own_program = SubmitOptions(env={"PYTHONPATH": "/mine"}, **durable)
    assert "the agents can choose the nodes only of `python3 -m verl.trainer.main_ppo`" in told(own_program)
    checked(own_program, shared_checkpoints=True)


def test_a_queue_has_as_many_units_on_every_cluster() -> None:
    """Mistake 18, which cannot be made by another choice of machines."""
    for cpus in (28, 64, 208):
        assert f"{UNITS}=2" in checked(SubmitOptions(**SPLIT), cpus_per_node=cpus).argv


def test_more_units_than_the_head_has_cpus_for() -> None:
    """Mistake 19."""
    many = {UNITS: 40}
    refusal = told(SubmitOptions(overrides=many, asynchronous=True), cpus_per_node=40)
    assert f"{UNITS}=40: the queue is on the head, where the workers leave 15 CPUs" in refusal
    assert f"{UNITS}=2" in refusal
    checked(SubmitOptions(overrides={UNITS: 2}, asynchronous=True), cpus_per_node=40)


def needs(term: str, **overrides: Any) -> set[float]:
    """GiB that a term has at the moments in which it is in memory."""
    report = checked(SubmitOptions(overrides=overrides, **SPLIT)).memory
    assert report is not None
    return {each.amount.likely for phase in report.estimate.phases for each in phase.terms if each.what == term}


def test_memory_for_weights_on_their_way_and_for_the_policy_before_the_step() -> None:
    """Mistake 21."""
    assert needs("buckets of new weights") == {4.0}  # on GPUs that train, and on those of the rollout
    assert needs("buckets of new weights", **{BUCKET: 512}) == {1.0}
    [policies] = needs("policy before the step")
    assert needs("policy before the step", **{SYNC_STEP: 1, MINI: 1024}) == {policies / 2}
    assert needs("policy before the step", **{BYPASS: True}) == set()


def test_a_cluster_is_divided_in_one_round() -> None:
    sent = checked(SubmitOptions(**SPLIT))
    assert {"trainer.nnodes=2", f"{ROLLOUT}.nnodes=2", f"{SYNC_STEP}=4"} <= set(sent.argv)
