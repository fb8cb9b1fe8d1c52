"""The safetensors format (safetensors 0.8, README.md, `Format`): header, names of files, index."""

import json
import struct
from collections.abc import Mapping, Sequence

from cloudrl.shards.dtypes import DType
from cloudrl.shards.plan import Output

INDEX = "model.safetensors.index.json"
_ALIGN_BYTES = 8
_ORDER = list(DType)


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
