"""GPUs for each part of a run, the trainer's modes, and where it resumes (verl 0.9.1)."""

from __future__ import annotations

from collections.abc import Iterator

from cloudrl.saves.names import OF_STEP, step_folder
from cloudrl.verl import keys
from cloudrl.verl.async_modes import (
    BACKEND,
    MINI_BATCH,
    SEPARATE,
    SYNC_STEP,
    as_typed,
    checkpoint_engine,
    fitting_updates,
)
from cloudrl.verl.keys import ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.pool_sizes import pool_of_its_own, smaller_training
from cloudrl.verl.setting import BATCH, MODE, SAMPLER, Setting

_REWARD, _TEACHER = "reward.reward_model", "distillation"


def pools_fit_the_cluster(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _init_resource_pool_mgr; verl waits for GPUs that there are not."""
    pools, wanted = {"training": setting.world_size}, []
    if setting.get(f"{_REWARD}.enable_resource_pool"):
        wanted.append((_REWARD, "the reward model"))
    if setting.get(f"{_TEACHER}.enabled"):
        wanted.append((_TEACHER, "the teacher"))
    if setting.is_v1 and setting.get(MODE) == SEPARATE:
        wanted.append((ROLLOUT, "the rollout"))
    for section, what in wanted:
        nodes, gpus = (setting.whole(f"{section}.{each}") or 0 for each in ("nnodes", "n_gpus_per_node"))
        if nodes < 1 or gpus < 1:
            given = ", ".join(f"{each}={setting.get(f'{section}.{each}')}" for each in ("nnodes", "n_gpus_per_node"))
            yield Problem(f"{what} has GPUs of its own, and {section}.{given}", pool_of_its_own(setting, section))
        pools[what] = max(0, nodes) * max(0, gpus)
        if section == ROLLOUT:  # of whole replicas
            pools[what] -= pools[what] % setting.replica
    if len(pools) > 1 and sum(pools.values()) > setting.cluster_gpus:
        parts = ", ".join(f"{gpus} for {what}" for what, gpus in pools.items())
        yield Problem(
            f"{sum(pools.values())} GPUs are needed ({parts}), and the cluster has {setting.cluster_gpus}",
            smaller_training(setting, sum(pools.values()) - pools["training"]),
        )


def async_steps_fit(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_separate_async.py: __init__."""
    if not setting.is_v1 or setting.get(MODE) != SEPARATE:
        return
    every = setting.whole(SYNC_STEP)
    batch, mini = setting.whole(BATCH), setting.whole(MINI_BATCH)
    if every is not None and batch is not None and mini is not None and batch != every * mini:
        yield Problem(
            f"{BATCH}={batch} is not parameter_sync_step={every} times {MINI_BATCH}={mini}",
            as_typed(fitting_updates(batch, mini)),
        )
    if setting.get(BACKEND) == "naive":
        engine = checkpoint_engine(on_cpu=setting.get(keys.DEVICE) == "cpu")
        yield Problem(
            f"{BACKEND}=naive cannot reach GPUs of another pool",
            as_typed(engine),
        )
    if setting.get(f"{_REWARD}.enable") and not setting.get(f"{_REWARD}.enable_resource_pool"):
        yield Problem(f"{MODE}={SEPARATE} needs a reward model with GPUs of its own", _reward_pool(setting))


def switches_are_possible(setting: Setting) -> Iterator[Problem]:
    """trainer/config/config.py: HybridRolloutSwitchConfig."""
    if not setting.is_v1 or setting.get(MODE) != SEPARATE:
        return
    section = "trainer.v1.separate_async.hybrid_rollout"
    ratio, window = f"{section}.switch_threshold_ratio", f"{section}.switch_cost_window_size"
    share, steps = setting.get(ratio), setting.whole(window)
    if isinstance(share, (int, float)) and not 0 < share <= 1:
        yield Problem(f"{ratio}={share} is not above 0 and at most 1", f"{ratio}=0.4")
    if steps is not None and steps < 1:
        yield Problem(f"{window}={steps} is less than 1", f"{window}=3")


def generated_batches_fit(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _next_train_batch, step."""
    batch, generated = setting.whole(BATCH), setting.whole("data.gen_batch_size")
    if setting.counts_generated and batch and generated and generated > 0 and batch % generated:
        yield Problem(
            f"{BATCH}={batch} cannot be divided by data.gen_batch_size={generated}", "data.gen_batch_size=null"
        )
    mode = setting.get(MODE)
    key = f"trainer.v1.{mode}.parameter_sync_step"
    every = setting.whole(key)
    if setting.is_v1 and mode != SEPARATE and batch and every and every > 0 and batch % every:
        yield Problem(f"{BATCH}={batch} cannot be divided by {key}={every}", f"{key}=1")


def filtering_is_possible(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _resolve_filter_groups_metric; a custom sampler has its own ways."""
    section = "algorithm.filter_groups"
    if not setting.is_v1 or setting.get(SAMPLER) or not setting.get(f"{section}.enable"):
        return
    if not setting.get(f"{section}.metric"):
        yield Problem(f"{section}.enable needs a metric", f"{section}.metric=reward")
    if setting.get(f"{_REWARD}.enable") and not setting.get(f"{_REWARD}.enable_resource_pool"):
        yield Problem(f"{section}.enable needs rewards before it samples", _reward_pool(setting))


def _reward_pool(setting: Setting) -> str:
    """Overrides that give the reward model GPUs of its own."""
    sizes = "" if setting.whole(f"{_REWARD}.nnodes") else pool_of_its_own(setting, _REWARD)
    return f"{_REWARD}.enable_resource_pool=True {sizes}".rstrip()


def resume_is_named(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _load_checkpoint."""
    path = setting.get(keys.RESUME_FROM)
    if setting.get(keys.RESUME_MODE) == "resume_path" and OF_STEP not in str(path):
        yield Problem(f"{keys.RESUME_FROM}={path} names no step", f"{keys.RESUME_FROM}=.../{step_folder('.', 40)}")


RULES = (
    pools_fit_the_cluster,
    async_steps_fit,
    switches_are_possible,
    filtering_is_possible,
    resume_is_named,
    generated_batches_fit,
)
