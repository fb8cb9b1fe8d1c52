"""Plans a Hugging Face model of weights in Megatron's distributed format: from which item each row comes."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.megatron_layout import DIST_FILE
from cloudrl.shards.critic import critic_config, critic_outputs, is_value_head
from cloudrl.shards.dist_items import StoredChunk, open_chunks, storage_member
from cloudrl.shards.dist_metadata import Chunk, DistMetadata, StoredTensor, read_metadata
from cloudrl.shards.dtypes import WANTED, result_type
from cloudrl.shards.megatron_names import HfTensor, hf_tensors
from cloudrl.shards.merge import Plan, make_plan
from cloudrl.shards.model_files import read_files
from cloudrl.shards.plan import HEAD, MAX_FILE_BYTES, Output, Piece
from cloudrl.shards.shard import Shard
from cloudrl.shards.source import ShardSource
from cloudrl.shards.tensors import View

_SAME = {
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads",
    "kv_channels": "head_dim",
    "hidden_size": "hidden_size",
}
"""Names in Megatron's configuration, and in `config.json`."""


@dataclass(frozen=True)
class DistInputs:
    """Weights in Megatron's distributed format.

    Attributes:
        metadata: Its `.metadata`.
        data: Its `.distcp` files, by name.
        config_files: Config and tokenizer, which are in no such save: those of the base model.
        saved: `transformer_config.json` and `ckpt_contents.json` as far as they are there, together: what the run says
            of its model.
        warnings: What is odd about the files.
    """

    metadata: ShardSource
    data: Mapping[str, ShardSource]
    config_files: Mapping[str, bytes] = field(default_factory=dict)
    saved: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def plan_dist(inputs: DistInputs, *, dtype: str = "bf16", max_file_bytes: int = MAX_FILE_BYTES) -> Plan:
    """Check everything and decide what is written; no tensor is read.

    Args:
        inputs: The files.
        dtype: See `plan_merge`.
        max_file_bytes: The most that a weight file may have.

    Raises:
        InputError: `dtype` is unknown.
        CheckpointError: The checkpoint is damaged, of a kind that cannot be merged, or not of the base model.
    """
    if dtype not in WANTED:
        raise InputError(f"dtype {dtype!r} is unknown; choose {', '.join(WANTED)}")
    if "config.json" not in inputs.config_files:
        raise CheckpointError(
            "Megatron's distributed format has neither config nor tokenizer",
            hint="Name the model that the run was trained from, a folder or one of the Hub: --base MODEL",
        )
    beside = read_files(inputs.config_files)
    config = beside.config
    _check_base(config, inputs.saved)
    metadata = read_metadata(inputs.metadata)
    tensors = hf_tensors(metadata.tensors, config, inputs.metadata.label.removesuffix("/.metadata"))
    shards = open_shards(metadata, inputs.data, {tensor.key for tensor in tensors})
    outputs = make_dist_outputs(tensors, metadata, shards, dtype)
    changes: dict[str, Any] = {}
    names = {output.name: output for output in outputs}
    if HEAD in names and is_value_head(names[HEAD].shape, config):
        changes, outputs = critic_config(config), critic_outputs(outputs)
    elif HEAD in names and config.get("tie_word_embeddings") is True:
        changes = {"tie_word_embeddings": False}
    return make_plan(outputs, beside, changes, WANTED[dtype], warnings=inputs.warnings, max_file_bytes=max_file_bytes)


def _check_base(config: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Whether a config is that of the model that was trained."""
    for theirs, mine in _SAME.items():
        if theirs in saved and mine in config and saved[theirs] != config[mine] and config[mine] is not None:
            raise CheckpointError(
                f"the base model has {mine} = {config[mine]!r:.40}, and the run had {saved[theirs]!r:.40}",
                hint=f"Name the model that the run was trained from ({saved.get('arch', 'unknown')}): --base MODEL",
            )


def open_shards(
    metadata: DistMetadata, data: Mapping[str, ShardSource], keys: set[str] | None = None
) -> dict[str, Shard]:
    """The files that have these tensors (all, if not said), by name.

    Raises:
        CheckpointError: One is missing, cut off, or holds something else.
    """
    chunks: dict[str, list[StoredChunk]] = defaultdict(list)
    for key, tensor in metadata.tensors.items():
        if keys is None or key in keys:
            for chunk in tensor.chunks:
                chunks[chunk.item.file].append(StoredChunk(key, tensor.dtype, chunk))
    if gone := sorted(chunks.keys() - data.keys()):
        raise CheckpointError(
            f"{len(gone)} files that .metadata names are not there: {', '.join(gone[:3])}",
            hint="Each rank wrote its own to the disk of its node: are all nodes up? cloudrl checkpoints list",
        )
    return {name: open_chunks(data[name], writer(name), found) for name, found in sorted(chunks.items())}


def writer(name: str) -> int:
    """The rank that wrote a `.distcp` file."""
    match = DIST_FILE.fullmatch(name)
    return int(match[1]) if match else 0


def make_dist_outputs(
    tensors: Sequence[HfTensor], metadata: DistMetadata, shards: Mapping[str, Shard], dtype: str
) -> list[Output]:
    """Plan every tensor."""
    by_place: dict[str, dict[tuple[int, ...], list[Chunk]]] = {}
    outputs = []
    for tensor in tensors:
        stored = metadata.tensors[tensor.key]
        if tensor.key not in by_place:
            by_place[tensor.key] = _by_place(stored, len(tensor.lead))
        chunks = by_place[tensor.key][tensor.lead]
        pieces = tuple(_pieces(tensor, stored, chunks, shards))
        outputs.append(Output(tensor.name, tensor.shape, result_type(stored.dtype, WANTED[dtype]), pieces))
    return outputs


def _by_place(stored: StoredTensor, count: int) -> dict[tuple[int, ...], list[Chunk]]:
    """The chunks of each layer or expert, if these are the first `count` dimensions."""
    chunks_of: dict[tuple[int, ...], list[Chunk]] = defaultdict(list)
    for chunk in stored.chunks:
        ranges = (
            range(first, first + size) for first, size in zip(chunk.offsets[:count], chunk.sizes[:count], strict=True)
        )
        for place in product(*ranges):
            chunks_of[place].append(chunk)
    return chunks_of


def _pieces(
    tensor: HfTensor, stored: StoredTensor, chunks: Sequence[Chunk], shards: Mapping[str, Shard]
) -> Iterator[Piece]:
    """Where chunks and spans of rows meet. A chunk may have some of the columns, a span has all of them."""
    count = len(tensor.lead)
    width = math.prod(stored.shape[count + 1 :])
    row = 0
    for first, end in tensor.spans:
        for chunk in chunks:
            top, rows = chunk.offsets[count], chunk.sizes[count]
            start, stop = max(first, top), min(end, top + rows)
            if start >= stop:
                continue
            columns = math.prod(chunk.sizes[count + 1 :])
            column = chunk.offsets[count + 1] if len(chunk.offsets) > count + 1 else 0
            before = 0
            for at, offset, size in zip(tensor.lead, chunk.offsets, chunk.sizes, strict=False):
                before = before * size + at - offset
            view = View(
                storage_member(chunk).removeprefix("data/"), stored.dtype,
                (before * rows + start - top) * columns, (stop - start, columns),
            )  # fmt: skip
            place = (row + start - first) * width + column
            run = view.elements if columns == width else columns
            yield Piece(shards[chunk.item.file], view, place, run, width)
        row += end - first
