"""Which parameters a model has, by its config.json: names and shapes as transformers makes them.

Source: transformers 5.10, models/*/modeling_*.py and configuration_*.py; tests/shards/test_architectures.py holds it
against the models themselves. What a merge is going to write is compared with it before a byte is written: a tensor
that is missing on all ranks, or the config of another model, would load as a model with random numbers in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import VISION
from cloudrl.shards.on_disk import Rule, renamed, rule_of
from cloudrl.shards.way_out import CONFIG_OF_THE_RUN
from cloudrl.shards.wrappers import SAVE_THE_MODEL, name_around

Shape = tuple[int | None, ...]
"""None for a dimension that the config does not tell."""

_ATTENTION = {
    "self_attn.q_proj.weight": "Q H", "self_attn.k_proj.weight": "K H", "self_attn.v_proj.weight": "K H",
    "self_attn.o_proj.weight": "H Q",
}  # fmt: skip
_QKV_BIAS = {"self_attn.q_proj.bias": "Q", "self_attn.k_proj.bias": "K", "self_attn.v_proj.bias": "K"}
_QKVO_BIAS = _QKV_BIAS | {"self_attn.o_proj.bias": "H"}
_HEAD_NORMS = {"self_attn.q_norm.weight": "D", "self_attn.k_norm.weight": "D"}
_WIDE_NORMS = {"self_attn.q_norm.weight": "Q", "self_attn.k_norm.weight": "K"}
_MLP = {"mlp.gate_proj.weight": "F H", "mlp.up_proj.weight": "F H", "mlp.down_proj.weight": "H F"}
_MLP_BIAS = {"mlp.gate_proj.bias": "F", "mlp.up_proj.bias": "F", "mlp.down_proj.bias": "H"}
_FUSED_MLP = {"mlp.gate_up_proj.weight": "G H", "mlp.down_proj.weight": "H F"}
_NORMS = {"input_layernorm.weight": "H", "post_attention_layernorm.weight": "H"}
_AFTER_NORMS = {"post_attention_layernorm.weight": "H", "post_feedforward_layernorm.weight": "H"}
_ROUTER = {"mlp.gate.weight": "E H"}
_SHARED = {
    "mlp.shared_experts.gate_proj.weight": "T H", "mlp.shared_experts.up_proj.weight": "T H",
    "mlp.shared_experts.down_proj.weight": "H T", "mlp.gate.e_score_correction_bias": "E",
}  # fmt: skip


@dataclass(frozen=True)
class Experts:
    """What a layer with experts has in the place of its MLP.

    Attributes:
        beside: The router and what all tokens pass, by name in memory as in `Family.layer`.
        width: The letter of an expert's inner size.
        dense_first: How many layers have an MLP in any case, where `first_k_dense_replace` does not say.
    """

    beside: Mapping[str, str]
    width: str = "M"
    dense_first: int = 0

    def of(self, sizes: Mapping[str, int | None], rule: Rule) -> Iterator[tuple[str, str]]:
        """Name and dimensions of each of its parameters; as many as the config says."""
        yield from self.beside.items()
        gate, up, down = rule.experts
        for number in range(sizes["E"] or 0):
            for name, letters in ((gate, f"{self.width} H"), (up, f"{self.width} H"), (down, f"H {self.width}")):
                yield f"mlp.experts.{number}.{name}.weight", letters

    def are_in(self, layer: int, config: Mapping[str, Any]) -> bool:
        """Whether a layer has them (Qwen2-MoE, Qwen3-MoE: the first two lines; DeepseekV3, GLM4-MoE: the last)."""
        only_mlp = config.get("mlp_only_layers")
        every = _number(config, "decoder_sparse_step") or 1
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
        layer: Of each layer: a name below `model.layers.N.`, and its dimensions, a letter each (`_dimensions`).
        mlp: Of each layer without experts.
        experts: Of each layer with experts.
        optional: Key in the config -> what else a layer has if it is set, and whether it is without the key; with a
            `!` before the key, what it has if that is not set.
        head_dim: Elements of an attention head, where it does not follow from the hidden size.
        is_tied: Whether one matrix is embedding and output head, where the config does not say.
        last: What follows the layers.
        prefix: Of all names but the head's.
    """

    layer: Mapping[str, str]
    mlp: Mapping[str, str] = field(default_factory=lambda: _MLP)
    experts: Experts | None = None
    optional: Mapping[str, tuple[Mapping[str, str], bool]] = field(default_factory=dict)
    head_dim: int | None = None
    is_tied: bool = False
    last: Mapping[str, str] = field(default_factory=lambda: {"norm.weight": "H"})
    prefix: str = "model."


_BIASED = {"attention_bias": (_QKVO_BIAS, False)}
_LLAMA = Family(_ATTENTION | _NORMS, optional=_BIASED | {"mlp_bias": (_MLP_BIAS, False)})
_OLMO = Family(_ATTENTION | _WIDE_NORMS | _AFTER_NORMS, optional=_BIASED)
_QWEN2 = Family(_ATTENTION | _QKV_BIAS | _NORMS)
_QWEN3 = Family(_ATTENTION | _HEAD_NORMS | _NORMS, optional=_BIASED, head_dim=128)
FAMILIES: Mapping[str, Family] = {
    "Qwen2": _QWEN2,
    "Qwen3": _QWEN3,
    "Llama": _LLAMA,
    "Mistral": Family(_ATTENTION | _NORMS),
    "Gemma": Family(_ATTENTION | _NORMS, optional=_BIASED, head_dim=256, is_tied=True),
    "Gemma2": Family(
        _ATTENTION | _NORMS | {f"{name}_feedforward_layernorm.weight": "H" for name in ("pre", "post")},
        optional=_BIASED, head_dim=256, is_tied=True,
    ),
    "Phi3": Family({"self_attn.qkv_proj.weight": "A H", "self_attn.o_proj.weight": "H Q"} | _NORMS, _FUSED_MLP),
    "Glm4": Family(
        _ATTENTION | _NORMS | {"post_self_attn_layernorm.weight": "H", "post_mlp_layernorm.weight": "H"}, _FUSED_MLP,
        optional={"attention_bias": (_QKV_BIAS, True)}, head_dim=128,
    ),
    "SmolLM3": replace(_LLAMA, is_tied=True),
    "Starcoder2": Family(
        _ATTENTION | _NORMS | {"input_layernorm.bias": "H", "post_attention_layernorm.bias": "H"},
        {"mlp.c_fc.weight": "F H", "mlp.c_proj.weight": "H F"},
        optional={"use_bias": (_QKVO_BIAS | {"mlp.c_fc.bias": "F", "mlp.c_proj.bias": "H"}, True)},
        is_tied=True, last={"norm.weight": "H", "norm.bias": "H"},
    ),
    "Granite": _LLAMA,
    "Olmo2": _OLMO,
    "Olmo3": _OLMO,
    "Qwen2Moe": Family(
        _ATTENTION | _NORMS, optional={"qkv_bias": (_QKV_BIAS, True)},
        experts=Experts(_ROUTER | {
            "mlp.shared_expert.gate_proj.weight": "S H", "mlp.shared_expert.up_proj.weight": "S H",
            "mlp.shared_expert.down_proj.weight": "H S", "mlp.shared_expert_gate.weight": "1 H",
        }),
    ),
    "Qwen3Moe": replace(_QWEN3, experts=Experts(_ROUTER), head_dim=None),
    "Olmoe": Family(
        _ATTENTION | _NORMS | {"self_attn.q_norm.weight": "H", "self_attn.k_norm.weight": "K"}, optional=_BIASED,
        experts=Experts(_ROUTER, width="F"),
    ),
    "Mixtral": Family(_ATTENTION | _NORMS, experts=Experts(_ROUTER, width="F")),
    "DeepseekV3": Family(
        _NORMS | {
            "self_attn.kv_a_proj_with_mqa.weight": "C H", "self_attn.kv_a_layernorm.weight": "L",
            "self_attn.kv_b_proj.weight": "W L", "self_attn.o_proj.weight": "H O",
        },
        experts=Experts(_ROUTER | _SHARED, dense_first=3),
        optional={
            "q_lora_rank": ({
                "self_attn.q_a_proj.weight": "R H", "self_attn.q_a_layernorm.weight": "R",
                "self_attn.q_b_proj.weight": "B R",
            }, True),
            "!q_lora_rank": ({"self_attn.q_proj.weight": "B H"}, True),
        },
    ),
    "Glm4Moe": Family(
        _ATTENTION | _NORMS, experts=Experts(_ROUTER | _SHARED, dense_first=1),
        optional={"attention_bias": (_QKV_BIAS, False), "use_qk_norm": (_HEAD_NORMS, False)},
    ),
    "Qwen2VL": _QWEN2,
    "Qwen2_5_VL": _QWEN2,
    "Qwen3VL": replace(_QWEN3, prefix="model.language_model."),
}  # fmt: skip
"""By the architecture's name without `For...`. Of vision-language models the language part alone."""
_OF_EXPERTS = ("moe_intermediate_size", "num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts")
_SEES = ("visual.", "model.visual.")
_PARAMETER = (".weight", ".bias")


def is_tied(architecture: str, config: Mapping[str, Any]) -> bool:
    """Whether embedding and output head are one, as transformers decides it."""
    name, text = architecture.partition("For")[0], config.get("text_config")
    family = FAMILIES.get(name)
    if name in VISION and "tie_word_embeddings" not in config and isinstance(text, dict):
        config = text  # so transformers 4.52 to 4.57 save it
    said = config.get("tie_word_embeddings", family is not None and family.is_tied)
    return said is True


def check_parameters(architecture: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare what is going to be written with what the class will look for; no more of it is made up than is there.

    Args:
        architecture: A class of transformers, such as `Qwen2ForCausalLM`.
        config: What its config.json will say.
        shapes: Of each tensor, by its name on disk.

    Raises:
        CheckpointError: A parameter is missing, of another shape, or is none of this class.
    """
    family = FAMILIES.get(architecture.partition("For")[0])
    if family is None:
        return
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    for name in shapes:
        if name.startswith(_SEES) and (module := next((each for each in name.split(".") if each[:1] == "_"), None)):
            raise CheckpointError(f"{name} is inside `{module}`, which no {architecture} has", hint=SAVE_THE_MODEL)
    if family.experts and (null := next((key for key in _OF_EXPERTS if text.get(key, 0) is None), None)):
        raise CheckpointError(
            f"config.json has null for {null}, and {architecture} has experts", hint=CONFIG_OF_THE_RUN
        )
    shapes = {name: shape for name, shape in shapes.items() if not _predicts_further(name, family, text)}
    layers = _layers(family, text, shapes)
    seen = set()
    for name, expected in _parameters(family, text, layers, _head(architecture, config, shapes), rule_of(architecture)):
        found = shapes.get(name)
        if found is None:
            raise _missing(name, shapes, f"no rank has {name}, and by config.json this {architecture} has one")
        if len(found) != len(expected) or any(each not in (None, at) for each, at in zip(expected, found, strict=True)):
            said = ", ".join("?" if each is None else str(each) for each in expected)
            raise CheckpointError(f"{name} is {list(found)}, and by config.json it is [{said}]", hint=CONFIG_OF_THE_RUN)
        seen.add(name)
    others = sorted(
        name for name in shapes.keys() - seen if name.endswith(_PARAMETER) and not name.startswith(_SEES)
    )  # fmt: skip
    if others:
        raise CheckpointError(
            f"there are {len(others)} tensors that by config.json no {architecture} has: {', '.join(others[:3])}",
            hint=CONFIG_OF_THE_RUN,
        )


def _predicts_further(name: str, family: Family, config: Mapping[str, Any]) -> bool:
    """Whether it is of a layer behind the others that predicts further tokens; no class of transformers has these."""
    number = name.removeprefix(f"{family.prefix}layers.").partition(".")[0]
    first, count = _number(config, "num_hidden_layers"), _number(config, "num_nextn_predict_layers")
    return first is not None and number.isdecimal() and first <= int(number) < first + (count or 0)


def _layers(family: Family, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> int:
    """How many there are, as config.json says."""
    start = f"{family.prefix}layers."
    numbers = {name[len(start) :].partition(".")[0] for name in shapes if name.startswith(start)}
    expected = _number(config, "num_hidden_layers")
    if expected is not None and len(numbers) != expected:
        first = f"{start}0.{next(iter(family.layer))}"
        raise _missing(first, shapes, f"there are {len(numbers)} layers, and config.json says {expected}")
    return len(numbers)


def _missing(name: str, shapes: Mapping[str, Any], otherwise: str) -> CheckpointError:
    """Why there is no such tensor: it is inside a module that is not the model's; else it is simply not there."""
    if around := name_around(name, shapes):
        stored, module = around
        return CheckpointError(f"no rank has {name}: it is inside `{module}`, as {stored}", hint=SAVE_THE_MODEL)
    return CheckpointError(otherwise, hint=CONFIG_OF_THE_RUN)


def _parameters(
    family: Family, config: Mapping[str, Any], layers: int, head: Mapping[str, str], rule: Rule
) -> Iterator[tuple[str, Shape]]:
    sizes = _dimensions(family, config)

    def shape(letters: str) -> Shape:
        return tuple(sizes[letter] for letter in letters.split())

    always = dict(family.layer)
    for key, (names, default) in family.optional.items():
        if bool(config.get(key.lstrip("!"), default)) is not key.startswith("!"):
            always |= names
    yield f"{family.prefix}embed_tokens.weight", shape("V H")
    experts = family.experts if sizes["E"] != 0 else None
    for number in range(layers):
        block = experts.of(sizes, rule) if experts and experts.are_in(number, config) else family.mlp.items()
        for name, letters in chain(always.items(), block):
            yield renamed(f"{family.prefix}layers.{number}.{name}", rule), shape(letters)
    for name, letters in family.last.items():
        yield f"{family.prefix}{name}", shape(letters)
    for name, letters in head.items():
        yield name, shape(letters)


def _head(architecture: str, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, str]:
    if architecture.endswith("ForTokenClassification"):
        return {"score.weight": "? H"} | ({"score.bias": "?"} if "score.bias" in shapes else {})
    if is_tied(architecture, config) and "lm_head.weight" not in shapes:
        return {}
    return {"lm_head.weight": "V H"}


def _dimensions(family: Family, config: Mapping[str, Any]) -> dict[str, int | None]:
    """Each letter's number; None for one that the config does not tell."""

    def size(*keys: str) -> int | None:
        return next((found for key in keys if (found := _number(config, key)) is not None), None)

    hidden, wide, expert, heads = map(
        size, ("hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads")
    )
    head = size("head_dim") or family.head_dim
    if head is None and hidden is not None and heads:
        head = hidden // heads
    query, key = _times(heads, head), _times(size("num_key_value_heads"), head)
    plain, turned, value = map(size, ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent = size("kv_lora_rank")
    return {
        "?": None, "1": 1, "V": size("vocab_size"), "H": hidden, "F": wide, "G": _times(2, wide), "D": head, "Q": query,
        "K": key, "A": _plus(query, _times(2, key)),
        "E": size("num_experts", "num_local_experts", "n_routed_experts"), "M": expert,
        "S": size("shared_expert_intermediate_size"), "T": _times(size("n_shared_experts"), expert),
        # multi-head latent attention
        "L": latent, "R": size("q_lora_rank"), "B": _times(heads, _plus(plain, turned)), "C": _plus(latent, turned),
        "W": _times(heads, _plus(plain, value)), "O": _times(heads, value),
    }  # fmt: skip


def _times(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _number(config: Mapping[str, Any], key: str) -> int | None:
    """A size; None if the config leaves it out.

    Raises:
        CheckpointError: It is no size.
    """
    value = config.get(key)
    if value is None:
        return None
    if type(value) is not int or value < 0:  # 0: there is none of it
        raise CheckpointError(
            f"config.json says {key}: {str(value)[:40]!r}, and that is no size", hint=CONFIG_OF_THE_RUN
        )
    return value
