"""Batches and how they are divided over ranks and micro batches (verl 0.9.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cloudrl.verl.keys import ACTOR, CRITIC, REF, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import BATCH, MODE, SAMPLER, Setting


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
            yield Problem(
                f"{role}.{name}_per_gpu is not set", f"{role}.{name}_per_gpu={_share(setting, of_all)}{instead}"
            )
        elif of_each is not None and of_each == of_all and role == CRITIC:  # critic.yaml: one is the other's default
            yield Problem(
                f"{role}.{name}={of_all} gives {name}_per_gpu the same value, and verl takes only one of them",
                f"{role}.{name}_per_gpu={_share(setting, of_all)} {role}.{name}=null",
            )
        elif of_each is not None and of_all is not None:
            yield Problem(
                f"{role}.{name}={of_all} and {role}.{name}_per_gpu={of_each} are both set", f"{role}.{name}=null"
            )


def _share(setting: Setting, of_all: object) -> int:
    """A micro batch of each GPU, in place of one of all GPUs together."""
    return max(1, of_all // max(1, setting.world_size)) if isinstance(of_all, int) else 8


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
        instead = f"{role}.ppo_micro_batch_size_per_gpu={_share(setting, of_all)} {role}.ppo_micro_batch_size=null"
        if mini % of_all:
            text = f"{role}.ppo_mini_batch_size={mini} cannot be divided by ppo_micro_batch_size={of_all}"
            yield Problem(text, instead)
        spread = of_all * (setting.whole(f"{role}.ulysses_sequence_parallel_size") or 1)
        if setting.is_fsdp(role) and spread < setting.world_size:
            yield Problem(f"{role}.ppo_micro_batch_size={of_all} is less than the {setting.world_size} GPUs", instead)


def mini_batches_are_divided(setting: Setting) -> Iterator[Problem]:
    """workers/engine_workers.py: train_mini_batch; of the actor workers/engine/utils.py: prepare_micro_batches."""
    for role in setting.trained if setting.trains else ():
        mini, ranks, key = setting.whole(f"{role}.ppo_mini_batch_size"), setting.data_parallel(role), ""
        if mini is None or mini < 1 or not ranks:
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
    if actor != rollout and (actor or rollout):
        yield Problem(
            f"{ACTOR}.use_dynamic_bsz={actor} and {ROLLOUT}.log_prob_use_dynamic_bsz={rollout} differ",
            f"{ROLLOUT}.log_prob_use_dynamic_bsz={actor}",
        )


def _times_n(setting: Setting, key: str, size: int) -> str:
    """A number of prompts with that of their answers."""
    return f"{key}={size}" + (f" times {ROLLOUT}.n={setting.rollout_n}" if setting.rollout_n > 1 else "")


def _nearest(setting: Setting, size: int, parts: int) -> int:
    """The number of prompts, nearest below or the least one, whose answers can be divided."""
    step = parts // math.gcd(parts, setting.rollout_n)
    return max(step, size // step * step)


RULES = (
    batch_is_divided,
    micro_batches_are_given,
    mini_batches_fit,
    mini_batches_are_divided,
    log_probs_are_divided,
    dynamic_batches_agree,
)
