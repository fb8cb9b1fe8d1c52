"""Compose verl's configuration for a model and the recipes given by name, let verl validate it, print it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.import_utils import load_extern_type

from cloudrl.recipes import load


def composed(name: str, nodes: int) -> Any:
    """What verl's main_ppo gets, with the fields that the cluster gives filled in."""
    recipe = load(name)
    given = {
        "trainer.nnodes": nodes,
        "trainer.n_gpus_per_node": 1,
        "actor_rollout_ref.model.path": sys.argv[1],
        "critic.model.path": sys.argv[1],
        "trainer.default_local_dir": "/checkpoints",
    }
    words = [f"{key}={value}" for key, value in {**recipe.overrides, **given}.items()]
    return compose(config_name="ppo_trainer", overrides=words)


def meaning(config: Any) -> dict[str, Any]:
    sampler = config.trainer.v1.sampler.custom_sampler
    reward = get_custom_reward_fn(config)
    return {
        "algorithm": config.algorithm.adv_estimator,
        "device": config.trainer.device,
        "critic": need_critic(config),
        "sampler": load_extern_type(sampler.path, sampler.name).__module__,
        "score of a right answer": reward("", "23", "23")["score"],
        "steps": config.trainer.total_training_steps,
        "save_freq": config.trainer.save_freq,
    }


def main() -> None:
    folder = Path(verl.__file__).parent / "trainer" / "config"
    answer = {}
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        for name in sys.argv[2:]:
            for nodes in (1, 2, 4):
                config = composed(name, nodes)
                validate_config(
                    config=config,
                    use_reference_policy=need_reference_policy(config),
                    use_critic=need_critic(config),
                )
            answer[name] = meaning(config)
    print(json.dumps(answer))


main()
