"""Compose verl's configuration for lists of overrides, let verl validate it and compute an advantage and a loss by it.

Reads {case: [override, ...]} as JSON from standard input; answers {case: {...}} with an `error` where verl refuses.
"""

from __future__ import annotations

import json
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict
from omegaconf import base as references
from verl import DataProto
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.import_utils import load_extern_type

GROUPS, LENGTH = 2, 4
PARSER = OverridesParser.create()
references.parse = cache(references.parse)  # of a value with references, the same in most configurations
_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
PROFILED = (_ACTOR, _ROLLOUT, _REF, "critic")
SHOWN = (
    "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.device", "trainer.total_training_steps", "trainer.use_v1",
    "trainer.save_freq", "data.train_batch_size",
    "algorithm.adv_estimator", "critic.model.path", "critic.ppo_micro_batch_size_per_gpu",
    f"{_ACTOR}.ppo_mini_batch_size", f"{_ACTOR}.ppo_micro_batch_size_per_gpu", f"{_ACTOR}.use_dynamic_bsz",
    f"{_ACTOR}.policy_loss.loss_mode", f"{_ROLLOUT}.n", f"{_ROLLOUT}.name",
    f"{_ROLLOUT}.tensor_model_parallel_size", f"{_ROLLOUT}.agent.num_workers",
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz", f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{_REF}.log_prob_micro_batch_size_per_gpu",
)  # fmt: skip


def prepared() -> bytes:
    """verl's configuration without overrides, and without the profilers' references, most of all that there are."""
    base = compose(config_name="ppo_trainer")
    for role in PROFILED:
        OmegaConf.resolve(OmegaConf.select(base, f"{role}.profiler"))
    return pickle.dumps(base)


def composed(base: bytes, overrides: list[str]) -> Any:
    """What Hydra makes of the overrides. Its own last step on a copy: composing from the files takes a second."""
    config = pickle.loads(base)
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config([parsed(each) for each in overrides], config)
    return config


@cache
def parsed(override: str) -> Any:
    """Hydra's reading of one override, which takes it a hundredth of a second."""
    return PARSER.parse_override(override)


def batch(config: Any) -> DataProto:
    """Answers to two prompts with the fields that this configuration's trainer hands to the estimator."""
    answers = config.actor_rollout_ref.rollout.n
    rows = GROUPS * answers
    mask = torch.ones(rows, LENGTH)
    mask[0, LENGTH - 1 :] = 0
    rewards = torch.zeros(rows, LENGTH)
    rewards[0, LENGTH - 2], rewards[answers, LENGTH - 2] = 1.0, 0.5  # one good answer a prompt
    tensors = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "old_log_probs": torch.linspace(-2.0, -0.5, rows * LENGTH).reshape(rows, LENGTH),
    }
    if need_critic(config):
        tensors["values"] = torch.full((rows, LENGTH), 0.1)
    if not config.trainer.use_v1:  # the older trainer has more (ppo/ray_trainer.py: fit)
        if config.algorithm.adv_estimator == "remax":
            tensors["reward_baselines"] = torch.full((rows,), 0.5)
        if config.actor_rollout_ref.actor.calculate_sum_pi_squared:
            tensors["sum_pi_squared"] = torch.full((rows, LENGTH), 0.5)
    prompts = np.repeat([f"prompt {number}" for number in range(GROUPS)], answers).astype(object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": prompts})


def trained(config: Any, actor: Any) -> dict[str, float]:
    """The largest advantage and the loss's largest gradient, by verl's own functions."""
    data = compute_advantage(
        batch(config),
        adv_estimator=config.algorithm.adv_estimator,
        gamma=config.algorithm.gamma,
        lam=config.algorithm.lam,
        num_repeat=config.actor_rollout_ref.rollout.n,
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
        config=config.algorithm,
    ).batch
    log_prob = (data["old_log_probs"] + 1e-4).clone().requires_grad_()
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=data["old_log_probs"],
        log_prob=log_prob,
        advantages=data["advantages"],
        response_mask=data["response_mask"],
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
    )
    loss.backward()
    return {
        "advantage": float(data["advantages"].abs().max()),
        "gradient": float(log_prob.grad.abs().max()),
        "finite": bool(loss.detach().isfinite()),
    }


def as_actor(ref: Any) -> Any:
    """The reference model's keys under the names of an actor's (workers/engine_workers.py: init_model)."""
    with open_dict(ref):
        ref.ppo_micro_batch_size = ref.pop("log_prob_micro_batch_size")
        ref.ppo_micro_batch_size_per_gpu = ref.pop("log_prob_micro_batch_size_per_gpu")
        ref.use_dynamic_bsz = ref.pop("log_prob_use_dynamic_bsz")
        ref.ppo_max_token_len_per_gpu = ref.pop("log_prob_max_token_len_per_gpu")
    return ref


def accepted(config: Any) -> dict[str, Any]:
    """What verl understands, after its own validation and the conversions of its workers."""
    critic, reference = need_critic(config), need_reference_policy(config)
    OmegaConf.resolve(config)  # as verl does later (main_ppo.py: run); the conversions are quicker after it
    validate_config(config=config, use_reference_policy=reference, use_critic=critic)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    omega_conf_to_dataclass(config.algorithm)
    answer = {"critic": critic, "reference": reference, **trained(config, actor)}
    answer |= {key: OmegaConf.select(config, key) for key in SHOWN}
    if reward := get_custom_reward_fn(config):
        answer["score of a right answer"] = reward(solution_str="23", ground_truth="23")["score"]
    if (sampler := config.trainer.v1.sampler.custom_sampler).path:
        answer["sampler"] = load_extern_type(sampler.path, sampler.name).__module__
    if reference:
        omega_conf_to_dataclass(as_actor(config.actor_rollout_ref.ref))
    return answer


def main() -> None:
    folder = Path(verl.__file__).parent / "trainer" / "config"
    answers: dict[str, Any] = {}
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        base = prepared()
        for case, overrides in json.load(sys.stdin).items():
            try:
                answers[case] = accepted(composed(base, overrides))
            except Exception as error:  # noqa: BLE001 - whatever verl or Hydra says of it is the answer
                answers[case] = {"error": f"{type(error).__name__}: {error}"}
            else:
                last = overrides
        ours, theirs = composed(base, last), compose(config_name="ppo_trainer", overrides=last)
    same = OmegaConf.to_container(ours, resolve=True) == OmegaConf.to_container(theirs, resolve=True)
    print(json.dumps({"cases": answers, "same as compose": same}))


main()
