"""What verl itself says of configurations: its driver's validation, and conversions that its workers make at once.

Reads [[override, ...], ...] as JSON from standard input; answers {answers: [...], ...}: for each, verl's words as
`error`, null if it has none, and then how the engines of actor and critic are set; and the names that verl knows.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf import base as references
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.utils.config import omega_conf_to_dataclass, validate_config

PARSER = OverridesParser.create()
references.parse = cache(references.parse)  # of a value with references, the same in most configurations


@cache
def parsed(override: str) -> Any:
    """Hydra's reading of one override, which takes it a hundredth of a second."""
    return PARSER.parse_override(override)


def prepared() -> bytes:
    """verl's configuration without overrides, and without the profilers' references, most of all that there are."""
    base = compose(config_name="ppo_trainer")
    for role in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic"):
        OmegaConf.resolve(OmegaConf.select(base, f"{role}.profiler"))
    return pickle.dumps(base)


def engine(role: Any) -> dict[str, Any]:
    made = omega_conf_to_dataclass(role).engine
    return {name: getattr(made, name) for name in ("ulysses_sequence_parallel_size", "use_dynamic_bsz")}


def said(base: bytes, overrides: list[str]) -> dict[str, Any]:
    config: Any = pickle.loads(base)
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config([parsed(override) for override in overrides], config)
    try:
        OmegaConf.resolve(config)
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return {"error": f"{type(error).__name__}: {error}"}
    critic = engine(config.critic) if need_critic(config) else None
    return {"error": None, "actor": engine(config.actor_rollout_ref.actor), "critic": critic}


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None), contextlib.redirect_stdout(io.StringIO()):
        base = prepared()
        answers = [said(base, overrides) for overrides in json.load(sys.stdin)]
    names = {
        "advantages": sorted(ADV_ESTIMATOR_REGISTRY),
        "policy losses": sorted(POLICY_LOSS_REGISTRY),
        "trainers": sorted(TRAINER_REGISTRY),
    }
    print(json.dumps({"answers": answers, **names}))


main()
