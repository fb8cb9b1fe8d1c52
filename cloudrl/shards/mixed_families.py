"""Families whose layers are of several kinds, by `layer_types` or other keys of the config."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudrl.shards.family import (
    AROUND_MLP,
    ATTENTION,
    HEAD_NORMS,
    IN_LLAVA,
    IN_MODEL,
    MLP,
    NORMS,
    QKVO_BIAS,
    ROUTER,
    SHARED_EXPERT,
    Experts,
    Family,
    number,
)

_KEY_OR_VALUE = re.compile(r"\.layers\.(\d{1,9})\.self_attn\.[kv]_(proj|norm)\.")
_GATED_ATTENTION = ATTENTION | {"self_attn.q_proj.weight": "2Q H"} | HEAD_NORMS
_GATED_BIAS = QKVO_BIAS | {"self_attn.q_proj.bias": "2Q"}
_DELTA_NET = {
    "linear_attn.dt_bias": "heads-v", "linear_attn.A_log": "heads-v", "linear_attn.conv1d.weight": "qkv 1 conv",
    "linear_attn.norm.weight": "head-v", "linear_attn.out_proj.weight": "H v",
}  # fmt: skip
_IN_ONE = {"linear_attn.in_proj_qkvz.weight": "qkvz H", "linear_attn.in_proj_ba.weight": "2-heads-v H"}
_IN_FOUR = {
    "linear_attn.in_proj_qkv.weight": "qkv H", "linear_attn.in_proj_z.weight": "v H",
    "linear_attn.in_proj_b.weight": "heads-v H", "linear_attn.in_proj_a.weight": "heads-v H",
}  # fmt: skip


def _kind(layer: int, config: Mapping[str, Any], special: str, interval: int) -> str:
    """Of a layer: as `layer_types` says, without it `special` but for each `interval`-th one."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return str(kinds[layer]) if layer < len(kinds) else ""
    return special if (layer + 1) % interval else "full_attention"


def _hybrid(layer: int, config: Mapping[str, Any], delta_net: Mapping[str, str]) -> dict[str, str]:
    interval = number(config, "full_attention_interval") or 4
    if _kind(layer, config, "linear_attention", interval) == "linear_attention":
        return dict(delta_net)
    return _GATED_ATTENTION | (_GATED_BIAS if config.get("attention_bias") else {})


def _qwen3_next(layer: int, config: Mapping[str, Any]) -> dict[str, str]:
    return _hybrid(layer, config, _DELTA_NET | _IN_ONE)


def _qwen3_5(layer: int, config: Mapping[str, Any]) -> dict[str, str]:
    return _hybrid(layer, config, _DELTA_NET | _IN_FOUR)


def _everywhere(layer: int, config: Mapping[str, Any]) -> bool:  # noqa: ARG001  as `Experts.places`
    return True


def _as_llama4(layer: int, config: Mapping[str, Any]) -> bool:
    listed = config.get("moe_layers")
    step = number(config, "interleave_moe_layer_step") or 1
    return layer in listed if isinstance(listed, list) else (layer + 1) % step == 0


def _gemma4(layer: int, config: Mapping[str, Any]) -> dict[str, str]:
    """Gemma 4: heads of another size in layers of full attention, and keys and values that later layers share."""
    is_full = _kind(layer, config, "sliding_attention", 6) != "sliding_attention"
    keys_are_values = is_full and config.get("attention_k_eq_v") is True
    layers, shared = number(config, "num_hidden_layers"), number(config, "num_kv_shared_layers") or 0
    is_shared = layers is not None and layer >= layers - shared >= 0
    heads = "global-" if is_full and config.get("global_head_dim", True) else ""
    query, key, head = f"{heads}Q", f"{heads}K", f"{heads}D"
    if keys_are_values:
        key = f"{heads}alternative-K"
    shapes = {"self_attn.q_proj.weight": f"{query} H", "self_attn.o_proj.weight": f"H {query}"}
    shapes |= {"self_attn.q_norm.weight": head, "layer_scalar": "1"}
    if not is_shared:
        shapes |= {"self_attn.k_proj.weight": f"{key} H", "self_attn.k_norm.weight": head}
        shapes |= {} if keys_are_values else {"self_attn.v_proj.weight": f"{key} H"}
    if config.get("attention_bias"):
        shapes |= {shape.replace("weight", "bias"): shapes[shape].split()[0] for shape in shapes if "_proj" in shape}
    wide = "G" if config.get("use_double_wide_mlp") and is_shared and layers != shared else "F"
    return shapes | {name: dimensions.replace("F", wide) for name, dimensions in MLP.items()}


def _predicts(name: str, config: Mapping[str, Any]) -> bool:  # noqa: ARG001  as `Family.ignores`
    """Whether it is of a part that predicts further tokens."""
    return name.startswith("mtp.")


def _is_shared(name: str, config: Mapping[str, Any]) -> bool:
    """Whether it is a key or a value of Gemma 4, in a layer that has those of another layer."""
    match = _KEY_OR_VALUE.search(name)
    layers, shared = number(config, "num_hidden_layers"), number(config, "num_kv_shared_layers") or 0
    return bool(match and layers is not None and layers - shared <= int(match[1]) < layers)


_QWEN3_NEXT = Family(
    NORMS, of_layer=_qwen3_next, experts=Experts(ROUTER | SHARED_EXPERT), head_dim=256, ignores=_predicts
)
_QWEN3_5 = Family(NORMS, of_layer=_qwen3_5, head_dim=256, ignores=_predicts)
_QWEN3_5_MOE = replace(
    _QWEN3_5,
    experts=Experts(
        ROUTER | SHARED_EXPERT, places=_everywhere,
        or_whole={"mlp.experts.gate_up_proj": "E 2M H", "mlp.experts.down_proj": "E H M"},
    ),
)  # fmt: skip
_SHARED_EXPERT = {
    f"feed_forward.shared_expert.{name}.weight": dimensions
    for name, dimensions in (("gate_proj", "F H"), ("up_proj", "F H"), ("down_proj", "H F"))
}
_LLAMA4 = Family(
    ATTENTION | NORMS,
    {
        "feed_forward.gate_proj.weight": "mlp H", "feed_forward.up_proj.weight": "mlp H",
        "feed_forward.down_proj.weight": "H mlp",
    },
    experts=Experts(
        _SHARED_EXPERT | {"feed_forward.router.weight": "E H"}, places=_as_llama4,
        whole={"feed_forward.experts.gate_up_proj": "E H G", "feed_forward.experts.down_proj": "E F H"},
    ),
    optional={"attention_bias": (QKVO_BIAS, False)}, head_dim=128,
)  # fmt: skip
_GEMMA4 = Family(
    NORMS | AROUND_MLP, {}, of_layer=_gemma4, is_tied=True, head_dim=256,
    ignores=_is_shared,
    optional={
        "hidden_size_per_layer_input": ({
            "per_layer_input_gate.weight": "P H", "per_layer_projection.weight": "H P",
            "post_per_layer_input_norm.weight": "H",
        }, True),
        "enable_moe_block": ({
            "router.proj.weight": "E H", "router.scale": "H", "router.per_expert_scale": "E",
            "experts.gate_up_proj": "E 2M H", "experts.down_proj": "E H M", "post_feedforward_layernorm_1.weight": "H",
            "post_feedforward_layernorm_2.weight": "H", "pre_feedforward_layernorm_2.weight": "H",
        }, False),
    },
    of_model={
        "hidden_size_per_layer_input": ({
            "embed_tokens_per_layer.weight": "VP LP", "per_layer_model_projection.weight": "LP H",
            "per_layer_projection_norm.weight": "P",
        }, True),
    },
)  # fmt: skip
MIXED: Mapping[str, Family] = {
    "GptOss": Family(
        ATTENTION | NORMS | {"self_attn.sinks": "heads"}, optional={"attention_bias": (QKVO_BIAS, True)}, head_dim=64,
        experts=Experts(
            {"mlp.router.weight": "E H", "mlp.router.bias": "E"}, places=_everywhere,
            whole={
                "mlp.experts.gate_up_proj": "E H G", "mlp.experts.gate_up_proj_bias": "E G",
                "mlp.experts.down_proj": "E F H", "mlp.experts.down_proj_bias": "E H",
            },
        ),
    ),
    "Qwen3Next": _QWEN3_NEXT,
    "Qwen3_5": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": replace(_QWEN3_5, prefix=IN_MODEL),
    "Qwen3_5Moe": _QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": replace(_QWEN3_5_MOE, prefix=IN_MODEL),
    "Llama4": _LLAMA4,
    "Llama4ForConditionalGeneration": replace(_LLAMA4, **IN_LLAVA),
    "Gemma4": _GEMMA4,
    "Gemma4ForConditionalGeneration": replace(_GEMMA4, prefix=IN_MODEL),
}  # fmt: skip
"""As `cloudrl.shards.uniform_families`."""
