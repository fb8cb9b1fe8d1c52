"""What a model's config.json says about its size and shape, and the table of models whose config.json is known here.

The table is `models.json`: values of the public config.json, by the model's name on the Hugging Face Hub. A folder or a
repository of another owner with the same last name counts as the same model, and `source` says so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.foreign import parse_object
from cloudrl.shards.counting import Counts, count_parameters, text_part
from cloudrl.shards.model_files import first_architecture

_TABLE = Path(__file__).with_name("models.json")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/")
"""A folder of the Hugging Face cache (huggingface_hub 1.x, constants.py: REPO_ID_SEPARATOR)."""


@dataclass(frozen=True)
class ModelConfig:
    """The content of a model's config.json.

    Attributes:
        name: as the user calls the model.
        values: the content.
        source: where it comes from, for messages: `./model/config.json`, `cloudrl's table of models`.
        is_guess: whether only the last part of the name is that of a known model.
        is_of_table: whether the content is from cloudrl's own table, whose classes are those of the language part.
    """

    name: str
    values: Mapping[str, Any]
    source: str
    is_guess: bool = False
    is_of_table: bool = False

    @cached_property
    def text(self) -> Mapping[str, Any]:
        """The config of the language part."""
        return text_part(self.values)

    @cached_property
    def counts(self) -> Counts:
        """How many parameters each part has.

        Raises:
            CheckpointError: config.json does not tell.
        """
        return count_parameters(self.values)

    @property
    def architecture(self) -> str:
        """The class that it names; "" without one."""
        return first_architecture(self.values)

    @property
    def is_tied(self) -> bool:
        """Whether one matrix is embedding and output head."""
        return self.counts.head == 0

    def size(self, *keys: str) -> int | None:
        """The first of these keys that is a positive whole number in the language part."""
        found = (self.text.get(key) for key in keys)
        return next((value for value in found if type(value) is int and value > 0), None)

    def required(self, key: str) -> int:
        """A size that every model has.

        Raises:
            CheckpointError: config.json does not tell it.
        """
        if (value := self.size(key)) is None:
            raise CheckpointError(f"{self.source} has no {key}")
        return value

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return self.required("hidden_size")

    @property
    def layers(self) -> int:
        """How many it has."""
        return self.required("num_hidden_layers")

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return self.required("vocab_size")

    @property
    def heads(self) -> int | None:
        """Attention heads of a layer."""
        return self.size("num_attention_heads")

    @property
    def kv_heads(self) -> int | None:
        """Heads of keys and values; with latent attention each tensor-parallel rank has all of them, so None."""
        return None if self.is_latent else self.size("num_key_value_heads") or self.heads

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are kept as one latent vector (DeepSeek's attention)."""
        return self.size("kv_lora_rank") is not None

    @property
    def positions(self) -> int | None:
        """Most tokens of a sequence."""
        return self.size("max_position_embeddings")

    @property
    def experts(self) -> int:
        """Routed experts of a layer; 0 for a dense model."""
        return self.size(*_EXPERTS) or 0

    @cached_property
    def query_width(self) -> int:
        """Elements of a token's queries in a layer, all heads together."""
        heads = self.heads or 1
        if self.is_latent:
            return heads * ((self.size("qk_nope_head_dim") or 0) + (self.size("qk_rope_head_dim") or 0))
        return heads * (self.size("head_dim") or self.hidden // heads)

    @cached_property
    def kv_width(self) -> int:
        """Elements of a token's keys in a layer, and as many of its values."""
        if self.is_latent:  # one latent vector for both
            return ((self.size("kv_lora_rank") or 0) + (self.size("qk_rope_head_dim") or 0)) // 2
        heads = self.heads or 1
        return (self.kv_heads or heads) * (self.size("head_dim") or self.hidden // heads)

    @cached_property
    def inner_width(self) -> int:
        """Elements of a token inside the MLP of a layer; of experts those that compute a token."""
        if not self.experts:
            return self.size("intermediate_size") or 4 * self.hidden
        width = self.size("moe_intermediate_size", "intermediate_size") or self.hidden
        shared = self.size("shared_expert_intermediate_size") or (self.size("n_shared_experts") or 0) * width
        return (self.size("num_experts_per_tok") or 2) * width + shared

    @cached_property
    def linear_bytes(self) -> float:
        """Bytes of a token that a layer of linear attention saves beside its MLP; 0 without such layers.

        Inputs and outputs of the convolution, normalized queries and keys, gates, and a state of each chunk of 64
        tokens (flash-linear-attention 0.3, ops/gated_delta_rule/chunk.py).
        """
        keys, values = self.size("linear_num_key_heads") or 0, self.size("linear_num_value_heads") or 0
        key, value = self.size("linear_key_head_dim") or 0, self.size("linear_value_head_dim") or 0
        inputs, outputs = 2 * keys * key + values * value, values * value
        return 10 * inputs + 8 * outputs + 4 * values * key * value / 64

    @cached_property
    def attention_layers(self) -> int:
        """Layers that keep keys and values; the others are linear attention."""
        kinds = self.text.get("layer_types")
        if isinstance(kinds, list):
            return sum(kind != "linear_attention" for kind in kinds) or self.layers
        if self.size("linear_num_value_heads") is None:
            return self.layers
        return max(1, self.layers // (self.size("full_attention_interval") or 4))


@functools.cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Name on the Hub -> content of its config.json, as far as it is in the table."""
    models = {}
    for family in parse_object(_TABLE.read_bytes())["families"]:
        for row in family["models"]:
            values = {**family["config"], **dict(zip(family["columns"], row["sizes"], strict=True))}
            for name in row["names"]:
                models[name] = {**values, **row.get("also", {}), **(row.get("but") or {}).get(name, {})}
    return models


@functools.cache
def _by_last_name() -> Mapping[str, str]:
    """Last part of the name, in lower case -> name on the Hub."""
    return {name.rpartition("/")[2].lower(): name for name in reversed(list(known_models()))}


def known_model(name: str) -> ModelConfig | None:
    """The model of the table that a name or the path of a folder means; None if unknown.

    Args:
        name: on the Hub, or a path whose last part is the name of a model.
    """
    models = known_models()
    if name in models:
        return ModelConfig(name, models[name], "cloudrl's table of models", is_of_table=True)
    cached = _SNAPSHOT.search(name)
    last = cached["name"] if cached else name.rstrip("/").rpartition("/")[2]
    meant = _by_last_name().get(last.lower())
    source, is_guess = f"{meant} in cloudrl's table of models", cached is None
    return ModelConfig(name, models[meant], source, is_guess, is_of_table=True) if meant else None
