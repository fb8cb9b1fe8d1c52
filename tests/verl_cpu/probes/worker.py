"""What a training worker of verl does before its first step: process group, engines, models."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from state import registries
from verl.utils import model as verl_model
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry


def build(model_type: str, *, forward_only: bool = False) -> Any:
    model = HFModelConfig(
        path=sys.argv[1],
        override_config={"attn_implementation": "sdpa"},
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
    )
    model.model_type = model_type
    engine = EngineRegistry.new(
        model_type=model_type,
        backend="fsdp2",
        model_config=model,
        engine_config=FSDPEngineConfig(strategy="fsdp2", forward_only=forward_only, use_torch_compile=False),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=1),
        checkpoint_config={},
    )
    engine._build_model_optimizer()
    return engine


def is_pinned(engine: Any) -> bool:
    return any(parameter.to_local().is_pinned() for parameter in engine.module.parameters())


def main() -> None:
    verls_loader = verl_model.load_valuehead_model
    before = registries()
    initialize_global_process_group_ray()
    engines = {
        "actor": build("language_model"),
        "reference": build("language_model", forward_only=True),
        "critic": build("value_model"),
    }
    reference, critic = engines["reference"], engines["critic"]
    answer = {
        "registries": before,
        "backend": torch.distributed.get_backend(),
        "engines": {role: type(engine).__name__ for role, engine in engines.items()},
        "pinned": [role for role, engine in engines.items() if is_pinned(engine)],
        "reference is forward only": reference.engine_config.forward_only and reference.optimizer is None,
        "critic outputs": critic.module.config.num_labels,
        "critic attention": critic.module.config._attn_implementation,
        "loader is verl's again": verl_model.load_valuehead_model is verls_loader,
    }
    print(json.dumps(answer))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
