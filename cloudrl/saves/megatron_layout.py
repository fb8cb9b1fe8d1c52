"""Where a save of Megatron's has what, by the names of its files, below the folder of a role.

verl 0.9 (utils/megatron_utils.py, `get_hf_model_checkpoint_path` and its neighbours) writes::

    ckpt_contents.json               last, so that it tells the end of the save
    model/huggingface/               a whole model: by default; with LoRA its adapter/ alone
    model/dist_ckpt/                 the weights in torch's distributed format, with use_dist_checkpointing=True
    optimizer/dist_ckpt/, extra/dist_ckpt/

and verl 0.6 to 0.8 `huggingface/` and one `dist_ckpt/` for all of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from cloudrl.saves.names import HUGGINGFACE, INDEX, SHARD

MANIFEST = "ckpt_contents.json"
METADATA = ".metadata"
"""Which tensor is where in a folder of torch's distributed format; it is written last."""
DIST_FILE = re.compile(r"__([0-9]{1,9})_[0-9]{1,9}\.distcp")
"""Of a writing rank."""
FOLDERS = frozenset({"model", "optimizer", "extra", "dist_ckpt", "huggingface"})
"""What a role has, the last also in FSDP's saves; a step has it where there are no roles."""
_HUGGINGFACE = (f"model/{HUGGINGFACE}", HUGGINGFACE)
_DIST = ("model/dist_ckpt/", "dist_ckpt/")
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_NUMBERED = re.compile(r"(.*-)([0-9]{5,9})-of-([0-9]{5,9})\.safetensors")
_MAX_FILES = 100_000
_MOST_SHOWN = 3


class Kind(Enum):
    """In which form weights are."""

    MODEL = "a whole Hugging Face model"
    ADAPTER = "a LoRA adapter, as peft reads it"
    DIST = "torch's distributed format"


class Weights(NamedTuple):
    """Where a save has its weights; `folder` ends with a slash."""

    kind: Kind
    folder: str


def is_megatron(names: Collection[str]) -> bool:
    """Whether Megatron wrote these files of a role.

    Beside shards of FSDP, `model/` is a folder of the user's, such as a merged model.
    """
    if any(name.endswith(".distcp") or name == MANIFEST for name in names):
        return True
    return any(name.startswith("model/") for name in names) and not any(map(SHARD.fullmatch, names))


def find_weights(names: Collection[str]) -> Weights | None:
    """The form that takes least to make a model of, where there are several; None without any."""
    for folder in _HUGGINGFACE:
        if any(name.startswith(folder) and _is_weights(name[len(folder) :]) for name in names):
            return Weights(Kind.MODEL, folder)
    for folder in _HUGGINGFACE:
        if any(f"{folder}adapter/{name}" in names for name in _ADAPTER_FILES):
            return Weights(Kind.ADAPTER, f"{folder}adapter/")
    for folder in _DIST:
        if any(name.startswith(folder) and name.endswith((".distcp", METADATA)) for name in names):
            return Weights(Kind.DIST, folder)
    return None


def missing_files(names: Collection[str]) -> Iterator[str]:
    """What is not there, one phrase each, as far as names tell."""
    folders = sorted({name.rpartition("/")[0] for name in names if name.endswith(".distcp")})
    yield from (path for folder in folders if (path := f"{folder}/{METADATA}".lstrip("/")) not in names)
    weights = find_weights(names)
    if weights is None:
        yield "the weights"
    elif weights.kind is Kind.MODEL:
        beside = {name[len(weights.folder) :] for name in names if name.startswith(weights.folder)}
        wanted = ("config.json", *_siblings(beside))
        yield from (weights.folder + name for name in wanted if name not in beside)
    elif weights.kind is Kind.ADAPTER:
        yield from (weights.folder + name for name in _ADAPTER_FILES if weights.folder + name not in names)
    if any(name.startswith("model/") for name in names) and MANIFEST not in names:
        yield MANIFEST


def named_parts(parts: Mapping[str, Collection[str]]) -> set[str]:
    """Paths of the `.distcp` files that have something.

    Args:
        parts: Each `.metadata` -> the files beside it that it names, as `0_0`.
    """
    return {f"{metadata.removesuffix(METADATA)}__{part}.distcp" for metadata in parts for part in parts[metadata]}


def missing_parts(names: Collection[str], parts: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Files that a `.metadata` names and that are not there, the first of them and how many more."""
    gone = sorted(named_parts(parts) - set(names))
    yield from gone[:_MOST_SHOWN]
    if len(gone) > _MOST_SHOWN:
        yield f"{len(gone) - _MOST_SHOWN} more files that {METADATA} names"


def _siblings(names: Collection[str]) -> list[str]:
    """What a model in several files has, by how they are numbered; nothing for one file."""
    matches = [match for name in names if (match := _NUMBERED.fullmatch(name))]
    if not matches:
        return []
    stem, _, count = matches[0].groups()
    return [
        INDEX,
        *(f"{stem}{number:05d}-of-{count}.safetensors" for number in range(1, min(int(count), _MAX_FILES) + 1)),
    ]


def _is_weights(name: str) -> bool:
    return "/" not in name and name.endswith(".safetensors")
