"""What a configuration means on its cluster: idle GPUs, saves that get lost, variables that break workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning import cluster, job, typed

from cloudrl.errors import InputError
from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.draft import Machines, Snapshot
from cloudrl.jobs.findings import Finding, JobRefused
from cloudrl.jobs.local_files import LocalFiles
from cloudrl.jobs.run_checks import check_variables
from cloudrl.verl.memory.runs import RunMemory

ASYNC = "trainer.v1.trainer_mode=colocate_async"


def checked(*overrides: str, machines: Machines | None = None, **changes: Any) -> Submission:
    options = SubmitOptions(
        overrides=typed(*overrides), unchecked=changes.pop("unchecked", False), env=changes.pop("env", {})
    )
    return plan_job(job(), options, Snapshot(cluster(**changes), LocalFiles(Path("/nowhere")), machines=machines))


def test_gpus_that_are_paid_for_and_not_used() -> None:
    [warning] = checked("trainer.nnodes=1", machines=Machines(price_per_hour=40.0)).warnings
    assert warning.startswith(
        "8 of the 16 GPUs of cluster 'lab' stay idle, $20.00 an hour: the job takes trainer.nnodes=1"
    )
    [warning] = checked("trainer.nnodes=1").warnings
    assert "an hour" not in warning
    assert checked().warnings == ()


def test_a_queue_that_is_not_on_the_head_is_saved_where_all_nodes_see_it() -> None:
    own, shared = {"machines": Machines(has_own_disks=True), "provider": "dstack"}, Machines()
    path = {"PYTHONPATH": "/mine"}
    with pytest.raises(InputError, match="its first save fails") as caught:
        checked(ASYNC, env=path, **own)
    assert "--set volumes=" in str(caught.value.hint)
    assert any("its first save fails" in text for text in checked(ASYNC, env=path, unchecked=True, **own).warnings)
    assert checked(ASYNC, **own).warnings == ()
    assert checked(ASYNC, machines=shared).warnings == ()
    assert checked(ASYNC, env=path, nodes=1, **own).warnings == ()
    never = checked(ASYNC, "trainer.save_freq=-1", env=path, **own)
    assert [text.partition(" ")[0] for text in never.warnings] == ["trainer.save_freq=-1"]


@pytest.mark.parametrize(
    ("override", "end"),
    [
        ("custom_reward_function.path=/x/r.py", "reads: reward.custom_reward_function.path=/x/r.py"),
        ("reward_model.reward_manager=dapo", "reads: reward.reward_manager.name=dapo"),
        ("reward_model.rollout.name=vllm", "reads: reward.reward_model.rollout.name=vllm"),
        ("+reward_model.reward_kwargs.max_resp_len=9", "reads: +reward.reward_kwargs.max_resp_len=9"),
        ("actor_rollout_ref.actor.grad_clip=0.5", "reads: actor_rollout_ref.actor.optim.clip_grad=0.5"),
        ("actor_rollout_ref.actor.freeze_vision_tower=True", "verl 0.9.1 does not read it"),
        ("data.truncation=lft", "verl 0.9.1 does not read it"),
        ("trainer.esi_redundant_time=60", "trainer.use_v1=False"),
        ("actor_rollout_ref.actor.checkpoint.async_save=True", "actor_rollout_ref.actor.checkpoint.async_save=False"),
    ],
)
def test_settings_without_the_effect_that_they_promise(override: str, end: str) -> None:
    [warning] = checked(override).warnings
    assert warning.startswith(override.lstrip("+").partition("=")[0])
    assert warning.endswith(end)


def test_all_settings_of_a_kind_are_one_warning() -> None:
    buffer = "reward_kwargs.overlong_buffer_cfg"
    [warning] = checked("reward_model.reward_manager=dapo", f"+reward_model.{buffer}={{enable: true, len: 9}}").warnings
    assert warning == (
        f"reward_model.reward_manager, reward_model.{buffer} have no effect: verl 0.9.1 does not read them. What it "
        f"reads: reward.reward_manager.name=dapo '+reward.{buffer}={{enable: true, len: 9}}'"
    )


@pytest.mark.parametrize("text", ["api_key=sk-live-123456789", "api_key: sk-live-123456789"])
def test_no_warning_shows_a_secret(text: str) -> None:
    section = "+custom_reward_function.reward_kwargs"
    override = f"{section}.{text}" if "=" in text else f"{section}={{{text}}}"
    [warning] = checked(override).warnings
    assert "sk-live" not in warning
    assert "+reward.custom_reward_function.reward_kwargs" in warning
    assert "***" in warning


def test_no_warning_where_the_setting_is_verls_own_or_given_in_the_place_that_is_read() -> None:
    clip = "actor_rollout_ref.actor.grad_clip"
    assert checked(f"{clip}=1.0", "custom_reward_function.path=null").warnings == ()
    assert checked(f"{clip}=0.5", "actor_rollout_ref.actor.optim.clip_grad=0.5").warnings == ()


def test_nodes_that_each_keep_their_part_of_a_checkpoint() -> None:
    [note] = checked(machines=Machines(has_own_disks=True)).notes
    assert note.startswith("each of the 2 nodes keeps its part of a checkpoint on its own disk")
    assert checked(machines=Machines(has_own_disks=True), nodes=1).notes == ()


def test_a_first_save_after_the_money() -> None:
    made, facts = job(), cluster(gpu="H100:8", nodes=1)
    machines = Machines(price_per_hour=40.0, max_cost=40.0)

    def warnings(*words: str, run: RunMemory | None = None) -> tuple[str, ...]:
        options = SubmitOptions(overrides=typed(*words))
        snapshot = Snapshot(facts, LocalFiles(Path("/nowhere")), machines=machines, runs=(run,) if run else ())
        return plan_job(made, options, snapshot).warnings

    run = RunMemory("grpo-1", "grpo", str(made.model), "1 x 8 x H100 of 80 GB", step_s=60.0)
    [text] = warnings("trainer.save_freq=100", run=run)
    assert text.endswith("(--max-cost) last 1 h 00 min. In time: trainer.save_freq=30")
    assert warnings("trainer.save_freq=30", run=run) == ()
    assert warnings("trainer.save_freq=100") == ()
    assert warnings("trainer.save_freq=100", run=replace(run, shape="2 x 8 x H100 of 80 GB")) == ()


def test_a_run_shorter_than_its_frequencies() -> None:
    words = ("trainer.total_training_steps=20", "trainer.save_freq=50", "trainer.test_freq=50")
    done = checked(*words)
    assert [text.partition(" is more")[0] for text in done.warnings] == ["trainer.save_freq=50"]
    assert [text.partition(" is more")[0] for text in done.notes] == ["trainer.test_freq=50"]
    early = checked(words[0], "trainer.save_freq=5")
    assert (early.warnings, early.notes) == ((), ())


@pytest.mark.parametrize(
    ("variables", "refused", "said"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}, True, "refuse the two together"),
        ({"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, True, "refuse the two together"),
        ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, True, "refuse two values"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, False, "Ray gives each worker its GPUs"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, False, "Ray gives each worker its GPUs"),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, False, "holds for all nodes"),
    ],
)
def test_variables_that_break_workers(variables: dict[str, str], refused: bool, said: str) -> None:
    [remark] = check_variables(variables)
    assert isinstance(remark, Finding) == refused
    assert said in (remark.text if isinstance(remark, Finding) else remark)


@pytest.mark.parametrize(
    ("vendor", "variables", "refused", "said"),
    [
        ("amd", {"CUDA_VISIBLE_DEVICES": "0,1"}, True, "for GPUs of AMD Ray sets HIP_VISIBLE_DEVICES"),
        ("amd", {"ROCR_VISIBLE_DEVICES": "0,1"}, True, "for GPUs of AMD Ray sets HIP_VISIBLE_DEVICES"),
        ("amd", {"HIP_VISIBLE_DEVICES": "0,1"}, False, "Ray gives each worker its GPUs"),
        ("nvidia", {"HIP_VISIBLE_DEVICES": "0,1"}, True, "for GPUs of NVIDIA Ray sets CUDA_VISIBLE_DEVICES"),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1"}, False, "Ray gives each worker its GPUs"),
        ("nvidia", {"HSA_NO_SCRATCH_RECLAIM": "1", "NCCL_DEBUG": "INFO"}, False, "GPUs of NVIDIA: HSA_NO_"),
        ("amd", {"NCCL_NVLS_ENABLE": "1", "HSA_NO_SCRATCH_RECLAIM": "1"}, False, "GPUs of AMD: NCCL_NVLS_ENABLE;"),
        (None, {"NCCL_IB_HCA": "mlx5_0"}, False, "adapters may have other names"),
    ],
)  # fmt: skip
def test_variables_for_gpus_of_another_vendor(vendor, variables, refused, said) -> None:
    [remark] = check_variables(variables, vendor)
    assert isinstance(remark, Finding) == refused
    assert said in (remark.text if isinstance(remark, Finding) else remark)
    if isinstance(remark, Finding):
        assert list(check_variables(dict.fromkeys(variables, ""), vendor)) == [], "what the hint says"


def test_devices_that_ray_does_not_set_are_the_users() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "0", "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1"}
    [remark] = check_variables(own, "amd")
    assert not isinstance(remark, Finding)


def test_the_vendor_is_that_of_the_cluster() -> None:
    def findings(gpu: str) -> list[str]:
        options = SubmitOptions(env={"CUDA_VISIBLE_DEVICES": "0"})
        try:
            plan_job(job(), options, Snapshot(cluster(gpu=gpu), LocalFiles(Path("/nowhere"))))
        except JobRefused as refused:
            return [each.text for each in refused.findings]
        return []

    assert len(findings("MI300X:8")) == 1
    assert findings("80GB..:8") == findings("H100:8") == []


def test_other_variables_are_the_users() -> None:
    assert list(check_variables({"NCCL_DEBUG": "INFO", "A": "b"})) == []
