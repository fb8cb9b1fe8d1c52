"""The files of a merged model: config, tokenizer and the like, and the safetensors format for its weights.

That is safetensors 0.8, README.md, `Format`: header, names of files, index.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType
from cloudrl.shards.lora_settings import ADAPTER_CONFIG
from cloudrl.shards.plan import Output

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".safetensors.index.json", ".bin.index.json")
_CONFIG = "config.json"
_DTYPE_KEYS = ("dtype", "torch_dtype")
_NESTED = ("text_config", "vision_config")
_ALIGN_BYTES = 8
_ORDER = list(DType)


def read_config(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The model's configuration.

    Raises:
        CheckpointError: There is none, or it is no JSON object.
    """
    text = files.get(_CONFIG)
    if text is None:
        raise CheckpointError(
            "there is no huggingface/config.json beside the shards",
            hint="verl writes it on the node of rank 0: take that node's files along, or copy the base model's.",
        )
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"huggingface/config.json is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"huggingface/config.json is no JSON object, but {type(config).__name__}")
    return config


def first_architecture(config: Mapping[str, Any]) -> str:
    """The class that the config names; "" if it names none."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""


def output_files(
    files: Mapping[str, bytes], config: Mapping[str, Any], changes: Mapping[str, Any], dtype: DType | None
) -> dict[str, bytes]:
    """What is to lie beside the merged weights.

    Args:
        files: What lies in `huggingface/`; weights in there are left out, and what says that they are an adapter.
        config: `read_config(files)`.
        changes: What is another in the merged model's config; None for what is not in there.
        dtype: The type of the merged weights, to be named in the config; None leaves what it says.

    Raises:
        CheckpointError: A file has a name that leads out of the folder.
    """
    kept = {name: data for name, data in files.items() if not name.endswith(WEIGHTS) and name != ADAPTER_CONFIG}
    for name in kept:
        if not name or name.startswith("/") or "\0" in name or {"..", ".", ""} & set(name.split("/")):
            raise CheckpointError(f"a file of huggingface/ is named {name!r}")
    changed = {key: value for key, value in {**config, **changes}.items() if value is not None or key not in changes}
    if dtype is not None:
        # `torch_dtype` up to transformers 4.55, `dtype` since; with neither, the one that every release reads
        keys = [key for key in _DTYPE_KEYS if key in config] or ["torch_dtype"]
        changed |= dict.fromkeys(keys, dtype.value)
        changed |= {name: _retyped(changed[name], dtype) for name in _NESTED if isinstance(changed.get(name), dict)}
    if changed != config:
        kept[_CONFIG] = (json.dumps(changed, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    return kept


def _retyped(part: Mapping[str, Any], dtype: DType) -> dict[str, Any]:
    """A part of the config; most say nothing of a type of their own."""
    return {**part, **{key: dtype.value for key in _DTYPE_KEYS if part.get(key) is not None}}


def in_file_order(outputs: Sequence[Output]) -> list[Output]:
    """The order in which the tensors of one file lie in it: by type, then by name."""
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
    outputs = [output for each in files.values() for output in each]
    content = {
        "metadata": {
            "total_parameters": sum(output.elements for output in outputs),
            "total_size": sum(output.size_bytes for output in outputs),
        },
        "weight_map": dict(sorted((output.name, name) for name, each in files.items() for output in each)),
    }
    return (json.dumps(content, indent=2) + "\n").encode()
