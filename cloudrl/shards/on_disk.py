"""What transformers renames, fuses or splits between memory and disk: fixed rules for the architectures that need one.

verl's shards have a model as it is in memory; what loads a model wants it as `save_pretrained` writes it. The rules
are those of transformers 5.10 (conversion_mapping.py, applied in reverse by core_model_loading.py,
`revert_weight_conversion`), and tests/shards/test_architectures.py holds each of them against `save_pretrained`. Names
that are already as on disk, as in shards made with transformers 4, stay as they are.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cloudrl.errors import CheckpointError


@dataclass(frozen=True)
class Rule:
    """How an architecture differs on disk.

    Attributes:
        renamed: Parts of names, as in memory and as on disk; the first that a name has is replaced.
        experts: The names of an expert's matrices on disk: gate, up, down. In memory the first two of all experts are
            one tensor `gate_up_proj` [experts, 2 x intermediate, hidden], and the third `down_proj` [experts, hidden,
            intermediate].
        keeps_experts: Whether they are so on disk, too.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    experts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    keeps_experts: bool = False


USUAL = Rule()
_QWEN_VISION = Rule(renamed=(("model.visual.", "visual."), ("model.language_model.", "model.")))
_LLAVA = Rule(
    renamed=(
        ("model.language_model.", "language_model.model."), ("model.vision_tower.", "vision_tower."),
        ("model.multi_modal_projector.", "multi_modal_projector."), ("lm_head.", "language_model.lm_head."),
    )
)  # fmt: skip
RULES: Mapping[str, Rule] = {
    "Mixtral": Rule(renamed=((".mlp.", ".block_sparse_moe."),), experts=("w1", "w3", "w2")),
    "Qwen2VL": _QWEN_VISION,
    "Qwen2_5_VL": _QWEN_VISION,
    "InternVL": _LLAVA,
    "Gemma3ForConditionalGeneration": _LLAVA,
}
"""Of those that have one of their own: the class, or its name without `For...`."""
_FUSED = re.compile(r"(.*\.mlp\.experts\.)(gate_up_proj|down_proj)")
_FLOAT32 = ".e_score_correction_bias"


@dataclass(frozen=True)
class Slice:
    """A tensor on disk: elements of one in memory that are one after the other, from `first` on."""

    name: str
    shape: tuple[int, ...]
    first: int = 0


def rule_of(architecture: str) -> Rule:
    """The rule of a class such as `MixtralForCausalLM`."""
    return RULES.get(architecture) or RULES.get(architecture.partition("For")[0], USUAL)


def stays_float32(name: str) -> bool:
    """Whether a tensor keeps its type when a model is made bf16 or fp16.

    The router's correction of DeepseekV3 and Glm4Moe does (`_keep_in_fp32_modules_strict`): its steps in training are
    smaller than the distance of two bfloat16 numbers.
    """
    return name.endswith(_FLOAT32)


def on_disk(name: str, shape: tuple[int, ...], rule: Rule) -> list[Slice]:
    """The tensors that one in memory becomes.

    Raises:
        CheckpointError: Fused experts have an impossible shape.
    """
    fused = _FUSED.fullmatch(name)
    if fused is None or rule.keeps_experts:
        return [Slice(renamed(name, rule), shape)]
    is_pair = fused[2] == "gate_up_proj"
    if len(shape) != 3 or (is_pair and shape[1] % 2):
        raise CheckpointError(f"{name} has the shape {shape}: these are not the experts of a model")
    gate, up, down = rule.experts
    count, rows, columns = shape
    names, rows = ((gate, up), rows // 2) if is_pair else ((down,), rows)
    folder = renamed(fused[1], rule)
    matrices = [f"{folder}{expert}.{each}.weight" for expert in range(count) for each in names]
    return [Slice(each, (rows, columns), number * rows * columns) for number, each in enumerate(matrices)]


def renamed(name: str, rule: Rule) -> str:
    """The name on disk of what is neither split nor fused."""
    for old, new in rule.renamed:
        if old in name:
            return name.replace(old, new, 1)
    return name
