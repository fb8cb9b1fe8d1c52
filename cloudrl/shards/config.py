"""The small files beside the weights: config, generation config, tokenizer, chat template."""

import json
from collections.abc import Mapping
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".safetensors.index.json", ".bin.index.json")
_CONFIG = "config.json"


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


def output_files(
    files: Mapping[str, bytes], config: Mapping[str, Any], changes: Mapping[str, Any], dtype: DType | None
) -> dict[str, bytes]:
    """What is to lie beside the merged weights.

    Args:
        files: What lies in `huggingface/`; weights in there are left out.
        config: `read_config(files)`.
        changes: What is another in the merged model's config.
        dtype: The type of the merged weights, to be named in the config; None leaves what it says.

    Raises:
        CheckpointError: A file has a name that leads out of the folder.
    """
    kept = {name: data for name, data in files.items() if not name.endswith(_WEIGHTS)}
    for name in kept:
        if not name or name.startswith("/") or "\0" in name or {"..", ".", ""} & set(name.split("/")):
            raise CheckpointError(f"a file of huggingface/ is named {name!r}")
    changed = {**config, **changes}
    if dtype is not None:
        # `torch_dtype` up to transformers 4.55, `dtype` since; with neither, the one that every release reads
        keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
        changed |= dict.fromkeys(keys, dtype.value)
    if changed != config:
        kept[_CONFIG] = (json.dumps(changed, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    return kept
