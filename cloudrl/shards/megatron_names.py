"""Megatron's tensors under the names, and in the cuts, that transformers gives them.

Keys are the same however a model was spread over ranks. Those of layers have the layer as first dimension, or its
number in the key (a list `moe_layer_freq`, or `hetereogenous_dist_checkpoint`); experts likewise. Held against
mbridge 0.15 and Megatron-Bridge 0.5.2 (`merge_qkv_weights`), and against real saves in tests/shards/test_megatron.py.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.critic import is_value_head
from cloudrl.shards.dist_metadata import StoredTensor
from cloudrl.shards.on_disk import renamed, rule_of
from cloudrl.shards.plan import HEAD

_EMBEDDING = "model.embed_tokens.weight"
_ROOTS = ("embedding.", "decoder.", "output_layer.")
_LAYER = re.compile(r"decoder\.layers\.(?:([0-9]{1,6})\.)?(.+)")
_EXPERT = re.compile(r"mlp\.experts\.experts\.(?:([0-9]{1,6})\.)?linear_fc([12])\.weight")
_RENAMED = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_MOST = 2_000
"""Layers, experts or groups: of each of them there is a name or a span."""
_OTHER_BASE = "Name the model that the run was trained from: --base MODEL"

Span = tuple[int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HfTensor:
    """A tensor as transformers has it: rows of one of Megatron's, span after span.

    Attributes:
        key: Of Megatron's.
        lead: Layer and expert, where these are its first dimensions.
        spans: First row, and the row after the last.
    """

    name: str
    key: str
    lead: Shape
    spans: tuple[Span, ...]
    shape: Shape


@dataclass(frozen=True)
class _Family:
    """What is different between architectures: norms and biases of attention, and whether there are experts.

    Attributes:
        expert_size: The key in the config that says how wide an expert is; empty without experts.
    """

    has_bias: bool = False
    has_norms: bool = False
    expert_size: str = ""


FAMILIES = {
    "Qwen2": _Family(has_bias=True),
    "Qwen3": _Family(has_norms=True),
    "Llama": _Family(),
    "Qwen3Moe": _Family(has_norms=True, expert_size="moe_intermediate_size"),
    "Mixtral": _Family(expert_size="intermediate_size"),
}


def hf_tensors(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], label: str) -> list[HfTensor]:
    """All tensors of the model, in its order.

    Args:
        tensors: Of the checkpoint; those that are not of the model are left alone.
        config: The model's `config.json`.
        label: Of the folder, for messages.

    Raises:
        CheckpointError: It is a kind of save that cannot be merged, or it is not of this model.
    """
    mine = {key: tensor for key, tensor in tensors.items() if key.startswith(_ROOTS)}
    if not mine:
        raise CheckpointError(f"{label} has no weights of a model in Megatron's names: {_instead(tensors)}")
    if adapters := [key for key in mine if ".adapter." in key]:
        raise CheckpointError(
            f"{label} holds LoRA adapters in Megatron's names ({len(adapters)}, such as {adapters[0]}), and the folder "
            "that peft reads, model/huggingface/adapter, is not there",
            hint="verl writes it on the node of rank 0: take that node's files along.",
        )
    return _Model(config, label).read(mine)


def _instead(tensors: Mapping[str, StoredTensor]) -> str:
    if any(key.startswith("model.") for key in tensors):
        return "this is what Megatron-FSDP saves, whose parts are cut in another way and are not supported"
    first = next(iter(tensors), None)
    return f"its {len(tensors)} tensors are such as {first}" if first else "it has no tensors"


class _Model:
    """The sizes in a config, and what tensors there must be."""

    def __init__(self, config: Mapping[str, Any], label: str) -> None:
        self._config, self._label = config, label
        named = config.get("architectures")
        architecture = str(named[0]) if isinstance(named, list) and named else ""
        family = architecture.removesuffix("ForCausalLM").removesuffix("ForTokenClassification")
        if family not in FAMILIES:
            raise CheckpointError(
                f"{architecture or 'a model without architecture'} cannot be merged from Megatron's distributed "
                f"format; these can: {', '.join(FAMILIES)}",
                hint="With mbridge verl saves a whole Hugging Face model: use_dist_checkpointing=False (the default)",
            )
        self._family, self._rule = FAMILIES[family], rule_of(architecture)
        self._layers, self._hidden = self._size("num_hidden_layers", most=_MOST), self._size("hidden_size")
        heads = self._size("num_attention_heads")
        self._groups = self._size("num_key_value_heads", heads, most=_MOST)
        self._head = self._size("head_dim", self._hidden // heads)
        self._query = heads // self._groups * self._head
        self._ffn, self._vocabulary = self._size("intermediate_size"), self._size("vocab_size")
        self._experts = self._expert_ffn = 0
        if self._family.expert_size:  # transformers 5 writes the one, and reads both
            self._experts = self._size("num_local_experts", config.get("num_experts"), least=0, most=_MOST)
            self._expert_ffn = self._size(self._family.expert_size)

    def _size(self, name: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31) -> int:
        value = self._config.get(name)
        value = default if value is None else value
        if type(value) is not int or not least <= value <= most:
            raise CheckpointError(f"config.json says {name} = {value!r:.80}", hint=_OTHER_BASE)
        return value

    def read(self, tensors: Mapping[str, StoredTensor]) -> list[HfTensor]:
        found: dict[str, HfTensor] = {}
        for key, stored in tensors.items():
            for tensor in self._renamed(key, stored):
                name = renamed(tensor.name, self._rule)
                if name in found:
                    raise CheckpointError(f"{self._label}: {key} and {found[name].key} are both {name}")
                found[name] = replace(tensor, name=name)
        is_critic = HEAD in found and is_value_head(found[HEAD].shape, self._config)
        is_tied = self._config.get("tie_word_embeddings") is True
        wanted = list(self._names(has_head=is_critic or not is_tied or HEAD in found))
        gone, odd = [name for name in wanted if name not in found], found.keys() - set(wanted)
        if gone or odd:
            what = f"{len(gone)} tensors of the model are missing: {gone[0]}" if gone else f"{min(odd)} is too much"
            raise self._other(f"{what}, by config.json")
        return [found[name] for name in wanted]

    def _names(self, *, has_head: bool) -> Iterator[str]:
        """Of the whole model."""
        family = self._family
        norms = ("self_attn.q_norm.weight", "self_attn.k_norm.weight") if family.has_norms else ()
        biases = [f"self_attn.{part}_proj.bias" for part in "qkv"] if family.has_bias else ()
        attention = ("input_layernorm.weight", *(f"self_attn.{part}_proj.weight" for part in "qkvo"), *biases, *norms)
        yield _EMBEDDING
        for layer in range(self._layers):
            names = [*attention, "post_attention_layernorm.weight"]
            if self._is_sparse(layer):
                experts = product(range(self._experts), self._rule.experts)
                names.append("mlp.gate.weight")
                names += [f"mlp.experts.{number}.{part}.weight" for number, part in experts]
            else:
                names += [f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
            yield from (renamed(f"model.layers.{layer}.{name}", self._rule) for name in names)
        yield "model.norm.weight"
        if has_head:
            yield HEAD

    def _is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts (transformers 5.10, modeling_qwen3_moe.py, `Qwen3MoeDecoderLayer`)."""
        dense, every = self._config.get("mlp_only_layers"), self._config.get("decoder_sparse_step")
        is_dense = isinstance(dense, list) and layer in dense
        return (
            bool(self._experts) and not is_dense and (layer + 1) % (every if type(every) is int and every else 1) == 0
        )

    def _renamed(self, key: str, stored: StoredTensor) -> Iterator[HfTensor]:
        """What one of Megatron's tensors becomes."""
        if key in ("embedding.word_embeddings.weight", "output_layer.weight"):
            yield self._vocabulary_rows(key, stored)
        elif key == "decoder.final_layernorm.weight":
            yield self._part(key, stored, (), "model.norm.weight", (self._hidden,))
        elif match := _LAYER.fullmatch(key):
            make = self._maker(key, match[2])
            layers = [(int(match[1]), ())] if match[1] else [(at, (at,)) for at in range(self._layers)]
            if not match[1] and stored.shape[:1] != (self._layers,):
                raise self._other(f"{key} is {stored.shape}, and config.json says {self._layers} layers")
            for layer, lead in layers:
                yield from make(key, stored, f"model.layers.{layer}.", lead)
        else:
            raise self._other(f"{key} has no place in it")

    def _maker(self, key: str, rest: str) -> "_Maker":
        """What makes the tensors of a layer."""
        if rest in _RENAMED:
            return lambda key, stored, base, lead: [
                self._part(key, stored, lead, base + _RENAMED[rest], self._shape(rest))
            ]
        if rest in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
            return self._attention
        if rest == "mlp.linear_fc1.weight":
            return lambda key, stored, base, lead: self._halves(
                key, stored, lead, (f"{base}mlp.gate_proj.weight", f"{base}mlp.up_proj.weight"), self._ffn
            )
        if rest == "mlp.router.weight":
            return lambda key, stored, base, lead: [
                self._part(key, stored, lead, f"{base}mlp.gate.weight", (self._experts, self._hidden))
            ]
        if _EXPERT.fullmatch(rest) and self._experts:
            return self._of_experts
        raise self._other(f"{key} has no place in it")

    def _shape(self, rest: str) -> Shape:
        """Of what is renamed only."""
        if rest == "self_attention.linear_proj.weight":
            return self._hidden, self._query * self._groups
        if rest == "mlp.linear_fc2.weight":
            return self._hidden, self._ffn
        return (self._head,) if rest.endswith(("q_layernorm.weight", "k_layernorm.weight")) else (self._hidden,)

    def _vocabulary_rows(self, key: str, stored: StoredTensor) -> HfTensor:
        """Without the rows that make the vocabulary divisible."""
        is_head = key == "output_layer.weight"
        if is_head and is_value_head(stored.shape, self._config):
            return self._part(key, stored, (), HEAD, (1, self._hidden))
        if len(stored.shape) != 2 or stored.shape[0] < self._vocabulary or stored.shape[1] != self._hidden:
            raise self._other(f"{key} is {stored.shape}, and config.json says {(self._vocabulary, self._hidden)}")
        shape = self._vocabulary, self._hidden
        return HfTensor(HEAD if is_head else _EMBEDDING, key, (), ((0, self._vocabulary),), shape)

    def _part(self, key: str, stored: StoredTensor, lead: Shape, name: str, shape: Shape) -> HfTensor:
        self._check(key, stored, lead, shape)
        return HfTensor(name, key, lead, ((0, shape[0]),), shape)

    def _halves(self, key: str, stored: StoredTensor, lead: Shape, names: tuple[str, str], rows: int) -> list[HfTensor]:
        self._check(key, stored, lead, (2 * rows, self._hidden))
        shape = rows, self._hidden
        return [HfTensor(name, key, lead, ((at * rows, (at + 1) * rows),), shape) for at, name in enumerate(names)]

    def _attention(self, key: str, stored: StoredTensor, base: str, lead: Shape) -> Iterator[HfTensor]:
        """Each group has its queries, one key and one value, one below the other."""
        kind = key.rpartition(".")[2]
        width = self._query + 2 * self._head
        beside = (self._hidden,) if kind == "weight" else ()
        self._check(key, stored, lead, (self._groups * width, *beside))
        at = 0
        for part, rows in (("q", self._query), ("k", self._head), ("v", self._head)):
            spans = tuple((group * width + at, group * width + at + rows) for group in range(self._groups))
            yield HfTensor(f"{base}self_attn.{part}_proj.{kind}", key, lead, spans, (self._groups * rows, *beside))
            at += rows

    def _of_experts(self, key: str, stored: StoredTensor, base: str, lead: Shape) -> Iterator[HfTensor]:
        match = _EXPERT.search(key)
        number, which = match.groups() if match else (None, "")
        count = stored.shape[len(lead)] if len(stored.shape) > len(lead) else 0
        if number is None and count != self._experts:
            raise self._other(f"{key} is {stored.shape}, and config.json says {self._experts} experts")
        gate, up, down = self._rule.experts
        experts = [(int(number), lead)] if number else [(at, (*lead, at)) for at in range(self._experts)]
        for expert, place in experts:
            name = f"{base}mlp.experts.{expert}."
            if which == "1":
                names = f"{name}{gate}.weight", f"{name}{up}.weight"
                yield from self._halves(key, stored, place, names, self._expert_ffn)
            else:
                yield self._part(key, stored, place, f"{name}{down}.weight", (self._hidden, self._expert_ffn))

    def _check(self, key: str, stored: StoredTensor, lead: Shape, shape: Shape) -> None:
        if stored.shape[len(lead) :] != shape:
            raise self._other(f"{key} is {stored.shape}, and by config.json it ends in {shape}")

    def _other(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._label} is not of the model that config.json describes: {why}", hint=_OTHER_BASE)


_Maker = Callable[[str, StoredTensor, str, Shape], "Iterator[HfTensor] | list[HfTensor]"]
