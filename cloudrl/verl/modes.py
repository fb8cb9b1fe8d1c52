"""What verl's trainer modes need of a cluster, and what they waste or lose; read in verl 0.9.1, trainer/ppo/v1.

The conditions that verl itself checks first are rules (`cloudrl.verl.rules`); these show minutes or hours later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from cloudrl.verl import keys
from cloudrl.verl.async_modes import ASYNC, BACKEND, MODULE, SEPARATE, as_typed, checkpoint_engine
from cloudrl.verl.keys import MODEL, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.pool_sizes import gpus_elsewhere
from cloudrl.verl.setting import MODE, SAMPLER, Setting

ENGINES = ("naive", "nccl", "nixl", "mooncake", "kimi_ckpt_engine", "delta_sharded")
"""checkpoint_engine/*.py: CheckpointEngineRegistry.register; rollout.yaml's `hccl` is registered as nccl."""
_WITH_CUPY = ("nccl", "nixl", "delta_sharded")
"""They import cupy (checkpoint_engine/nccl_checkpoint_engine.py), which no stable image of verl's has."""
_HYBRID = "actor_rollout_ref.hybrid_engine"
_QUIET = ("WARN", "WARNING", "ERROR", "CRITICAL")
_LOG_LEVEL = "VERL_LOGGING_LEVEL"


def mode_of(setting: Setting) -> str:
    """The trainer mode; `sync` with the older trainer."""
    return str(setting.get(MODE)) if setting.is_v1 else "sync"


def problems_of_mode(setting: Setting, variables: Mapping[str, str], *, on_cpu: bool) -> Iterator[Problem]:
    """What ends a job of an asynchronous mode once its models are loaded.

    Args:
        setting: the configuration.
        variables: of the job's environment.
        on_cpu: whether the nodes compute on CPUs.
    """
    if mode_of(setting) != SEPARATE:
        return
    if on_cpu and setting.get(BACKEND) in ENGINES and setting.get(BACKEND) != "naive" and not setting.get(MODULE):
        yield Problem(
            f"{BACKEND}={setting.get(BACKEND)}: verl has no checkpoint engine for CPUs",
            as_typed(checkpoint_engine(on_cpu=True)),
        )
    own_level = setting.get("ray_kwargs.ray_init.runtime_env.env_vars")
    levels = own_level if isinstance(own_level, Mapping) else {}
    level = str(levels.get(_LOG_LEVEL, variables.get(_LOG_LEVEL, ""))).upper()
    if setting.get(_HYBRID) is False and level not in _QUIET:
        # trainer_separate_async.py: Logger._log() got an unexpected keyword argument 'flush'
        yield Problem(
            f"{_HYBRID}=False: a line of verl's log ends the job once the models are loaded",
            f"{_HYBRID}=True\nOr keep that line out: --env {_LOG_LEVEL}=WARN",
        )
    if setting.lora_rank and not setting.get(f"{MODEL}.lora.merge"):  # engine_workers.py: update_weights
        yield Problem(
            f"LoRA without {MODEL}.lora.merge=True: in {SEPARATE} the adapter never reaches the rollout, which "
            "keeps answering with the base model",
            f"{MODEL}.lora.merge=True",
        )
    pool = _pool(setting)
    if 0 < pool < setting.replica:  # llm_server.py: _initialize_llm_servers counts whole replicas
        key = f"{ROLLOUT}.tensor_model_parallel_size"
        yield Problem(
            f"the rollout has {pool} GPUs of its own, and one replica takes {setting.replica}",
            f"{key}={pool}" if (setting.whole(key) or 1) == setting.replica else "",
        )
    elif setting.get(_HYBRID) and setting.world_size % setting.replica:  # engine_workers.py: init_model
        yield Problem(
            f"a replica of the rollout takes {setting.replica} GPUs, which do not divide the {setting.world_size} of "
            "training; verl has replicas there, too",
            f"{ROLLOUT}.tensor_model_parallel_size={math.gcd(setting.replica, setting.world_size)}"
            if setting.whole(f"{ROLLOUT}.tensor_model_parallel_size") == setting.replica
            else "",
        )


def _pool(setting: Setting) -> int:
    """GPUs that the rollout has for itself."""
    return (setting.whole(f"{ROLLOUT}.nnodes") or 0) * (setting.whole(f"{ROLLOUT}.n_gpus_per_node") or 0)


def warnings_of_mode(setting: Setting, *, has_cupy: bool = False) -> Iterator[str]:
    """What an asynchronous mode wastes, or does in vain.

    Args:
        setting: the configuration.
        has_cupy: whether the nodes are known to have the package.
    """
    mode, backend = mode_of(setting), setting.get(BACKEND)
    if mode != SEPARATE and setting.get(_HYBRID) is False:  # ppo_trainer.yaml, at that key
        yield f"{_HYBRID}=False is made for {MODE}={SEPARATE}, and {MODE} is {mode}. For this mode: {_HYBRID}=True"
    if mode not in ASYNC:
        return
    yield from _never_current(setting, mode)
    sampler = setting.get(SAMPLER)
    if sampler and not str(sampler).startswith("pkg://cloudrl."):  # trainer_base.py: _build_replay_buffer
        yield (
            f"{SAMPLER}={sampler} takes the place of ReplayBufferAsync: unless it extends that class, prompts that "
            f"fail or are too old are not replaced in {MODE}={mode}. verl's own: {SAMPLER}=null"
        )
    if mode != SEPARATE:
        return
    pool = _pool(setting)
    if pool > setting.replica and pool % setting.replica:  # llm_server.py counts whole replicas
        key = f"{ROLLOUT}.tensor_model_parallel_size"
        fitting = math.gcd(setting.replica, pool)
        way_out = f"{key}={fitting}" if setting.whole(key) == setting.replica else f"{key} and the like"
        yield (
            f"{pool % setting.replica} of {pool} GPUs of the rollout stay idle, as a replica takes {setting.replica}. "
            f"One that fits: {way_out}"
        )
    if backend in _WITH_CUPY and not has_cupy:
        yield (
            f"{BACKEND}={backend} imports cupy, which verl's images lack: "
            "--set 'setup=[pip install --no-deps cupy-cuda13x==14.0.1]'"
        )


def _never_current(setting: Setting, mode: str) -> Iterator[str]:
    """replay_buffer.py: a prompt counts as one step older than the weights that it was prefetched for."""
    key = "trainer.v1.sampler.max_off_policy_threshold"
    threshold, ahead = setting.whole(key), setting.get(f"trainer.v1.{mode}.num_warmup_batches")
    drops = setting.get("trainer.v1.sampler.max_off_policy_strategy") == "drop"
    if threshold is not None and drops and isinstance(ahead, (int, float)) and threshold < 2 + ahead:
        yield (
            f"{key}={threshold} drops every prompt that was prefetched, and generates it again, at each step. "
            f"The least that keeps them: {key}={math.ceil(2 + ahead)}"
        )


def idle_gpus(setting: Setting) -> int:
    """GPUs of the cluster that no pool of the job takes; 0 where more are wanted than there are."""
    return max(0, setting.cluster_gpus - setting.world_size - sum(gpus_elsewhere(setting).values()))


def warnings_of_steps(setting: Setting) -> Iterator[str]:
    """A run that trains nothing, or whose result nothing keeps."""
    for key, some in ((keys.STEPS, "null"), (keys.EPOCHS, 1)):
        count = setting.whole(key)
        if count is not None and count < 1:
            yield f"{key}={count}: the job ends without a step of training. To train: {key}={some}"
    every = setting.whole(keys.SAVE_FREQ)
    if every is not None and every < 1:
        yield (
            f"{keys.SAVE_FREQ}={every} never saves: the run can be neither resumed nor merged; "
            f"{keys.SAVE_FREQ}=1000000 saves the last step only"
        )
