"""What verl refuses of a configuration, and what its workers would find out minutes into a job; read in verl 0.9.1.

A rule looks at the composed configuration and at the GPUs of the cluster, and gives a `Problem` for each thing that
cannot work. Each names where verl checks it. A test holds those of verl's driver against verl's own validation.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudrl.verl.composition import Problem
from cloudrl.verl.setting import ACTOR, CRITIC, MODEL, REF, ROLLOUT, Setting

_BATCH, _MODE = "data.train_batch_size", "trainer.v1.trainer_mode"
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""workers/config/actor.py: ActorConfig."""
ADVANTAGES = (
    "gae", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "opo", "grpo_passk", "gpg",
    "rloo_vectorized", "grpo_vectorized", "optimal_token_baseline", "tir_optimal_token_baseline", "gdpo",
)  # fmt: skip
"""trainer/ppo/core_algos.py: register_adv_est."""
POLICY_LOSSES = (
    "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo",
    "bypass_mode",
)  # fmt: skip
"""trainer/ppo/core_algos.py: register_policy_loss."""
TRAINER_MODES = ("sync", "colocate_async", "separate_async")
"""trainer/ppo/v1: register_trainer."""
_MAX_LORA_RANK = 512
"""workers/rollout/vllm_rollout/utils.py: get_vllm_max_lora_rank."""


def problems(values: Mapping[str, Any], cluster_gpus: int) -> tuple[Problem, ...]:
    """All that cannot work in a configuration of verl 0.9.1, on a cluster with so many GPUs."""
    setting = Setting(values, cluster_gpus)
    return tuple(problem for rule in RULES for problem in rule(setting))


def notes(values: Mapping[str, Any]) -> tuple[str, ...]:
    """What may end a job that begins well."""
    setting = Setting(values, 0)
    lengths = [setting.whole(f"data.max_{each}_length") for each in ("prompt", "response")]
    found = []
    for role, key in ((ACTOR, "ppo_max_token_len_per_gpu"), (CRITIC, "ppo_max_token_len_per_gpu")):
        room, longest = setting.whole(f"{role}.{key}"), sum(each or 0 for each in lengths)
        if role not in setting.trained or not setting.get(f"{role}.use_dynamic_bsz") or room is None:
            continue
        if room * setting.sequence_parallel(role) < longest and None not in lengths:
            # utils/seqlen_balancing.py: rearrange_micro_batches
            found.append(f"{role}.{key}={room} is less than a prompt and an answer may have ({longest} tokens): the "
                         "first that is longer ends the job")  # fmt: skip
    return tuple(found)


def names_are_known(setting: Setting) -> Iterator[Problem]:
    """An unknown one is found after the first rollout, but for the first and the last."""
    has_more = bool(setting.get(f"{MODEL}.external_lib"))  # which may register its own
    for key, known, may_have_more in (
        (f"{ACTOR}.loss_agg_mode", LOSS_AGG_MODES, False),
        ("algorithm.adv_estimator", ADVANTAGES, has_more),
        (f"{ACTOR}.policy_loss.loss_mode", POLICY_LOSSES, has_more),
        (_MODE, TRAINER_MODES, has_more or not setting.is_v1),
    ):
        value = setting.get(key)
        if isinstance(value, str) and value not in known and not may_have_more:
            similar = difflib.get_close_matches(value, known, 1)
            yield Problem(f"{key}={value}: verl knows {', '.join(known)}", f"{key}={similar[0]}" if similar else "")


def batch_is_divided(setting: Setting) -> Iterator[Problem]:
    """utils/config.py: validate_config."""
    batch, gpus = setting.whole(_BATCH), setting.world_size
    if setting.get(f"{ACTOR}.use_dynamic_bsz") or batch is None:
        return
    least = gpus
    if setting.get(f"{ACTOR}.strategy") == "megatron":
        parallel = setting.megatron_parallel(ACTOR)
        if gpus % parallel:
            yield Problem(
                f"{gpus} GPUs cannot be divided by tensor, pipeline and context parallelism together ({parallel})"
            )
            return
        least = gpus // parallel * (setting.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or 1)
    if least and batch * setting.answers % least:
        step = least // math.gcd(least, setting.answers)
        yield Problem(
            f"{_BATCH}={batch} with {setting.answers} answers a prompt cannot be divided by {least}",
            f"{_BATCH}={_nearest(batch, step)}",
        )


def micro_batches_are_given(setting: Setting) -> Iterator[Problem]:
    """utils/config.py: validate_config; workers/config/actor.py and critic.py: __post_init__.

    That for all GPUs together is refused beside that for each, and without it by workers/engine_workers.py: init_model.
    """
    wanted = []
    if not setting.get(f"{ACTOR}.use_dynamic_bsz"):
        wanted = [(ACTOR, "ppo_micro_batch_size"), (ROLLOUT, "log_prob_micro_batch_size")]
        wanted += [(REF, "log_prob_micro_batch_size")] if setting.uses_reference else []
    if setting.uses_critic and not setting.get("critic.use_dynamic_bsz"):
        wanted.append((CRITIC, "ppo_micro_batch_size"))
    for role, name in wanted:
        of_all, of_each = (setting.get(f"{role}.{each}") for each in (name, f"{name}_per_gpu"))
        if of_each is None:
            yield Problem(f"{role}.{name}_per_gpu is not set", f"{role}.{name}_per_gpu=8")
        elif of_all is not None:
            yield Problem(
                f"{role}.{name}={of_all} and {role}.{name}_per_gpu={of_each} are both set", f"{role}.{name}=null"
            )


def updates_fit_the_batch(setting: Setting) -> Iterator[Problem]:
    """workers/config/actor.py and critic.py: validate."""
    batch = setting.whole(_BATCH)
    for role in setting.trained:
        update = setting.whole(f"{role}.ppo_mini_batch_size")
        if not setting.get(f"{role}.use_dynamic_bsz") and batch is not None and update is not None and batch < update:
            yield Problem(
                f"{role}.ppo_mini_batch_size={update} is more than {_BATCH}={batch}",
                f"{role}.ppo_mini_batch_size={batch}",
            )


def updates_are_divided(setting: Setting) -> Iterator[Problem]:
    """workers/engine_workers.py: train_mini_batch, and workers/engine/utils.py: prepare_micro_batches."""
    for role in setting.trained:
        update, parts = setting.whole(f"{role}.ppo_mini_batch_size"), setting.data_parallel(role)
        if not update or not parts:
            continue
        answers, step = update * setting.answers, parts // math.gcd(parts, setting.answers)
        fits = f"{role}.ppo_mini_batch_size={_nearest(update, step)}"
        if answers % parts:
            yield Problem(
                f"{role}.ppo_mini_batch_size={update} with {setting.answers} answers a prompt cannot be divided "
                f"over {parts} data-parallel ranks",
                fits,
            )
            continue
        micro = setting.whole(f"{role}.ppo_micro_batch_size_per_gpu")
        if micro and not setting.get(f"{role}.use_dynamic_bsz") and answers // parts % micro:
            size = next(each for each in range(micro, 0, -1) if answers // parts % each == 0)
            yield Problem(
                f"{answers // parts} answers an update and rank cannot be divided by "
                f"{role}.ppo_micro_batch_size_per_gpu={micro}",
                f"{role}.ppo_micro_batch_size_per_gpu={size}",
            )


def log_probs_are_divided(setting: Setting) -> Iterator[Problem]:
    """workers/engine/utils.py: prepare_micro_batches; trainer/ppo/v1/trainer_base.py: _balance_batch fills batches up.

    The number of answers of a step is known in mode `sync` alone, without groups that are filtered out.
    """
    parts, batch, mode = setting.data_parallel(ACTOR), setting.whole(_BATCH), setting.get(_MODE)
    is_fixed = setting.is_v1 and mode == "sync" and not setting.get("algorithm.filter_groups.enable")
    if not (parts and batch and is_fixed and setting.get("trainer.balance_batch")):
        return
    if setting.get(f"{ACTOR}.use_dynamic_bsz") or setting.get(f"{ACTOR}.use_prefix_grouper"):
        return
    updates = [(setting.whole(f"{role}.ppo_mini_batch_size") or 1) * setting.answers for role in setting.trained]
    if any(update % parts for update in updates):  # which is told already
        return
    multiple = math.lcm(parts, *updates)
    per_rank = -(-batch * setting.answers // multiple) * multiple // parts
    for role in (ROLLOUT, REF) if setting.uses_reference else (ROLLOUT,):
        micro = setting.whole(f"{role}.log_prob_micro_batch_size_per_gpu")
        if micro and not setting.get(f"{role}.log_prob_use_dynamic_bsz") and per_rank % micro:
            size = next(each for each in range(micro, 0, -1) if per_rank % each == 0)
            yield Problem(
                f"{per_rank} answers a step and rank cannot be divided by "
                f"{role}.log_prob_micro_batch_size_per_gpu={micro}",
                f"{role}.log_prob_micro_batch_size_per_gpu={size}",
            )


def dynamic_batches_agree(setting: Setting) -> Iterator[Problem]:
    """workers/engine_workers.py: init_model."""
    actor, rollout = setting.get(f"{ACTOR}.use_dynamic_bsz"), setting.get(f"{ROLLOUT}.log_prob_use_dynamic_bsz")
    if bool(actor) != bool(rollout):
        yield Problem(
            f"{ACTOR}.use_dynamic_bsz={actor} and {ROLLOUT}.log_prob_use_dynamic_bsz={rollout} differ",
            f"{ROLLOUT}.log_prob_use_dynamic_bsz={actor}",
        )


def sequences_are_split(setting: Setting) -> Iterator[Problem]:
    """workers/config/actor.py: FSDPActorConfig.validate; workers/engine/fsdp/transformer_impl.py."""
    for role in setting.trained:
        size = setting.sequence_parallel(role)
        key = f"{role}.ulysses_sequence_parallel_size"
        if setting.get(f"{role}.strategy") not in ("fsdp", "fsdp2") or size <= 1:
            continue
        if setting.world_size % size:
            yield Problem(f"{setting.world_size} GPUs cannot be divided by {key}={size}")
        model = MODEL if role == ACTOR else "critic.model"
        if not setting.get(f"{model}.use_remove_padding"):
            yield Problem(f"{key}={size} needs {model}.use_remove_padding", f"{model}.use_remove_padding=True")


def shards_are_whole(setting: Setting) -> Iterator[Problem]:
    """workers/engine/fsdp/utils.py: create_device_mesh."""
    for role, engine in ((ACTOR, "fsdp_config"), (CRITIC, "fsdp")):
        size = setting.whole(f"{role}.{engine}.fsdp_size")
        is_fsdp = setting.get(f"{role}.strategy") in ("fsdp", "fsdp2")
        if role in setting.trained and is_fsdp and size and 0 < size < setting.world_size and setting.world_size % size:
            yield Problem(f"{setting.world_size} GPUs cannot be divided by {role}.{engine}.fsdp_size={size}")


def rollout_is_possible(setting: Setting) -> Iterator[Problem]:
    """workers/config/rollout.py: __post_init__; workers/rollout/replica.py."""
    name = setting.get(f"{ROLLOUT}.name")
    tensor, data, pipeline = (
        setting.whole(f"{ROLLOUT}.{each}_parallel_size") or 1 for each in ("tensor_model", "data", "pipeline_model")
    )
    experts = setting.whole(f"{ROLLOUT}.expert_parallel_size") or 1
    if setting.get(f"{ROLLOUT}.mode") == "sync":
        yield Problem(f"{ROLLOUT}.mode=sync is gone", f"{ROLLOUT}.mode=async")
    if name != "trtllm" and experts > 1 and experts != tensor * data:
        yield Problem(
            f"{ROLLOUT}.expert_parallel_size={experts} is not tensor times data parallelism ({tensor * data})",
            f"{ROLLOUT}.expert_parallel_size={tensor * data}",
        )
    if pipeline > 1 and name in ("vllm", "sglang", "trtllm"):
        yield Problem(
            f"{ROLLOUT}.pipeline_model_parallel_size={pipeline}: verl has none with {name}",
            f"{ROLLOUT}.pipeline_model_parallel_size=1",
        )
    replica = tensor * data * pipeline
    if replica > setting.gpus_per_node and replica % setting.gpus_per_node:
        yield Problem(
            f"a replica of the rollout takes {replica} GPUs, which is no number of whole nodes with "
            f"{setting.gpus_per_node}"
        )
    if setting.get(f"{ROLLOUT}.val_kwargs.do_sample") and not (setting.get(f"{ROLLOUT}.temperature") or 0) > 0:
        yield Problem(
            f"{ROLLOUT}.val_kwargs.do_sample needs a temperature above 0", f"{ROLLOUT}.val_kwargs.do_sample=False"
        )
    rank = 0 if setting.get(f"{MODEL}.lora.merge") else _lora_rank(setting)
    if name == "vllm" and rank > _MAX_LORA_RANK:
        yield Problem(f"LoRA of rank {rank}: vLLM takes {_MAX_LORA_RANK} at most")


def _lora_rank(setting: Setting) -> int:
    """utils/config.py: validate_config."""
    rank = setting.whole(f"{MODEL}.lora.rank") or 0
    return rank if rank > 0 else setting.whole(f"{MODEL}.lora_rank") or 0


def pools_fit_the_cluster(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _init_resource_pool_mgr; verl waits for GPUs that there are not."""
    pools = {"training": setting.world_size}
    wanted = [("reward.reward_model", "the reward model", setting.get("reward.reward_model.enable_resource_pool"))]
    wanted.append(("distillation", "the teacher", setting.get("distillation.enabled")))
    if setting.is_v1 and setting.get(_MODE) == "separate_async":
        wanted.append((ROLLOUT, "the rollout", True))
    for section, what, is_wanted in wanted:
        if not is_wanted:
            continue
        nodes, gpus = (setting.whole(f"{section}.{each}") or 0 for each in ("nnodes", "n_gpus_per_node"))
        if nodes < 1 or gpus < 1:
            yield Problem(
                f"{what} has GPUs of its own, and {section}.nnodes={nodes}, n_gpus_per_node={gpus}",
                f"{section}.nnodes=1 {section}.n_gpus_per_node=1",
            )
        pools[what] = nodes * gpus
    if len(pools) > 1 and sum(pools.values()) > setting.cluster_gpus:
        parts = ", ".join(f"{gpus} for {what}" for what, gpus in pools.items())
        yield Problem(
            f"{sum(pools.values())} GPUs are needed ({parts}), and the cluster has {setting.cluster_gpus}",
            "Train on fewer: trainer.nnodes, trainer.n_gpus_per_node",
        )


def steps_apart_fit(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_separate_async.py: __init__; trainer_base.py: step and _resolve_filter_groups_metric."""
    if not setting.is_v1:
        return
    mode = str(setting.get(_MODE))
    every = setting.whole(f"trainer.v1.{mode}.parameter_sync_step") or 1
    batch, update = setting.whole(_BATCH) or 0, setting.whole(f"{ACTOR}.ppo_mini_batch_size") or 0
    if mode == "separate_async" and batch != every * update:
        yield Problem(
            f"{_BATCH}={batch} is not parameter_sync_step times ppo_mini_batch_size ({every} x {update})",
            f"{_BATCH}={every * update}",
        )
    if mode == "separate_async" and setting.get(f"{ROLLOUT}.checkpoint_engine.backend") == "naive":
        key = f"{ROLLOUT}.checkpoint_engine.backend"
        yield Problem(f"{key}=naive cannot reach GPUs of another pool", f"{key}=nccl")
    if mode != "separate_async" and batch % every:
        yield Problem(f"{_BATCH}={batch} cannot be divided by trainer.v1.{mode}.parameter_sync_step={every}")
    if setting.get("algorithm.filter_groups.enable") and not setting.get("algorithm.filter_groups.metric"):
        yield Problem("algorithm.filter_groups.enable needs a metric", "algorithm.filter_groups.metric=acc")


def resume_is_named(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _load_checkpoint."""
    path = setting.get("trainer.resume_from_path")
    if setting.get("trainer.resume_mode") == "resume_path" and "global_step_" not in str(path):
        yield Problem(f"trainer.resume_from_path={path} names no step", "trainer.resume_from_path=.../global_step_40")


RULES: tuple[Callable[[Setting], Iterator[Problem]], ...] = (
    names_are_known,
    batch_is_divided,
    micro_batches_are_given,
    updates_fit_the_batch,
    updates_are_divided,
    log_probs_are_divided,
    dynamic_batches_agree,
    sequences_are_split,
    shards_are_whole,
    rollout_is_possible,
    pools_fit_the_cluster,
    steps_apart_fit,
    resume_is_named,
)


def _nearest(size: int, step: int) -> int:
    """The multiple of a step that is nearest below, or the step."""
    return max(step, size // step * step)
