"""Where the files of a save of Megatron's are, for a merge and a check; only small ones are read."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloudrl.checkpoints.base_model import read_base
from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.inventory import Checkpoint, FileCopy
from cloudrl.saves.megatron_layout import MANIFEST, METADATA, Kind
from cloudrl.saves.names import is_small, on_one_line
from cloudrl.shards.megatron import DistInputs
from cloudrl.shards.model_files import WEIGHTS
from cloudrl.shards.model_folder import ModelInputs
from cloudrl.shards.source import ShardSource
from cloudrl.units import size_text

OpenFile = Callable[[FileCopy], ShardSource]
_CONFIG = "transformer_config.json"
_ARE_WEIGHTS = re.compile(
    r"((pytorch_|adapter_)?model|consolidated)([-.]\d+(-of-\d+)?)?\.(safetensors|bin|pt|pth)(\.index\.json)?"
)
"""What transformers, peft and Meta name them: what a merge replaces."""
_FLAT = "huggingface/"
"""Config and tokenizer beside the distributed format: verl 0.8 and before wrote them there."""


def megatron_inputs(checkpoint: Checkpoint, open_file: OpenFile, base: str | None = None) -> ModelInputs | DistInputs:
    """Say where everything is.

    Args:
        checkpoint: What to merge.
        open_file: Gives the bytes of one of its files, wherever that lies.
        base: The model that the run was trained from: see `read_base`.

    Raises:
        InputError: A base model is named and not needed, or is none.
        ConnectionFailed: The Hub does not answer.
        CheckpointError: There are no weights, or a small file cannot be read.
    """
    weights = checkpoint.weights
    if weights is None:
        raise CheckpointError(f"{checkpoint.name} has no weights", hint="cloudrl checkpoints list")
    if weights.kind is not Kind.DIST:
        if base is not None:
            raise InputError(f"{checkpoint.name} has its own config, so --base {base} has no use", hint="Leave it out")
        return ModelInputs(
            files_below(checkpoint, weights.folder, ".safetensors", open_file),
            read_small(checkpoint, weights.folder, open_file),
            tuple(odd_files(checkpoint, weights.folder)),
        )
    metadata = checkpoint.files.get(weights.folder + METADATA)
    if metadata is None:
        raise CheckpointError(
            f"{checkpoint.name} has no {weights.folder}{METADATA}: its saving was cut off, or a node is gone",
            hint="Take another step: cloudrl checkpoints list",
        )
    return DistInputs(
        open_file(metadata[0]),
        files_below(checkpoint, weights.folder, ".distcp", open_file),
        read_base(base) if base is not None else read_small(checkpoint, _FLAT, open_file),
        {**read_json(checkpoint, _CONFIG, open_file), **_about(read_json(checkpoint, MANIFEST, open_file))},
        tuple(odd_files(checkpoint, _FLAT)),
    )


def files_below(checkpoint: Checkpoint, folder: str, suffix: str, open_file: OpenFile) -> dict[str, ShardSource]:
    """Files of this kind in a folder, and not in one below it."""
    names = {
        path: path[len(folder) :] for path in checkpoint.files if path.startswith(folder) and path.endswith(suffix)
    }
    return {name: open_file(checkpoint.files[path][0]) for path, name in names.items() if "/" not in name}


def read_small(checkpoint: Checkpoint, folder: str, open_file: OpenFile) -> dict[str, bytes]:
    """Config, tokenizer and the like, by their path below the folder."""
    small = {
        name.removeprefix(folder): copies[0]
        for name, copies in checkpoint.files.items()
        if name.startswith(folder) and is_small(name, copies[0].size_bytes)
    }
    return {name: open_file(file).read(0, file.size_bytes) for name, file in small.items()}


def odd_files(checkpoint: Checkpoint, folder: str) -> Iterator[str]:
    """What is to be told of the files themselves."""
    for gap in checkpoint.unfinished:
        yield f"{checkpoint.name}: {gap} is missing; if a job saves it now, or was cut off, files may not fit together"
    for name, copies in checkpoint.files.items():
        below = name.removeprefix(folder)
        if not name.startswith(folder) or _ARE_WEIGHTS.fullmatch(below):
            continue
        if name.endswith(WEIGHTS):
            if not (checkpoint.weights and name.endswith(".safetensors") and "/" not in below):
                yield f"{on_one_line(name)} was left out, since its name ends like that of weights: copy it if needed"
        elif name in checkpoint.damaged:
            text = checkpoint.damaged[name]
            yield f"{on_one_line(name)} {text}, and is in the model as it is: put that of the base model in its place"
        elif not is_small(name, copies[0].size_bytes):
            size = size_text(copies[0].size_bytes)
            yield f"{name} was left out, since {size} are too much beside a model: copy it if it is needed"


def read_json(checkpoint: Checkpoint, name: str, open_file: OpenFile) -> Mapping[str, Any]:
    """A JSON object of the role's folder; nothing where it is not there, or is none."""
    copies = checkpoint.files.get(name)
    if copies is None or not is_small(name, copies[0].size_bytes):
        return {}
    try:
        content = json.loads(open_file(copies[0]).read(0, copies[0].size_bytes))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _about(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {"arch": manifest["arch"]} if "arch" in manifest else {}
