"""How many parameters a model has, and how many of them each part has, by its config.json.

The same tables as `cloudrl.shards.parameters`: tests/shards/test_counting.py compares the sums with the models of
transformers. The part that sees has no table; it is estimated from its config.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.family import Family, number
from cloudrl.shards.model_files import first_architecture
from cloudrl.shards.parameters import FAMILIES, dimensions, family_of, is_tied

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_PATCH_ELEMENTS = 3 * 2 * 14 * 14
"""Inputs of the patch embedding: RGB, two frames, 14 x 14 pixels (transformers 5.10, models/qwen2_5_vl)."""
_MOST_LAYERS = 10_000
_GATED_TOWER = "fullatt_block_indexes"
"""Key of vision configs whose MLP has three matrices (Qwen2.5-VL); all others have two."""


@dataclass(frozen=True)
class Counts:
    """Parameters of a model, each a number of elements.

    Attributes:
        embedding: the table of the vocabulary.
        head: the output head; 0 where it is the embedding.
        layers: of each layer, in their order.
        experts: of the routed experts of all layers; they are in `layers`, too.
        vision: of the part that sees, about.
        outside: of what follows the layers.
        largest: of the largest tensor, in memory; experts of a layer are one tensor (transformers 5).
        low_rank: inputs and outputs of all linear maps outside the experts, summed: times the rank of LoRA, the
            parameters of its adapters.
        is_exact: whether the architecture has a table; otherwise the counts are those of a similar one.
    """

    embedding: int
    head: int
    layers: tuple[int, ...]
    experts: int
    vision: int
    outside: int
    largest: int
    low_rank: int
    is_exact: bool = True

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.head + sum(self.layers) + self.vision + self.outside


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the language part."""
    thinker = config.get("thinker_config")  # Qwen's omni models
    config = thinker if isinstance(thinker, dict) else config
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def count_parameters(config: Mapping[str, Any]) -> Counts:
    """Count by the tables of the architecture, or of a similar one where it has no table.

    Args:
        config: the content of config.json.

    Raises:
        CheckpointError: config.json leaves a size out, or has something else in its place.
    """
    text, architecture = text_part(config), first_architecture(config)
    family = family_of(architecture, config)
    used = family or _similar(text)
    sizes = dimensions(used, text)
    layers = _layers(used, text, sizes)
    embedding = _elements("V H", sizes)
    tied = is_tied(architecture, config) if family else text.get("tie_word_embeddings") is True
    return Counts(
        embedding=embedding,
        head=0 if tied else embedding,
        layers=tuple(layer.total for layer in layers),
        experts=sum(layer.experts for layer in layers),
        vision=_vision(config, sizes["H"] or 0),
        outside=sum(_elements(letters, sizes) for letters in used.outside(text).values()),
        largest=max(embedding, *(layer.largest for layer in layers)),
        low_rank=sum(layer.low_rank for layer in layers),
        is_exact=family is not None,
    )


@dataclass(frozen=True)
class _Layer:
    total: int
    experts: int
    largest: int
    low_rank: int


def _similar(text: Mapping[str, Any]) -> Family:
    """The family that most models without a table are like: with experts Qwen3's, else Llama's."""
    has_experts = any(number(text, key) for key in _EXPERT_COUNTS)
    return FAMILIES[("DeepseekV3" if "kv_lora_rank" in text else "Qwen3Moe") if has_experts else "Llama"]


def _layers(family: Family, text: Mapping[str, Any], sizes: Mapping[str, int | None]) -> list[_Layer]:
    count = number(text, "num_hidden_layers")
    if not count or count > _MOST_LAYERS:
        raise CheckpointError(f"config.json says num_hidden_layers: {count}, and that is not a number of layers")
    kinds: dict[tuple[Any, ...], _Layer] = {}
    found = []
    for at in range(count):
        shapes = family.layer_of(at, text)
        has_experts = bool(sizes["E"]) and family.experts is not None and family.experts.are_in(at, text)
        kind = (*shapes.items(), has_experts)
        if kind not in kinds:
            kinds[kind] = _layer(family, shapes, sizes, has_experts=has_experts)
        found.append(kinds[kind])
    return found


def _layer(family: Family, shapes: Mapping[str, str], sizes: Mapping[str, int | None], *, has_experts: bool) -> _Layer:
    experts = 0
    block = {**shapes, **family.mlp}
    if has_experts and family.experts is not None:
        width, count = family.experts.width, sizes["E"] or 0
        whole = family.experts.whole
        experts = sum(_elements(letters, sizes) for letters in whole.values())
        experts = experts or 3 * count * _elements(f"{width} H", sizes)
        block = {**shapes, **family.experts.beside}
    elements = {name: _elements(letters, sizes) for name, letters in block.items()}
    maps = [letters.split() for name, letters in block.items() if name.endswith("weight") and len(letters.split()) == 2]
    return _Layer(
        total=sum(elements.values()) + experts,
        experts=experts,
        largest=max(*elements.values(), experts * 2 // 3),
        low_rank=sum((sizes[out] or 0) + (sizes[into] or 0) for out, into in maps),
    )


def _elements(letters: str, sizes: Mapping[str, int | None]) -> int:
    """The product of dimensions.

    Raises:
        CheckpointError: config.json does not tell one of them.
    """
    found = [sizes[letter] for letter in letters.split()]
    if None in found:
        missing = letters.split()[found.index(None)]
        raise CheckpointError(f"config.json does not tell a size of the model ({missing} of {letters!r})")
    return math.prod(size for size in found if size is not None)


def _vision(config: Mapping[str, Any], hidden: int) -> int:
    """Layers of attention and an MLP, patches, and a merger of two maps (transformers 5.10, models/qwen2_5_vl)."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0

    def size(*keys: str, otherwise: int) -> int:
        return next((found for key in keys if (found := number(vision, key))), otherwise)

    width = size("embed_dim", "hidden_size", otherwise=1152)
    inner = size("intermediate_size", otherwise=4 * width)
    matrices = 3 if _GATED_TOWER in vision else 2
    layers = size("depth", "num_hidden_layers", otherwise=27) * (4 * width**2 + matrices * width * inner + 6 * width)
    merged = width * size("spatial_merge_size", otherwise=2) ** 2
    return layers + merged**2 + merged * size("out_hidden_size", otherwise=hidden) + _PATCH_ELEMENTS * width
