"""What becomes of an adapter: it is added to the model, or by itself a folder that peft loads on top of that model."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cloudrl.shards.dtypes import DType
from cloudrl.shards.lora import Lora, in_peft
from cloudrl.shards.lora_settings import ADAPTER_CONFIG
from cloudrl.shards.plan import Output, Update, make_outputs
from cloudrl.shards.shard import Shard

ADAPTER = "adapter_model.safetensors"
TAKE_ADAPTER = "Take it as it is, for peft, over that model: cloudrl checkpoints merge --lora adapter --to DIR"
_PAIR = r".*\.gate_up_proj"
_OF_MODEL = ("config.json", "generation_config.json")


def adapter_outputs(parts: Sequence[Shard], lora: Lora, wanted: DType | None) -> list[Output]:
    """Both halves of everything that is adapted, with the names that `PeftModel.save_pretrained` gives them."""
    stored = [name for tensor in lora.adapted.values() for name in (tensor.a, tensor.b)]
    return make_outputs(parts, wanted, names={in_peft(name): name for name in stored})


def make_updates(parts: Sequence[Shard], lora: Lora) -> dict[str, Update]:
    """What is added to each tensor, by its name in the model."""
    stored = {name: name for tensor in lora.adapted.values() for name in (tensor.a, tensor.b)}
    halves = {half.name: half for half in make_outputs(parts, None, names=stored)}
    scale = lora.settings.scale
    return {
        name: Update(halves[each.a], halves[each.b], each.experts, scale(each.key, each.rank))
        for name, each in lora.adapted.items()
    }


def adapter_files(lora: Lora, config_files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, bytes]:
    """Its config, and the tokenizer that it was trained with; the model's own config is left with the model."""
    files = {name: data for name, data in config_files.items() if name not in _OF_MODEL}
    text = json.dumps(_adapter_config(lora, config), indent=2)
    return {**files, ADAPTER_CONFIG: f"{text}\n".encode()}


def _adapter_config(lora: Lora, config: Mapping[str, Any]) -> dict[str, Any]:
    """As peft 0.21 reads it.

    Modules are named in full: a leaf's name such as `2` (visual.merger.mlp.2 of Qwen2.5-VL) fits others, too.
    """
    settings, adapted = lora.settings, lora.adapted.values()
    base = config.get("_name_or_path")
    found: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": settings.task_type,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "target_modules": sorted({tensor.module for tensor in adapted if not tensor.is_parameter}),
        "bias": "none",
        "inference_mode": True,
        "base_model_name_or_path": base if isinstance(base, str) else None,
    }
    if parameters := sorted(tensor.target for tensor in adapted if tensor.is_parameter):
        found["target_parameters"] = parameters
    if settings.is_rank_stabilized:
        found["use_rslora"] = True
    ranks, alphas = dict(settings.ranks), dict(settings.alphas)
    if any(settings.is_doubled(tensor.key, tensor.rank) for tensor in adapted):
        ranks |= {_PAIR: 2 * settings.rank}
        alphas.setdefault(_PAIR, 2 * settings.alpha)
    found |= {key: value for key, value in (("rank_pattern", ranks), ("alpha_pattern", alphas)) if value}
    return dict(sorted(found.items()))  # patterns keep their order: the first that fits counts
