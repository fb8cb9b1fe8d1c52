"""Shards of a model with a LoRA adapter: which of their tensors are the model's, and what the adapter adds to each.

verl saves the model of peft as it is in memory (verl 0.9.1, utils/checkpoint/fsdp_checkpoint_manager.py; peft 0.21)::

    base_model.model.NAME                               not adapted
    base_model.model.MODULE.base_layer.weight           adapted
    base_model.model.MODULE.lora_A.default.weight       [rank, in]
    base_model.model.MODULE.lora_B.default.weight       [out, rank]

and beside them `lora_train_meta.json`, which has the alpha (`cloudrl.shards.lora_settings`).

Fused experts [experts, out, in] have two parameters in one module, so peft wraps it twice:
`experts.base_layer.lora_A` and `experts.lora_A`, over `experts.base_layer.base_layer`. Their A is [experts x rank, in],
one expert after the other, and their B [out, rank x experts], interleaved.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.saves.names import LORA_META as META
from cloudrl.shards.lora_settings import ADAPTER_CONFIG, LoraSettings
from cloudrl.shards.tensors import Tensor

_PREFIX = "base_model.model."
_HALF = re.compile(r"(.*)\.lora_([AB])\.default\.weight")
_ADAPTED_EXPERTS = re.compile(r"\bexperts(\.base_layer)*\.lora_")
_BASE_LAYER = ".base_layer"
_BY_PEFT = "Merge it into the model with peft, on a machine that has room for the model: merge_and_unload"
_ITS_CONFIG = (
    f"If the run started from an adapter (model.lora_adapter_path), copy its {ADAPTER_CONFIG} beside the shards. "
    "Otherwise merge it with peft, on a machine that has room for the model: merge_and_unload"
)
_UNSUPPORTED = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "LoRA on an embedding",
    ".modules_to_save.": "layers that were trained as a whole (modules_to_save)",
    ".token_adapter.": "tokens that were trained by themselves",
}
_EXPERTS, _ROUTER = ".mlp.experts", ".mlp.gate"
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERT_WIDTHS = ("moe_intermediate_size", "intermediate_size")  # a config may have both


@dataclass(frozen=True, slots=True)
class Adapted:
    """A tensor of the model that has an adapter.

    Attributes:
        module: Its module, by its name in the model.
        target: Itself, by its name in the model.
        a: The first half, by its name in the shards.
        b: The second half.
        experts: How many it has; 1 for a plain matrix.
        rank: Of one of them.
    """

    module: str
    target: str
    a: str
    b: str
    experts: int
    rank: int

    @property
    def is_parameter(self) -> bool:
        """Whether peft names the tensor, not the module: of experts and router, which are not linear layers."""
        return self.module.endswith((_EXPERTS, _ROUTER))

    @property
    def key(self) -> str:
        """What peft matches with patterns."""
        return self.target if self.is_parameter else self.module


@dataclass(frozen=True)
class Lora:
    """A model and its adapter.

    Attributes:
        settings: Of the adapter.
        base: Name in the model -> name in the shards; empty where the adapter alone was saved.
        adapted: Everything that has an adapter, by `target`.
    """

    settings: LoraSettings
    base: Mapping[str, str]
    adapted: Mapping[str, Adapted]


def has_lora(tensors: Mapping[str, Tensor]) -> bool:
    """Whether there is anything of an adapter."""
    return any("lora_" in name for name in tensors)


def read_lora(tensors: Mapping[str, Tensor], settings: LoraSettings, config: Mapping[str, Any], label: str) -> Lora:
    """Tell the model's tensors from the adapter's, and which belong together.

    Args:
        tensors: Of a shard.
        settings: See `read_settings`.
        config: The model's.
        label: Of the shard, for messages.

    Raises:
        CheckpointError: The adapter is of a kind that is not supported, or does not fit the model.
    """
    for marker, kind in _UNSUPPORTED.items():
        if example := next((name for name in tensors if marker in name), None):
            raise CheckpointError(f"{label} has {kind}, which is not supported: {example}", hint=_BY_PEFT)
    base: dict[str, str] = {}
    halves: dict[str, dict[str, str]] = defaultdict(dict)
    for name in tensors:
        if half := _HALF.fullmatch(name):
            halves[half[1]][half[2]] = name
        elif "lora_" in name or _in_model(name) in base:
            raise CheckpointError(f"{label}: {name} is of a kind of adapter that is not supported", hint=_BY_PEFT)
        else:
            base[_in_model(name)] = name
    shapes = {name: tensors[stored].shape for name, stored in base.items()} or None
    adapted: dict[str, Adapted] = {}
    for wrapped, pair in halves.items():
        if pair.keys() != {"A", "B"}:
            raise CheckpointError(f"{label}: {wrapped} has one half of an adapter")
        one = _fit(_in_model(wrapped), pair, tensors, shapes, config)
        if one is None or not settings.fits(one.key, one.rank) or one.target in adapted:
            sizes = " and ".join(str(tensors[name].shape) for name in pair.values())
            raise CheckpointError(
                f"{label}: the adapter of {_in_model(wrapped)}, {sizes}, does not fit the model and the rank "
                f"{settings.rank} of {ADAPTER_CONFIG if settings.is_told else META}",
                hint=_BY_PEFT if settings.is_told else _ITS_CONFIG,
            )
        adapted[one.target] = one
    return Lora(settings, base, adapted)


def refuse_adapted_experts(tensors: Mapping[str, Tensor], label: str) -> None:
    """For a family whose experts are not matrices [out, in] on disk: peft's halves of them were never compared.

    Raises:
        CheckpointError: Experts have an adapter.
    """
    if adapted := next((name for name in tensors if _ADAPTED_EXPERTS.search(name)), None):
        raise CheckpointError(
            f"{label}: {adapted} is an adapter of experts, which is not supported where experts stay fused",
            hint=_BY_PEFT,
        )


def in_peft(name: str) -> str:
    """The name that peft writes for one half."""
    return name.replace(".default.weight", ".weight")


def _in_model(name: str) -> str:
    """As the model names it."""
    return name.removeprefix(_PREFIX).replace(_BASE_LAYER, "")


def _fit(
    module: str,
    pair: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]] | None,
    config: Mapping[str, Any],
) -> Adapted | None:
    """The tensor that two halves belong to; None if absent.

    A module of experts has two, which differ in shape; without the model (`shapes` is None) `config` tells them apart.
    """
    a, b = (tensors[pair[half]].shape for half in "AB")
    if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
        return None
    target, experts = f"{module}.weight", 1
    if shapes is None and module.endswith(_EXPERTS):
        config = config["text_config"] if isinstance(config.get("text_config"), dict) else config
        experts = next((config[key] for key in _EXPERT_COUNTS if type(config.get(key)) is int), 0)
        hidden, found = config.get("hidden_size"), set()
        for width in [config[key] for key in _EXPERT_WIDTHS if type(config.get(key)) is int]:
            parts = {"gate_up_proj": (2 * width, hidden), "down_proj": (hidden, width)}
            found |= {name for name, shape in parts.items() if shape == (b[0], a[1])}
        if len(found) != 1:
            return None
        target = f"{module}.{found.pop()}"
    elif shapes is not None and shapes.get(target) != (b[0], a[1]):
        names = (f"{module}.gate_up_proj", f"{module}.down_proj")
        fits = [name for name in names if shapes.get(name, ())[1:] == (b[0], a[1])]
        if len(fits) != 1:
            return None
        target, experts = fits[0], shapes[fits[0]][0]
    if experts < 1 or a[0] % experts:
        return None
    return Adapted(module, target, pair["A"], pair["B"], experts, a[0] // experts)
