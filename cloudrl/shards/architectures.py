"""Which models can be merged: those whose names and shapes on disk were compared with what transformers saves.

Each of them is held against `save_pretrained` in tests/shards/test_architectures.py (transformers 5.10). What is not
on disk as it is in memory has a rule in `cloudrl.shards.on_disk`.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from cloudrl.errors import CheckpointError

_CAUSAL, _CRITIC, _VISION = "ForCausalLM", "ForTokenClassification", "ForConditionalGeneration"
FAMILIES = (
    "Qwen2", "Qwen3", "Llama", "Mistral", "Gemma", "Gemma2", "Phi3", "Glm4", "SmolLM3", "Starcoder2",
    "Qwen2Moe", "Qwen3Moe", "Mixtral", "DeepseekV3",
)  # fmt: skip
"""Without `ForCausalLM` and `ForTokenClassification`, of which both are covered."""
WITHOUT_CRITIC = ("Granite", "Olmo2", "Olmo3", "Olmoe", "Glm4Moe")
"""Families that transformers has as `ForCausalLM` only."""
VISION = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")
"""Vision-language families, `ForConditionalGeneration`; transformers has no class for their critics."""
COVERED = frozenset(
    {family + head for family in FAMILIES for head in (_CAUSAL, _CRITIC)}
    | {family + _CAUSAL for family in WITHOUT_CRITIC}
    | {family + _VISION for family in VISION}
)
_REFUSED = {
    "Qwen3VLMoeForConditionalGeneration": "transformers 5 saves its experts transposed against the Hub and vLLM",
}
VERL_MERGER = (
    "verl's own merger loads the model to do this, with as much memory as it is large: "
    "python -m verl.model_merger merge --backend fsdp --local_dir DIR --target_dir OUT"
)
_CRITIC_HEADS = {"score.weight", "score.bias"}
_HEADS = {"lm_head.weight"} | _CRITIC_HEADS


def check_architecture(config: Mapping[str, Any], names: AbstractSet[str], label: str) -> str:
    """Whether this model can be merged, by its `config.json` and the names of its tensors.

    Returns:
        The class that loads it. A critic's `config.json` still names that of the model it was made from (verl 0.9.1,
        `load_valuehead_model`); with a `score` it is `ForTokenClassification`.

    Raises:
        CheckpointError: It cannot, and what can.
    """
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise CheckpointError(
            f"config.json names no architecture (model_type {config.get('model_type')!r})", hint=VERL_MERGER
        )
    architecture: str = named[0]
    if _CRITIC_HEADS & names and "lm_head.weight" not in names:
        architecture = architecture.removesuffix(_CAUSAL).removesuffix(_CRITIC) + _CRITIC
    if reason := _REFUSED.get(architecture):
        raise CheckpointError(f"{architecture} cannot be merged: {reason}", hint=VERL_MERGER)
    if architecture not in COVERED:
        raise CheckpointError(
            f"{architecture} cannot be merged: it was never compared with what transformers saves. "
            f"These were: {', '.join(FAMILIES + WITHOUT_CRITIC + VISION)}",
            hint=VERL_MERGER,
        )
    odd = [name for name in names if name not in _HEADS and not name.startswith(("model.", "visual."))]
    if odd:
        raise CheckpointError(f"{label}: these are not the tensors of a {architecture}: {odd[0]}", hint=VERL_MERGER)
    return architecture
