"""Which parameters a model has, by its config.json: names and shapes as transformers makes them.

Source: transformers 5.10, models/*/modeling_*.py and configuration_*.py; tests/shards/test_architectures.py holds it
against the models themselves. What a merge is going to write is compared with it before a byte is written: a tensor
that is missing on all ranks, or the config of another model, would load as a model with random numbers in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.architectures import SEEING
from cloudrl.shards.family import IN_LLAVA, Family, number
from cloudrl.shards.mixed_families import MIXED
from cloudrl.shards.model_files import first_architecture
from cloudrl.shards.on_disk import Rule, renamed, rule_of
from cloudrl.shards.towers import SEES, check_towers
from cloudrl.shards.uniform_families import DENSE_AND_EXPERTS
from cloudrl.shards.way_out import CONFIG_OF_THE_RUN, KEEP_SHARDS
from cloudrl.shards.wrappers import SAVE_THE_MODEL, name_around

Shape = tuple[int | None, ...]
"""None for a dimension that the config does not tell."""

FAMILIES: Mapping[str, Family] = {**DENSE_AND_EXPERTS, **MIXED}
_IN_INTERNVL = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "gpt_oss": "GptOss"}
"""By `model_type` of the language part."""
_OF_EXPERTS = (
    "moe_intermediate_size", "num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts",
    "shared_expert_intermediate_size",
)  # fmt: skip
_PARAMETER = (".weight", ".bias")


def family_of(architecture: str, config: Mapping[str, Any]) -> Family | None:
    """That of a class, with the config of its language part; None if it is not known."""
    name, text = architecture.partition("For")[0], config.get("text_config")
    if name != "InternVL":
        return FAMILIES.get(architecture) or FAMILIES.get(name)
    kind = text.get("model_type") if isinstance(text, dict) else None
    if not isinstance(kind, str) or kind not in _IN_INTERNVL:
        raise CheckpointError(
            f"{architecture} cannot be merged with a {str(kind)[:40]!r} as its language part: only with "
            f"{', '.join(_IN_INTERNVL)}",
            hint=KEEP_SHARDS,
        )
    return replace(FAMILIES[_IN_INTERNVL[kind]], is_tied=True, **IN_LLAVA)


def keeps_experts_fused(config: Mapping[str, Any]) -> bool:
    """Whether the experts of this model are one tensor on disk, too."""
    family = family_of(first_architecture(config), config)
    return family is not None and family.fused_experts


def is_tied(architecture: str, config: Mapping[str, Any]) -> bool:
    """Whether embedding and output head are one, as transformers decides it."""
    family, text = family_of(architecture, config), config.get("text_config")
    if architecture.endswith(SEEING) and "tie_word_embeddings" not in config and isinstance(text, dict):
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
        CheckpointError: A parameter is missing, of another shape, or does not belong to this class.
    """
    family = family_of(architecture, config)
    if family is None:
        return
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    for name in shapes:
        if name.startswith(SEES) and (module := next((each for each in name.split(".") if each[:1] == "_"), None)):
            raise CheckpointError(f"{name} is inside `{module}`, which no {architecture} has", hint=SAVE_THE_MODEL)
    if family.experts and (null := next((key for key in _OF_EXPERTS if text.get(key, 0) is None), None)):
        raise CheckpointError(
            f"config.json has null for {null}, and {architecture} has experts", hint=CONFIG_OF_THE_RUN
        )
    shapes = {name: shape for name, shape in shapes.items() if not _predicts_further(name, family, text)}
    seen = set()
    head = _head(family, architecture, config, shapes)
    for name, expected in _parameters(family, text, shapes, head, rule_of(architecture)):
        found = shapes.get(name)
        if found is None:
            raise _missing(name, shapes, f"no rank has {name}, and by config.json this {architecture} has one")
        if len(found) != len(expected) or any(each not in (None, at) for each, at in zip(expected, found, strict=True)):
            said = ", ".join("?" if each is None else str(each) for each in expected)
            raise CheckpointError(f"{name} is {list(found)}, and by config.json it is [{said}]", hint=CONFIG_OF_THE_RUN)
        seen.add(name)
    others = sorted(
        name
        for name in shapes.keys() - seen
        if name.endswith(_PARAMETER) and not name.startswith(SEES) and not family.ignores(name, text)
    )
    if others:
        raise CheckpointError(
            f"there are {len(others)} tensors that by config.json no {architecture} has: {', '.join(others[:3])}",
            hint=CONFIG_OF_THE_RUN,
        )
    if architecture.endswith(SEEING):
        check_towers(config, shapes)


def _predicts_further(name: str, family: Family, config: Mapping[str, Any]) -> bool:
    """Whether it is of a layer behind the others that predicts further tokens; no class of transformers has these."""
    at = name.removeprefix(f"{family.prefix}layers.").partition(".")[0]
    first, count = number(config, "num_hidden_layers"), number(config, "num_nextn_predict_layers")
    return first is not None and at.isdecimal() and first <= int(at) < first + (count or 0)


def _layers(family: Family, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> int:
    """How many there are, as config.json says."""
    start = f"{family.prefix}layers."
    numbers = {name[len(start) :].partition(".")[0] for name in shapes if name.startswith(start)}
    expected = number(config, "num_hidden_layers")
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
    family: Family, config: Mapping[str, Any], shapes: Mapping[str, Any], head: Mapping[str, str], rule: Rule
) -> Iterator[tuple[str, Shape]]:
    sizes = dimensions(family, config)

    def shape(letters: str) -> Shape:
        return tuple(sizes[letter] for letter in letters.split())

    yield f"{family.prefix}embed_tokens.weight", shape("V H")
    experts = family.experts if sizes["E"] != 0 else None
    for at in range(_layers(family, config, shapes)):
        start = f"{family.prefix}layers.{at}."
        there = {name for name in experts.or_whole if start + name in shapes} if experts else set()
        block = experts.of(sizes, rule, there) if experts and experts.are_in(at, config) else family.mlp.items()
        for name, letters in chain(family.layer_of(at, config).items(), block):
            yield renamed(f"{start}{name}", rule), shape(letters)
    for name, letters in family.outside(config).items():
        yield f"{family.prefix}{name}", shape(letters)
    for name, letters in head.items():
        yield name, shape(letters)


def _head(family: Family, architecture: str, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, str]:
    if architecture.endswith("ForTokenClassification"):
        return {"score.weight": "? H"} | ({"score.bias": "?"} if "score.bias" in shapes else {})
    if is_tied(architecture, config) and family.head not in shapes:
        return {}
    return {family.head: "V H"}


def dimensions(family: Family, config: Mapping[str, Any]) -> dict[str, int | None]:
    """Each letter's number; None for one that the config does not tell."""

    def size(*keys: str) -> int | None:
        return next((size for key in keys if (size := number(config, key)) is not None), None)

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
        "heads": heads, "2Q": _times(2, query), "2M": _times(2, expert), "mlp": size("intermediate_size_mlp"),
        **_gemma4_dimensions(config, heads, head), **_delta_net_dimensions(config),
    }  # fmt: skip


def _gemma4_dimensions(config: Mapping[str, Any], heads: int | None, head: int | None) -> dict[str, int | None]:
    """Layers of full attention, and inputs of a layer by themselves."""
    wide = number(config, "global_head_dim") or (512 if "global_head_dim" not in config else None)
    groups, others = number(config, "num_key_value_heads"), number(config, "num_global_key_value_heads")
    inputs, layers = number(config, "hidden_size_per_layer_input"), number(config, "num_hidden_layers")
    inputs = 256 if "hidden_size_per_layer_input" not in config else inputs
    return {
        "global-D": wide, "global-Q": _times(heads, wide), "global-K": _times(groups, wide),
        "global-alternative-K": _times(others, wide), "alternative-K": _times(others, head),
        "P": inputs, "LP": _times(layers, inputs), "VP": number(config, "vocab_size_per_layer_input"),
    }  # fmt: skip


def _delta_net_dimensions(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Layers of linear attention."""
    keys, values = number(config, "linear_num_key_heads"), number(config, "linear_num_value_heads")
    key, width = _times(keys, number(config, "linear_key_head_dim")), number(config, "linear_value_head_dim")
    value = _times(values, width)
    return {
        "heads-v": values, "2-heads-v": _times(2, values), "head-v": width, "v": value,
        "qkv": _plus(_times(2, key), value), "qkvz": _times(2, _plus(key, value)),
        "conv": number(config, "linear_conv_kernel_dim"),
    }  # fmt: skip


def _times(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one * other


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
