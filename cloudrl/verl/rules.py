"""What verl refuses of a configuration, and what its workers would find out minutes into a job; read in verl 0.9.1.

A rule looks at the composed configuration and at the GPUs of the cluster, and gives a `Problem` for each thing that
cannot work. Each names where verl checks it. A test holds those of verl's driver against verl's own validation.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator

from cloudrl.saves.names import OF_STEP, step_folder
from cloudrl.verl import keys
from cloudrl.verl.composition import Problem
from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, REF, ROLLOUT
from cloudrl.verl.setting import BATCH, MODE, SAMPLER, Setting

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
_OLDER_TRAINER = ("remax", "optimal_token_baseline", "tir_optimal_token_baseline")
"""They ask for what only trainer/ppo/ray_trainer.py hands over: a greedy answer, or sums of squares."""
RESUME_MODES = ("disable", "auto", "resume_path")
"""trainer/ppo/v1/trainer_base.py: _load_checkpoint."""
_MAX_LORA_RANK = 512
"""workers/rollout/vllm_rollout/utils.py: get_vllm_max_lora_rank."""
_REWARD, _TEACHER = "reward.reward_model", "distillation"


def problems(setting: Setting) -> tuple[Problem, ...]:
    """All that cannot work."""
    return tuple(problem for rule in RULES for problem in rule(setting))


def notes(setting: Setting) -> tuple[str, ...]:
    """What may end a job that begins well, and names that only code of the user's can know; a sentence each."""
    found = [f"{key}={value}: verl has none of that name; does your code bring it?"
             for key, value, similar in _unknown_names(setting) if setting.brings_code or not similar]  # fmt: skip
    room = setting.whole(f"{ACTOR}.ppo_max_token_len_per_gpu")
    lengths = [setting.whole(f"data.max_{each}_length") for each in ("prompt", "response")]
    if setting.get(f"{ACTOR}.use_dynamic_bsz") and room is not None and None not in lengths:
        longest, together = sum(filter(None, lengths)), room * setting.sequence_parallel(ACTOR)[1]
        if together < longest:  # utils/seqlen_balancing.py: rearrange_micro_batches
            found.append(
                f"{ACTOR}.ppo_max_token_len_per_gpu={room} is less than a prompt and an answer may have ({longest} "
                "tokens): the first that is longer ends the job"
            )
    return tuple(found)


def names_are_known(setting: Setting) -> Iterator[Problem]:
    """Most are looked up after the first rollout.

    Code or a package of the user's may register others: of those, only what is nearly one of verl's counts, and only
    where no such code is seen.
    """
    for key, names in ((f"{ACTOR}.loss_agg_mode", LOSS_AGG_MODES), (keys.RESUME_MODE, RESUME_MODES)):
        value = setting.get(key)
        if isinstance(value, str) and value not in names:
            similar = difflib.get_close_matches(value, names, 1)
            yield Problem(f"{key}={value}: verl has {', '.join(names)}", f"{key}={similar[0]}" if similar else "")
    for key, value, similar_name in _unknown_names(setting):
        if similar_name and not setting.brings_code:
            yield Problem(f"{key}={value}: verl has none of that name", f"{key}={similar_name}")


def _unknown_names(setting: Setting) -> Iterator[tuple[str, str, str]]:
    """Keys whose names may be registered: key, name, and the one of verl's that it nearly is."""
    choices: dict[str, tuple[str, ...]] = {MODE: TRAINER_MODES} if setting.is_v1 else {}
    if setting.trains:
        choices[keys.ESTIMATOR] = ADVANTAGES
    if setting.trains and ACTOR in setting.trained and not setting.get(f"{_TEACHER}.enabled"):
        choices[f"{ACTOR}.policy_loss.loss_mode"] = POLICY_LOSSES
    for key, names in choices.items():
        value = setting.get(key)
        if isinstance(value, str) and value not in names:
            yield key, value, next(iter(difflib.get_close_matches(value, names, 1, 0.75)), "")


def estimators_have_what_they_ask(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/core_algos.py: compute_gae_advantage_return, compute_remax_outcome_advantage, ..."""
    key, name = keys.ESTIMATOR, setting.get(keys.ESTIMATOR)
    if name == "gae" and setting.trains and not setting.uses_critic:
        yield Problem(f"{key}=gae needs a critic, and {keys.USES_CRITIC}=False", f"{keys.USES_CRITIC}=True")
    if name in _OLDER_TRAINER and setting.trains and setting.is_v1 and setting.get(MODE) in TRAINER_MODES:
        yield Problem(f"{key}={name} works with verl's older trainer alone", f"{keys.USE_V1}=False")


def batch_is_divided(setting: Setting) -> Iterator[Problem]:
    """utils/config.py: validate_config."""
    batch, gpus = setting.whole(BATCH), setting.world_size
    if setting.get(f"{ACTOR}.use_dynamic_bsz") or batch is None:
        return
    least = gpus
    if setting.get(f"{ACTOR}.strategy") == "megatron":
        shared = setting.megatron_parallel(ACTOR)
        if gpus % shared:
            yield Problem(
                f"{gpus} GPUs cannot be divided by tensor, pipeline and context parallelism together ({shared})"
            )
            return
        least = gpus // shared * (setting.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or 1)
    if least and batch * setting.rollout_n % least:
        yield Problem(f"{_times_n(setting, BATCH, batch)} cannot be divided by {least}",
                      f"{BATCH}={_nearest(setting, batch, least)}")  # fmt: skip


def micro_batches_are_given(setting: Setting) -> Iterator[Problem]:
    """utils/config.py: validate_config; workers/config/actor.py and critic.py; workers/engine_workers.py: init_model.

    The driver wants one of two keys. The workers read only that with `_per_gpu`, and none of the critic's; those of a
    reference only where it is a worker of its own and does not count tokens.
    """
    wanted = []
    if not setting.get(f"{ACTOR}.use_dynamic_bsz"):
        wanted = [(ACTOR, "ppo_micro_batch_size", True), (ROLLOUT, "log_prob_micro_batch_size", True)]
    is_own = REF in setting.built and not setting.get(f"{REF}.log_prob_use_dynamic_bsz")
    if setting.uses_reference and (wanted or is_own):
        wanted.append((REF, "log_prob_micro_batch_size", is_own and setting.trains))
    if setting.uses_critic and not setting.get(f"{CRITIC}.use_dynamic_bsz"):
        wanted.append((CRITIC, "ppo_micro_batch_size", False))
    for role, name, is_read in wanted:
        of_all, of_each = (setting.get(f"{role}.{each}") for each in (name, f"{name}_per_gpu"))
        if of_each is None and (of_all is None or is_read):
            instead = f" {role}.{name}=null" if of_all is not None else ""
            yield Problem(f"{role}.{name}_per_gpu is not set", f"{role}.{name}_per_gpu=8{instead}")
        elif of_each is not None and of_all is not None:
            yield Problem(
                f"{role}.{name}={of_all} and {role}.{name}_per_gpu={of_each} are both set", f"{role}.{name}=null"
            )


def mini_batches_fit(setting: Setting) -> Iterator[Problem]:
    """workers/config/actor.py and critic.py: validate."""
    batch = setting.whole(BATCH)
    for role in (ACTOR, CRITIC) if setting.uses_critic else (ACTOR,):
        mini = setting.whole(f"{role}.ppo_mini_batch_size")
        if setting.get(f"{role}.use_dynamic_bsz") or mini is None:
            continue
        if batch is not None and batch < mini:
            key = f"{role}.ppo_mini_batch_size"
            yield Problem(f"{key}={mini} is more than {BATCH}={batch}", f"{key}={batch}")
        of_all = setting.whole(f"{role}.ppo_micro_batch_size")
        if role != CRITIC or not of_all:  # the actor's is refused anyway
            continue
        if mini % of_all:
            yield Problem(f"{role}.ppo_mini_batch_size={mini} cannot be divided by ppo_micro_batch_size={of_all}")
        spread = of_all * (setting.whole(f"{role}.ulysses_sequence_parallel_size") or 1)
        if setting.is_fsdp(role) and spread < setting.world_size:
            yield Problem(f"{role}.ppo_micro_batch_size={of_all} is less than the {setting.world_size} GPUs")


def mini_batches_are_divided(setting: Setting) -> Iterator[Problem]:
    """workers/engine_workers.py: train_mini_batch; of the actor workers/engine/utils.py: prepare_micro_batches."""
    for role in setting.trained if setting.trains else ():
        mini, ranks, key = setting.whole(f"{role}.ppo_mini_batch_size"), setting.data_parallel(role), ""
        if not mini or not ranks:
            continue
        key, samples = f"{role}.ppo_mini_batch_size", mini * setting.rollout_n
        if samples % ranks:
            yield Problem(
                f"{_times_n(setting, key, mini)} cannot be divided over {ranks} data-parallel ranks",
                f"{key}={_nearest(setting, mini, ranks)}",
            )
            continue
        micro = setting.whole(f"{role}.ppo_micro_batch_size_per_gpu")
        if role == ACTOR and micro and not setting.get(f"{role}.use_dynamic_bsz"):
            yield from _micro(f"{role}.ppo_micro_batch_size_per_gpu", micro, samples // ranks, "mini batch")


def log_probs_are_divided(setting: Setting) -> Iterator[Problem]:
    """workers/engine/utils.py: prepare_micro_batches; trainer/ppo/v1/trainer_base.py: _balance_batch fills batches up.

    The samples of a step are counted in mode `sync` alone, where nothing is filtered out and verl's own sampler runs.
    """
    batch, ranks = setting.whole(BATCH), setting.data_parallel(ACTOR)
    is_counted = setting.is_v1 and setting.get(MODE) == "sync" and not setting.get("algorithm.filter_groups.enable")
    unknown = [SAMPLER, f"{ACTOR}.use_prefix_grouper", "data.custom_cls.path", "trainer.critic_warmup"]
    unknown += [f"{ROLLOUT}.agent.{each}" for each in ("agent_loop_manager_class", "agent_loop_config_path")]
    is_plain = not any(setting.get(key) for key in unknown)
    minis = [(setting.whole(f"{role}.ppo_mini_batch_size") or 1) * setting.rollout_n for role in setting.trained]
    if not (setting.trains and is_counted and is_plain and batch and ranks and setting.get("trainer.balance_batch")):
        return
    if any(mini % ranks for mini in minis):  # which another rule reports
        return
    multiple = math.lcm(ranks, *minis)
    samples = -(-batch * setting.rollout_n // multiple) * multiple
    in_actor = setting.uses_reference and setting.reference_is_actor
    roles = [] if setting.get("algorithm.rollout_correction.bypass_mode") and not in_actor else [(ROLLOUT, ranks)]
    if setting.uses_reference and not setting.reference_is_actor:
        roles.append((REF, setting.data_parallel(REF) or 0))
    for role, parts in roles:
        micro, is_dynamic = (
            setting.whole(f"{role}.log_prob_micro_batch_size_per_gpu"),
            setting.get(f"{role}.log_prob_use_dynamic_bsz"),
        )
        if micro and parts and samples % parts == 0 and not is_dynamic:
            yield from _micro(f"{role}.log_prob_micro_batch_size_per_gpu", micro, samples // parts, "step")


def _micro(key: str, micro: int, samples: int, of: str) -> Iterator[Problem]:
    if micro > 0 and samples % micro:
        size = next(each for each in range(min(micro, samples), 0, -1) if samples % each == 0)
        yield Problem(f"a {of} has {samples} samples on each rank, which {key}={micro} cannot divide", f"{key}={size}")


def dynamic_batches_agree(setting: Setting) -> Iterator[Problem]:
    """workers/engine_workers.py: init_model."""
    actor, rollout = setting.get(f"{ACTOR}.use_dynamic_bsz"), setting.get(f"{ROLLOUT}.log_prob_use_dynamic_bsz")
    if bool(actor) != bool(rollout):
        yield Problem(
            f"{ACTOR}.use_dynamic_bsz={actor} and {ROLLOUT}.log_prob_use_dynamic_bsz={rollout} differ",
            f"{ROLLOUT}.log_prob_use_dynamic_bsz={actor}",
        )


def sequences_are_split(setting: Setting) -> Iterator[Problem]:
    """workers/config/actor.py: FSDPActorConfig.validate; workers/engine/fsdp/transformer_impl.py: __init__."""
    for role in setting.built:
        key, size = setting.sequence_parallel(role)
        if not setting.is_fsdp(role) or size <= 1:
            continue
        if setting.world_size % size:
            yield Problem(f"{setting.world_size} GPUs cannot be divided by {key}={size}")
        model = "critic.model" if role == CRITIC else MODEL
        if not setting.get(f"{model}.use_remove_padding"):
            yield Problem(f"{key}={size} needs {model}.use_remove_padding", f"{model}.use_remove_padding=True")


def shards_are_whole(setting: Setting) -> Iterator[Problem]:
    """workers/engine/fsdp/utils.py: create_device_mesh."""
    for role in setting.built:
        key = f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}.fsdp_size"
        size = setting.whole(key)
        if setting.is_fsdp(role) and size and 0 < size < setting.world_size and setting.world_size % size:
            yield Problem(f"{setting.world_size} GPUs cannot be divided by {key}={size}")


def rollout_is_possible(setting: Setting) -> Iterator[Problem]:
    """workers/config/rollout.py: __post_init__; utils/config.py: validate_config."""
    name, temperature = setting.get(f"{ROLLOUT}.name"), setting.get(f"{ROLLOUT}.temperature")
    tensor, data, pipeline, experts = (
        setting.whole(f"{ROLLOUT}.{each}_parallel_size") or 1
        for each in ("tensor_model", "data", "pipeline_model", "expert")
    )
    if name == "???":
        yield Problem(f"{ROLLOUT}.name is not set", f"{ROLLOUT}.name=vllm")
    if setting.get(f"{ROLLOUT}.mode") == "sync":
        yield Problem(f"{ROLLOUT}.mode=sync is gone", f"{ROLLOUT}.mode=async")
    if name != "trtllm" and experts > 1 and experts != tensor * data:
        key = f"{ROLLOUT}.expert_parallel_size"
        yield Problem(
            f"{key}={experts} is not tensor times data parallelism ({tensor * data})", f"{key}={tensor * data}"
        )
    if pipeline > 1 and name in ("vllm", "sglang", "trtllm"):
        key = f"{ROLLOUT}.pipeline_model_parallel_size"
        yield Problem(f"{key}={pipeline}: verl has none with {name}", f"{key}=1")
    is_greedy = isinstance(temperature, (int, float)) and temperature <= 0
    if setting.get(f"{ROLLOUT}.val_kwargs.do_sample") and is_greedy:
        key = f"{ROLLOUT}.val_kwargs.do_sample"
        yield Problem(f"{key} needs {ROLLOUT}.temperature above 0", f"{key}=False")
    rank = 0 if setting.get(f"{MODEL}.lora.merge") else setting.lora_rank
    if name == "vllm" and rank > _MAX_LORA_RANK:
        yield Problem(f"LoRA of rank {rank}: vLLM takes {_MAX_LORA_RANK} at most")


def replicas_fit(setting: Setting) -> Iterator[Problem]:
    """workers/rollout/replica.py: __init__; workers/engine_workers.py: init_model, where training has the GPUs too."""
    replica, per_node = setting.replica, setting.whole(f"{ROLLOUT}.n_gpus_per_node") or setting.gpus_per_node
    if replica > per_node and replica % per_node:
        yield Problem(f"a replica of the rollout takes {replica} GPUs, not a number of whole nodes with {per_node}")
        return
    has_own_gpus = setting.whole(f"{ROLLOUT}.nnodes") or setting.get(f"{ROLLOUT}.disaggregation.enabled")
    if not has_own_gpus and setting.world_size % replica:
        key = f"{ROLLOUT}.tensor_model_parallel_size"
        room, rest = divmod(setting.world_size, replica // max(1, setting.whole(key) or 1))
        fits = 0 if rest else next(size for size in range(min(replica, room), 0, -1) if room % size == 0)
        yield Problem(f"a replica of the rollout takes {replica} GPUs, which do not divide {setting.world_size}",
                      f"{key}={fits}" if fits else "")  # fmt: skip


def pools_fit_the_cluster(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _init_resource_pool_mgr; verl waits for GPUs that there are not."""
    pools, wanted = {"training": setting.world_size}, []
    if setting.get(f"{_REWARD}.enable_resource_pool"):
        wanted.append((_REWARD, "the reward model"))
    if setting.get(f"{_TEACHER}.enabled"):
        wanted.append((_TEACHER, "the teacher"))
    if setting.is_v1 and setting.get(MODE) == "separate_async":
        wanted.append((ROLLOUT, "the rollout"))
    for section, what in wanted:
        nodes, gpus = (setting.whole(f"{section}.{each}") or 0 for each in ("nnodes", "n_gpus_per_node"))
        if nodes < 1 or gpus < 1:
            yield Problem(
                f"{what} has GPUs of its own, and {section}.nnodes={nodes}, n_gpus_per_node={gpus}",
                f"{section}.nnodes=1 {section}.n_gpus_per_node={gpus or setting.gpus_per_node}",
            )
        pools[what] = max(0, nodes) * max(0, gpus)
        if section == ROLLOUT:  # of whole replicas
            pools[what] -= pools[what] % setting.replica
    if len(pools) > 1 and sum(pools.values()) > setting.cluster_gpus:
        parts = ", ".join(f"{gpus} for {what}" for what, gpus in pools.items())
        yield Problem(
            f"{sum(pools.values())} GPUs are needed ({parts}), and the cluster has {setting.cluster_gpus}",
            f"Train on fewer: {keys.NODES}, {keys.GPUS}",
        )


def async_steps_fit(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_separate_async.py: __init__."""
    if not setting.is_v1 or setting.get(MODE) != "separate_async":
        return
    every = setting.whole("trainer.v1.separate_async.parameter_sync_step")
    batch, mini = setting.whole(BATCH), setting.whole(f"{ACTOR}.ppo_mini_batch_size")
    if None not in (every, batch, mini) and batch != every * mini:  # type: ignore[operator]
        yield Problem(
            f"{BATCH}={batch} is not parameter_sync_step={every} times {ACTOR}.ppo_mini_batch_size={mini}",
            f"{BATCH}={every * mini}",  # type: ignore[operator]
        )
    if setting.get(f"{ROLLOUT}.checkpoint_engine.backend") == "naive":
        key = f"{ROLLOUT}.checkpoint_engine.backend"
        yield Problem(f"{key}=naive cannot reach GPUs of another pool", f"{key}=nccl")
    if setting.get(f"{_REWARD}.enable") and not setting.get(f"{_REWARD}.enable_resource_pool"):
        key = f"{_REWARD}.enable_resource_pool"
        yield Problem(f"{MODE}=separate_async needs a reward model with GPUs of its own", f"{key}=True")


def filtering_is_possible(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _resolve_filter_groups_metric; a custom sampler has its own ways."""
    section = "algorithm.filter_groups"
    if not setting.is_v1 or setting.get(SAMPLER) or not setting.get(f"{section}.enable"):
        return
    if not setting.get(f"{section}.metric"):
        yield Problem(f"{section}.enable needs a metric", f"{section}.metric=reward")
    if setting.get(f"{_REWARD}.enable") and not setting.get(f"{_REWARD}.enable_resource_pool"):
        yield Problem(f"{section}.enable needs rewards before it samples", f"{_REWARD}.enable_resource_pool=True")


def resume_is_named(setting: Setting) -> Iterator[Problem]:
    """trainer/ppo/v1/trainer_base.py: _load_checkpoint."""
    path = setting.get(keys.RESUME_FROM)
    if setting.get(keys.RESUME_MODE) == "resume_path" and OF_STEP not in str(path):
        yield Problem(f"{keys.RESUME_FROM}={path} names no step", f"{keys.RESUME_FROM}=.../{step_folder('.', 40)}")


RULES: tuple[Callable[[Setting], Iterator[Problem]], ...] = (
    names_are_known,
    estimators_have_what_they_ask,
    batch_is_divided,
    micro_batches_are_given,
    mini_batches_fit,
    mini_batches_are_divided,
    log_probs_are_divided,
    dynamic_batches_agree,
    sequences_are_split,
    shards_are_whole,
    rollout_is_possible,
    replicas_fit,
    pools_fit_the_cluster,
    async_steps_fit,
    filtering_is_possible,
    resume_is_named,
)


def _times_n(setting: Setting, key: str, size: int) -> str:
    """A number of prompts with that of their answers."""
    return f"{key}={size}" + (f" times {ROLLOUT}.n={setting.rollout_n}" if setting.rollout_n > 1 else "")


def _nearest(setting: Setting, size: int, parts: int) -> int:
    """The number of prompts, nearest below or the least one, whose answers can be divided."""
    step = parts // math.gcd(parts, setting.rollout_n)
    return max(step, size // step * step)
