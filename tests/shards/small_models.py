"""A model of each architecture that is claimed, of some thousand random numbers, by transformers itself."""

from collections.abc import Collection
from typing import Any

from cloudrl.shards.architectures import SEEING

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 8,
}
EXPERTS = {
    "moe_intermediate_size": 8,
    "num_experts_per_tok": 2,
    # one of these names is the family's own
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 5),
}
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"],
}
MORE: dict[str, dict[str, Any]] = {  # one layer with and one without experts, where a family can have both
    "Qwen2Moe": EXPERTS | {"shared_expert_intermediate_size": 10, "decoder_sparse_step": 2},
    "Qwen3Moe": EXPERTS | {"mlp_only_layers": [0]},
    "Mixtral": EXPERTS,
    "Olmoe": EXPERTS,
    "DeepseekV3": EXPERTS
    | {"kv_lora_rank": 4, "q_lora_rank": 6, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 4},
    "Glm4Moe": EXPERTS | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "Glm4vMoe": EXPERTS | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 2},
    "DeepseekV2": EXPERTS
    | {"kv_lora_rank": 4, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6}
    | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 4, "n_shared_experts": 2},
    "GptOss": EXPERTS,
    "Llama4": EXPERTS | {"intermediate_size_mlp": 20, "moe_layers": [1]},
    "Qwen3Next": EXPERTS | DELTA_NET | {"shared_expert_intermediate_size": 10, "mlp_only_layers": [0]},
    "Qwen3_5": DELTA_NET,
    "Qwen3_5Moe": EXPERTS | DELTA_NET | {"shared_expert_intermediate_size": 10},
    "Gemma4": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "global_head_dim": 12}
    | {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 32, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
}
SEES = {
    "depth": 2,
    "hidden_size": 16,
    "embed_dim": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "mlp_ratio": 2,
}
ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]}
TOWER = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
}
MORE_SEES: dict[str, dict[str, Any]] = {
    "Qwen2VL": {"hidden_size": 16},  # here that of the text
    "Qwen2_5_VL": {"window_size": 16, "fullatt_block_indexes": [1]},
    "Qwen3VL": {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    "Qwen3_5": {"num_position_embeddings": 16},
    "Qwen3_5Moe": {"num_position_embeddings": 16},
    "Glm4v": {"image_size": 16},
    "Glm4vMoe": {"image_size": 16},
    "InternVL": TOWER | {"image_size": [16, 16], "patch_size": [4, 4]},
    "Gemma3": TOWER,
    "Gemma4": TOWER | {"num_key_value_heads": 1, "head_dim": 8, "position_embedding_size": 16},
    "Llama4": TOWER | {"projector_input_dim": 16, "projector_output_dim": 16, "vision_output_dim": 16},
}
MORE_TEXT: dict[str, dict[str, Any]] = {
    "InternVL": {"model_type": "qwen2"},
    # of their own way to turn heads
    **{family: {"rope_parameters": None} for family in ("Gemma3", "Gemma4", "Llama4", "Qwen3_5", "Qwen3_5Moe")},
    **{family: {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}} for family in ("Glm4v", "Glm4vMoe")},
}


def small_model(family: str, head: str, tied: bool, without: Collection[str] = (), **changes: Any) -> Any:
    """Without some of the keys of its config, the class of which has a default for each, or with changes to it."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, family + head)
    given = {key: value for key, value in (SMALL | MORE.get(family, {})).items() if key not in without} | changes
    if head == SEEING:
        text = given | {"rope_parameters": ROPE, "tie_word_embeddings": tied} | MORE_TEXT.get(family, {}) | changes
        vision = MORE_SEES[family] if "num_hidden_layers" in MORE_SEES[family] else SEES | MORE_SEES[family]
        config = kind.config_class(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    else:
        config = kind.config_class(**given, tie_word_embeddings=tied, num_labels=1)
    model = kind(config)
    for parameter in model.parameters():  # some are made without values
        parameter.data = torch.randn(parameter.shape)
    return model
