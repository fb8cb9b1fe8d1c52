"""The files of a merged model: config, tokenizer and the like, and the safetensors format for its weights.

That is safetensors 0.8, README.md, `Format`: header, names of files, index.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType
from cloudrl.shards.lora_settings import ADAPTER_CONFIG
from cloudrl.shards.plan import Output

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".safetensors.index.json", ".bin.index.json")
_CONFIG = "config.json"
_DTYPE_KEYS = ("dtype", "torch_dtype")
_NESTED = ("text_config", "vision_config")
_HEADS, _GROUPS = "num_attention_heads", "num_key_value_heads"
_WITH_DEFAULT = {
    "attention_bias", "attention_dropout", "attention_k_eq_v", "attn_scale", "attn_temperature_tuning",
    "decoder_sparse_step", "enable_moe_block", "first_k_dense_replace", "floor_scale", "head_dim", "initializer_range",
    "interleave_moe_layer_step", "layer_norm_eps", "max_position_embeddings", "max_window_layers", "mlp_bias",
    "n_group", "no_rope_layer_interval", "norm_topk_prob", "num_experts_per_tok", "num_kv_shared_layers",
    "output_router_logits", "qk_head_dim", "quantization_config", "rms_norm_eps", "routed_scaling_factor",
    "router_aux_loss_coef", "router_jitter_noise", "tie_word_embeddings", "topk_group", "use_cache",
    "use_double_wide_mlp", "use_qk_norm", "use_sliding_window",
}  # fmt: skip
_NEEDED = {
    "hidden_act", "hidden_activation", "hidden_size", "intermediate_size", "intermediate_size_mlp", "kv_lora_rank",
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_value_head_dim", "model_type", "num_attention_heads", "num_hidden_layers", "qk_nope_head_dim",
    "qk_rope_head_dim", "query_pre_attn_scalar", "v_head_dim", "vocab_size", "vocab_size_per_layer_input",
}  # fmt: skip
_NEEDED_BY_GEMMA4 = {"sliding_window"}  # elsewhere null means that the model has no such part
"""Keys of which transformers 5 loads no null; tests/shards/test_nulls.py tries each key of several models."""
_ALIGN_BYTES = 8
_ORDER = list(DType)


@dataclass(frozen=True)
class ModelFiles:
    """What is stored beside the weights of a model.

    Attributes:
        files: By name.
        saved: `config.json` as it is there.
        config: The same as it is going to be written (`without_nulls`).
    """

    files: Mapping[str, bytes]
    saved: Mapping[str, Any]
    config: Mapping[str, Any]


def read_files(files: Mapping[str, bytes]) -> ModelFiles:
    """Read the model's configuration.

    Raises:
        CheckpointError: It is missing, is not a JSON object, or has null where a model needs a value.
    """
    saved = _parse(files.get(_CONFIG))
    return ModelFiles(files, saved, without_nulls(saved))


def _parse(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise CheckpointError(
            "there is no huggingface/config.json beside the shards",
            hint="verl writes it on the node of rank 0: take that node's files along, or copy the base model's.",
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"huggingface/config.json is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"huggingface/config.json is not a JSON object, but {type(config).__name__}")
    return config


def without_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same without a `null` that transformers 5 does not load, where it is clear what it stands for.

    transformers 4 took them, and a config that somebody has edited may have them. Without the key the class has its
    default; `num_key_value_heads` stands for as many as there are heads (transformers 4.57, models/*/configuration_*).

    Raises:
        CheckpointError: Nothing tells what it stands for.
    """
    filled = _filled(config)
    return filled | {name: _filled(filled[name]) for name in _NESTED if isinstance(filled.get(name), dict)}


def _filled(part: Mapping[str, Any]) -> dict[str, Any]:
    needed = _NEEDED | (_NEEDED_BY_GEMMA4 if str(part.get("model_type")).startswith("gemma4") else set())
    if lost := next((key for key in part if key in needed and part[key] is None), None):
        raise CheckpointError(
            f"config.json says {lost}: null, and transformers loads no such model",
            hint="Take the config.json of the base model in its place",
        )
    filled = {key: value for key, value in part.items() if value is not None or key not in _WITH_DEFAULT}
    if filled.get(_GROUPS, 0) is None and type(filled.get(_HEADS)) is int:
        filled[_GROUPS] = filled[_HEADS]
    return filled


def first_architecture(config: Mapping[str, Any]) -> str:
    """The class that the config names; "" if it names none."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""


def output_files(beside: ModelFiles, changes: Mapping[str, Any], dtype: DType | None) -> dict[str, bytes]:
    """What is to be beside the merged weights.

    Args:
        beside: What is in `huggingface/`; weights in there are left out, and what says that they are an adapter.
        changes: What is another in the merged model's config; None for what is not in there.
        dtype: The type of the merged weights, to be named in the config; None leaves what it says.

    Raises:
        CheckpointError: A file has a name that leads out of the folder.
    """
    files = {name: data for name, data in beside.files.items() if not name.endswith(WEIGHTS) and name != ADAPTER_CONFIG}
    for name in files:
        if not name or name.startswith("/") or "\0" in name or {"..", ".", ""} & set(name.split("/")):
            raise CheckpointError(f"a file of huggingface/ is named {name!r}")
    changed = {**beside.config, **changes}
    changed = {key: value for key, value in changed.items() if value is not None or key not in changes}
    if dtype is not None:
        # `torch_dtype` up to transformers 4.55, `dtype` since; with neither, the one that every release reads
        keys = [key for key in _DTYPE_KEYS if key in beside.config] or ["torch_dtype"]
        changed |= dict.fromkeys(keys, dtype.value)
        changed |= {name: _retyped(changed[name], dtype) for name in _NESTED if isinstance(changed.get(name), dict)}
    if changed != beside.saved:
        files[_CONFIG] = (json.dumps(changed, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    return files


def _retyped(part: Mapping[str, Any], dtype: DType) -> dict[str, Any]:
    """A part of the config; most say nothing of a type of their own."""
    return {**part, **{key: dtype.value for key in _DTYPE_KEYS if part.get(key) is not None}}


def in_file_order(outputs: Sequence[Output]) -> list[Output]:
    """The order in which the tensors of one file are in it: by type, then by name."""
    return sorted(outputs, key=lambda output: (_ORDER.index(output.dtype), output.name))


def header(outputs: Sequence[Output]) -> bytes:
    """What stands before the tensors, which follow it in this order without gaps."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for output in outputs:
        end = at + output.size_bytes
        entries[output.name] = {
            "dtype": output.dtype.safetensors,
            "shape": list(output.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGN_BYTES)
    return struct.pack("<Q", len(text)) + text


def file_names(count: int) -> list[str]:
    """As transformers numbers them."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def index(files: Mapping[str, Sequence[Output]]) -> bytes:
    """The text of `model.safetensors.index.json` (transformers 5, modeling_utils.py, `save_pretrained`)."""
    outputs = [output for file in files.values() for output in file]
    content = {
        "metadata": {
            "total_parameters": sum(output.elements for output in outputs),
            "total_size": sum(output.size_bytes for output in outputs),
        },
        "weight_map": dict(sorted((output.name, name) for name, each in files.items() for output in each)),
    }
    return (json.dumps(content, indent=2) + "\n").encode()
