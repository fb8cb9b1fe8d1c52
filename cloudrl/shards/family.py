"""What the models of a family have: names and dimensions of parameters, as a table and by the config.

Source: transformers 5.10, models/*/modeling_*.py and configuration_*.py. A dimension is a word that
`cloudrl.shards.parameters` turns into a number.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.on_disk import Rule
from cloudrl.shards.way_out import CONFIG_OF_THE_RUN

ATTENTION = {
    "self_attn.q_proj.weight": "Q H", "self_attn.k_proj.weight": "K H", "self_attn.v_proj.weight": "K H",
    "self_attn.o_proj.weight": "H Q",
}  # fmt: skip
QKV_BIAS = {"self_attn.q_proj.bias": "Q", "self_attn.k_proj.bias": "K", "self_attn.v_proj.bias": "K"}
QKVO_BIAS = QKV_BIAS | {"self_attn.o_proj.bias": "H"}
HEAD_NORMS = {"self_attn.q_norm.weight": "D", "self_attn.k_norm.weight": "D"}
WIDE_NORMS = {"self_attn.q_norm.weight": "Q", "self_attn.k_norm.weight": "K"}
MLP = {"mlp.gate_proj.weight": "F H", "mlp.up_proj.weight": "F H", "mlp.down_proj.weight": "H F"}
MLP_BIAS = {"mlp.gate_proj.bias": "F", "mlp.up_proj.bias": "F", "mlp.down_proj.bias": "H"}
FUSED_MLP = {"mlp.gate_up_proj.weight": "G H", "mlp.down_proj.weight": "H F"}
NORMS = {"input_layernorm.weight": "H", "post_attention_layernorm.weight": "H"}
AFTER_NORMS = {"post_attention_layernorm.weight": "H", "post_feedforward_layernorm.weight": "H"}
ROUTER = {"mlp.gate.weight": "E H"}
SHARED = {
    "mlp.shared_experts.gate_proj.weight": "T H", "mlp.shared_experts.up_proj.weight": "T H",
    "mlp.shared_experts.down_proj.weight": "H T",
}  # fmt: skip
CORRECTION = {"mlp.gate.e_score_correction_bias": "E"}
SHARED_EXPERT = {
    "mlp.shared_expert.gate_proj.weight": "S H", "mlp.shared_expert.up_proj.weight": "S H",
    "mlp.shared_expert.down_proj.weight": "H S", "mlp.shared_expert_gate.weight": "1 H",
}  # fmt: skip
AROUND_MLP = {f"{name}_feedforward_layernorm.weight": "H" for name in ("pre", "post")}
IN_MODEL = "model.language_model."
"""The prefix of the language part of a model that sees."""
_IN_LLAVA = "language_model."


@dataclass(frozen=True)
class Experts:
    """What a layer with experts has in the place of its MLP.

    Attributes:
        beside: The router and what all tokens pass, by name in memory as in `Family.layer`.
        width: The letter of an expert's inner size.
        dense_first: How many layers have an MLP in any case, where `first_k_dense_replace` does not say.
        whole: The matrices of all of them, where they are one tensor on disk, too.
        or_whole: The same, where the Hub has them so and `save_pretrained` splits them; a class loads both.
        places: Says whether a layer has them, in a family with a key of its own for it.
    """

    beside: Mapping[str, str]
    width: str = "M"
    dense_first: int = 0
    whole: Mapping[str, str] = field(default_factory=dict)
    or_whole: Mapping[str, str] = field(default_factory=dict)
    places: Callable[[int, Mapping[str, Any]], bool] | None = None

    def of(self, sizes: Mapping[str, int | None], rule: Rule, there: AbstractSet[str]) -> Iterator[tuple[str, str]]:
        """Name and dimensions of each of its parameters; `there` is what a layer has of `or_whole`."""
        yield from self.beside.items()
        whole = self.or_whole if there else self.whole
        yield from whole.items()
        if whole:
            return
        gate, up, down = rule.experts
        for number in range(sizes["E"] or 0):
            for name, letters in ((gate, f"{self.width} H"), (up, f"{self.width} H"), (down, f"H {self.width}")):
                yield f"mlp.experts.{number}.{name}.weight", letters

    def are_in(self, layer: int, config: Mapping[str, Any]) -> bool:
        """Whether a layer has them (Qwen2-MoE, Qwen3-MoE: the first two lines; DeepseekV3, GLM4-MoE: the last)."""
        if self.places is not None:
            return self.places(layer, config)
        only_mlp = config.get("mlp_only_layers")
        every = number(config, "decoder_sparse_step") or 1
        first = config.get("first_k_dense_replace", self.dense_first)
        return (
            not (isinstance(only_mlp, list) and layer in only_mlp)
            and (layer + 1) % every == 0
            and not (isinstance(first, int) and layer < first)
        )


@dataclass(frozen=True)
class Family:
    """What the models of a family have.

    Attributes:
        layer: Of each layer: a name below `model.layers.N.`, and its dimensions, a letter each (`dimensions`).
        mlp: Of each layer without experts.
        experts: Of each layer with experts.
        optional: Key in the config -> what else a layer has if it is set, and whether it is without the key; with a
            `!` before the key, what it has if that is not set.
        head_dim: Elements of an attention head, where it does not follow from the hidden size.
        is_tied: Whether one matrix is embedding and output head, where the config does not say.
        last: What follows the layers.
        prefix: Of all names but the head's.
        head: The output head.
        of_layer: What else a layer has, by its number and the config, where layers differ in more than experts.
        ignores: Whether models of the Hub have a parameter, by name and config, that the class does not load.
        of_model: Key in the config -> what else the model has if it is set, and whether it is without the key.
    """

    layer: Mapping[str, str]
    mlp: Mapping[str, str] = field(default_factory=lambda: MLP)
    experts: Experts | None = None
    optional: Mapping[str, tuple[Mapping[str, str], bool]] = field(default_factory=dict)
    head_dim: int | None = None
    is_tied: bool = False
    last: Mapping[str, str] = field(default_factory=lambda: {"norm.weight": "H"})
    prefix: str = "model."
    head: str = "lm_head.weight"
    of_layer: Callable[[int, Mapping[str, Any]], Mapping[str, str]] | None = None
    ignores: Callable[[str, Mapping[str, Any]], bool] = lambda _name, _config: False
    of_model: Mapping[str, tuple[Mapping[str, str], bool]] = field(default_factory=dict)

    @property
    def fused_experts(self) -> bool:
        """Whether its experts are one tensor on disk, too."""
        names = {name for each in self.optional.values() for name in each[0]}
        return bool(self.experts and self.experts.whole) or "experts.down_proj" in names

    def layer_of(self, at: int, config: Mapping[str, Any]) -> dict[str, str]:
        """What a layer has beside its MLP or experts, by name below `model.layers.N.`."""
        return {**self.layer, **_set(self.optional, config), **(self.of_layer(at, config) if self.of_layer else {})}

    def outside(self, config: Mapping[str, Any]) -> dict[str, str]:
        """What the model has behind its layers, without the head."""
        return {**self.last, **_set(self.of_model, config)}


IN_LLAVA: dict[str, Any] = {"prefix": f"{_IN_LLAVA}model.", "head": f"{_IN_LLAVA}lm_head.weight"}
"""Where a model that sees has its language part on disk, as Llava had it first."""


def _set(optional: Mapping[str, tuple[Mapping[str, str], bool]], config: Mapping[str, Any]) -> dict[str, str]:
    """What there is by the keys of a config; with a `!` before a key, if it is not set."""
    shapes: dict[str, str] = {}
    for key, (names, default) in optional.items():
        if bool(config.get(key.lstrip("!"), default)) is not key.startswith("!"):
            shapes |= names
    return shapes


def number(config: Mapping[str, Any], key: str) -> int | None:
    """A size; None if the config leaves it out.

    Raises:
        CheckpointError: It is not a size.
    """
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or value < 0:  # 0: the model has no such part
        raise CheckpointError(
            f"config.json says {key}: {str(value)[:40]!r}, and that is not a size", hint=CONFIG_OF_THE_RUN
        )
    return value
