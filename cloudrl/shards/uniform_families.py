"""Families whose layers differ in nothing but experts. Of models that see, it is the part with the language."""

from collections.abc import Mapping
from dataclasses import replace

from cloudrl.shards.family import (
    AFTER_NORMS,
    AROUND_MLP,
    ATTENTION,
    CORRECTION,
    FUSED_MLP,
    HEAD_NORMS,
    IN_LLAVA,
    IN_MODEL,
    MLP_BIAS,
    NORMS,
    QKV_BIAS,
    QKVO_BIAS,
    ROUTER,
    SHARED,
    SHARED_EXPERT,
    WIDE_NORMS,
    Experts,
    Family,
)

_BIASED = {"attention_bias": (QKVO_BIAS, False)}
_LLAMA = Family(ATTENTION | NORMS, optional=_BIASED | {"mlp_bias": (MLP_BIAS, False)})
_OLMO = Family(ATTENTION | WIDE_NORMS | AFTER_NORMS, optional=_BIASED)
_QWEN2 = Family(ATTENTION | QKV_BIAS | NORMS)
_QWEN3 = Family(ATTENTION | HEAD_NORMS | NORMS, optional=_BIASED, head_dim=128)
_GEMMA3 = Family(
    ATTENTION | HEAD_NORMS | NORMS | AROUND_MLP,
    optional=_BIASED,
    head_dim=256,
    is_tied=True,
)
_GLM4 = Family(
    ATTENTION | NORMS | {"post_self_attn_layernorm.weight": "H", "post_mlp_layernorm.weight": "H"}, FUSED_MLP
)
_DEEPSEEK = Family(
    NORMS
    | {
        "self_attn.kv_a_proj_with_mqa.weight": "C H",
        "self_attn.kv_a_layernorm.weight": "L",
        "self_attn.kv_b_proj.weight": "W L",
        "self_attn.o_proj.weight": "H O",
    },
    experts=Experts(ROUTER | SHARED | CORRECTION, dense_first=3),
    optional={
        "q_lora_rank": (
            {
                "self_attn.q_a_proj.weight": "R H",
                "self_attn.q_a_layernorm.weight": "R",
                "self_attn.q_b_proj.weight": "B R",
            },
            True,
        ),
        "!q_lora_rank": ({"self_attn.q_proj.weight": "B H"}, True),
    },
)
DENSE_AND_EXPERTS: Mapping[str, Family] = {
    "Qwen2": _QWEN2,
    "Qwen3": _QWEN3,
    "Llama": _LLAMA,
    "Mistral": Family(ATTENTION | NORMS),
    "Gemma": Family(ATTENTION | NORMS, optional=_BIASED, head_dim=256, is_tied=True),
    "Gemma2": Family(
        ATTENTION | NORMS | AROUND_MLP, optional=_BIASED, head_dim=256, is_tied=True
    ),
    "Gemma3": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, **IN_LLAVA),
    "Phi3": Family({"self_attn.qkv_proj.weight": "A H", "self_attn.o_proj.weight": "H Q"} | NORMS, FUSED_MLP),
    "Glm4": replace(_GLM4, optional={"attention_bias": (QKV_BIAS, True)}, head_dim=128),
    "SmolLM3": replace(_LLAMA, is_tied=True),
    "Starcoder2": Family(
        ATTENTION | NORMS | {"input_layernorm.bias": "H", "post_attention_layernorm.bias": "H"},
        {"mlp.c_fc.weight": "F H", "mlp.c_proj.weight": "H F"},
        optional={"use_bias": (QKVO_BIAS | {"mlp.c_fc.bias": "F", "mlp.c_proj.bias": "H"}, True)},
        is_tied=True, last={"norm.weight": "H", "norm.bias": "H"},
    ),
    "Granite": _LLAMA,
    "Olmo2": _OLMO,
    "Olmo3": _OLMO,
    "Qwen2Moe": Family(
        ATTENTION | NORMS, optional={"qkv_bias": (QKV_BIAS, True)}, experts=Experts(ROUTER | SHARED_EXPERT)
    ),
    "Qwen3Moe": replace(_QWEN3, experts=Experts(ROUTER), head_dim=None),
    "Olmoe": Family(
        ATTENTION | NORMS | {"self_attn.q_norm.weight": "H", "self_attn.k_norm.weight": "K"}, optional=_BIASED,
        experts=Experts(ROUTER, width="F"),
    ),
    "Mixtral": Family(ATTENTION | NORMS, experts=Experts(ROUTER, width="F")),
    "DeepseekV3": _DEEPSEEK,
    "DeepseekV2": replace(_DEEPSEEK, experts=Experts(ROUTER | SHARED)),
    "Glm4Moe": Family(
        ATTENTION | NORMS, experts=Experts(ROUTER | SHARED | CORRECTION, dense_first=1),
        optional={"attention_bias": (QKV_BIAS, False), "use_qk_norm": (HEAD_NORMS, False)},
    ),
    "Glm4v": replace(_GLM4, layer={**_GLM4.layer, **QKV_BIAS}, prefix=IN_MODEL),
    "Glm4vMoe": Family(
        ATTENTION | NORMS, experts=Experts(ROUTER | SHARED | CORRECTION, dense_first=1),
        optional={"attention_bias": (QKV_BIAS, True)}, prefix=IN_MODEL,
    ),
    "Qwen2VL": _QWEN2,
    "Qwen2_5_VL": _QWEN2,
    "Qwen3VL": replace(_QWEN3, prefix=IN_MODEL),
}  # fmt: skip
"""By the class, or by its name without `For...`."""
