"""Which models can be merged: those whose names and shapes on disk were compared with what transformers saves.

Each of them is held against `save_pretrained` in tests/shards/test_architectures.py (transformers 5.10). What is not
on disk as it is in memory has a rule in `cloudrl.shards.on_disk`.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.shard import Shard
from cloudrl.shards.way_out import CONFIG_OF_THE_RUN, way_out
from cloudrl.shards.wrappers import SAVE_THE_MODEL, common_prefix

_CAUSAL, _CRITIC, SEEING = "ForCausalLM", "ForTokenClassification", "ForConditionalGeneration"
FAMILIES = (
    "Qwen2", "Qwen3", "Llama", "Mistral", "Gemma", "Gemma2", "Phi3", "Glm4", "SmolLM3", "Starcoder2",
    "Qwen2Moe", "Qwen3Moe", "Mixtral", "DeepseekV3", "GptOss", "Qwen3Next",
)  # fmt: skip
"""Without `ForCausalLM` and `ForTokenClassification`, of which both are covered."""
WITHOUT_CRITIC = (
    "Granite", "Olmo2", "Olmo3", "Olmoe", "Glm4Moe", "Gemma3", "Gemma4", "DeepseekV2", "Llama4", "Qwen3_5",
    "Qwen3_5Moe",
)  # fmt: skip
"""Families that transformers has as `ForCausalLM` only."""
VISION = (
    "Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3_5", "Qwen3_5Moe", "Glm4v", "Glm4vMoe", "InternVL", "Gemma3", "Gemma4",
    "Llama4",
)  # fmt: skip
"""Vision-language families, `ForConditionalGeneration`; transformers has no class for their critics."""
COVERED = frozenset(
    {family + head for family in FAMILIES for head in (_CAUSAL, _CRITIC)}
    | {family + _CAUSAL for family in WITHOUT_CRITIC}
    | {family + SEEING for family in VISION}
)
_NOT_IN_TRANSFORMERS = "its class is code of its authors (trust_remote_code), and no class of transformers"
_REFUSED = {
    "Qwen3VLMoeForConditionalGeneration": "transformers 5 saves its experts transposed against the Hub and vLLM",
    "InternVLChatModel": f"{_NOT_IN_TRANSFORMERS}. Its form for transformers, InternVL...-HF, can be",
    **dict.fromkeys(("MiniCPMO", "MiniCPMV"), _NOT_IN_TRANSFORMERS),
}
_BEGINS = ("model.", "visual.")
_BEGINS_OF = {f"Llama4{SEEING}": ("vision_model.", "multi_modal_projector.", "language_model.")}
_CRITIC_HEADS = {"score.weight", "score.bias"}
_HEADS = {"lm_head.weight"} | _CRITIC_HEADS


def check_architecture(
    config: Mapping[str, Any], names: AbstractSet[str], shard: Shard, *, is_plain: bool = True
) -> str:
    """Whether this model can be merged, by its `config.json` and the names of its tensors.

    Args:
        config: The content of `config.json`.
        names: Of the model's tensors, without wrappers and without those of an adapter.
        shard: Any of its shards, for messages.
        is_plain: Whether the shards have these names.

    Returns:
        The class that loads it. A critic's `config.json` still names that of the model it was made from (verl 0.9.1,
        `load_valuehead_model`); with a `score` it is `ForTokenClassification`.

    Raises:
        CheckpointError: It cannot, and what can.
    """
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise CheckpointError(
            f"config.json names no architecture (model_type {config.get('model_type')!r})",
            hint="Put the config.json of the base model, which names one, in its place in huggingface/",
        )
    architecture: str = named[0]
    if _CRITIC_HEADS & names and "lm_head.weight" not in names:
        architecture = architecture.removesuffix(_CAUSAL).removesuffix(_CRITIC) + _CRITIC
    keep = way_out(architecture, names, shard, is_plain=is_plain)
    if reason := _REFUSED.get(architecture):
        raise CheckpointError(f"{architecture} cannot be merged: {reason}", hint=keep)
    if architecture not in COVERED:
        raise CheckpointError(
            f"{architecture} cannot be merged: it was never compared with what transformers saves. "
            f"These were: {', '.join(dict.fromkeys(FAMILIES + WITHOUT_CRITIC + VISION))}",
            hint=keep,
        )
    odd = [name for name in names if name not in _HEADS and not name.startswith(_BEGINS_OF.get(architecture, _BEGINS))]
    if odd:
        if prefix := common_prefix(names):
            raise CheckpointError(
                f"{shard.label}: every tensor is inside `{prefix[:-1]}`: {odd[0]}", hint=SAVE_THE_MODEL
            )
        raise CheckpointError(
            f"{shard.label}: these are not the tensors of a {architecture}: {min(odd)}", hint=CONFIG_OF_THE_RUN
        )
    return architecture
