"""What a merge will write, tensor by tensor and file by file, and from where each byte comes. Nothing is read."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType, result_type
from cloudrl.shards.layout import part_range, shard_dim
from cloudrl.shards.on_disk import AS_IN_MEMORY, Rule, Slice, on_disk, stays_float32
from cloudrl.shards.shard import Shard
from cloudrl.shards.tensors import View
from cloudrl.shards.validate import same_bytes

MAX_FILE_BYTES = 5_000_000_000
"""Of tensors and header together: what Hugging Face's hub and transformers 4 take as the size of one file."""
_HEADER_ROOM_BYTES = 1 << 20

HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor, as one rank's file has it.

    Its elements go to the whole in runs of `run` elements, the first of them at element `start`, each `step` elements
    after the one before; a tensor that is cut along its first dimension makes one run.
    """

    shard: Shard
    view: View
    start: int
    run: int
    step: int


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor of the merged model: the pieces make the whole, without gap or overlap; without any it is zero."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        """How many."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """In the merged model."""
        return self.elements * self.dtype.size_bytes


def make_outputs(
    parts: Sequence[Shard],
    wanted: DType | None,
    *,
    rule: Rule = AS_IN_MEMORY,
    leave_out: AbstractSet[str] = frozenset(),
) -> list[Output]:
    """Plan every tensor, in the order of the state dict.

    Args:
        parts: One shard for each part, in order; they fit together (`layout.check_together`).
        wanted: The type of all floats; None keeps theirs.
        rule: How the model differs on disk.
        leave_out: Names that are not written.

    Raises:
        CheckpointError: A tensor is cut in a way that its rule has no place for.
    """
    outputs = []
    for name, tensor in parts[0].tensors.items():
        if name in leave_out:
            continue
        dtype = result_type(tensor.view.dtype, None if stays_float32(name) else wanted)
        pieces, slices = _pieces(parts, name), on_disk(name, tensor.shape, rule)
        if len(slices) > 1:
            outputs += [Output(each.name, each.shape, dtype, _cut(name, pieces, each)) for each in slices]
        else:
            outputs += [Output(each.name, each.shape, dtype, pieces) for each in slices]
    return outputs


def _pieces(parts: Sequence[Shard], name: str) -> tuple[Piece, ...]:
    """Of a whole tensor."""
    tensor = parts[0].tensors[name]
    shape, dim, pieces = tensor.shape, shard_dim(tensor), []
    holders = parts[:1] if dim is None else parts
    rows = 1 if dim is None else shape[dim]
    row_elements = math.prod(shape if dim is None else shape[dim + 1 :])
    for part, shard in enumerate(holders):
        view = shard.tensors[name].view
        first, end = part_range(rows, part, len(holders))
        if view.elements:
            start, run, step = first * row_elements, (end - first) * row_elements, rows * row_elements
            pieces.append(Piece(shard, view, start, run, step))
    return tuple(pieces)


def _cut(name: str, pieces: Sequence[Piece], part: Slice) -> tuple[Piece, ...]:
    """What pieces of a whole tensor have of a slice of it."""
    first, end = part.first, part.first + math.prod(part.shape)
    found = []
    for piece in pieces[max(0, bisect_right(pieces, first, key=lambda piece: piece.start) - 1) :]:
        if piece.start >= end:
            break
        if piece.run != piece.view.elements:
            raise CheckpointError(f"{name} is cut within its experts, which FSDP does not do")
        start, stop = max(first, piece.start), min(end, piece.start + piece.run)
        if start < stop:
            view = replace(piece.view, offset=piece.view.offset + start - piece.start, shape=(stop - start,))
            found.append(Piece(piece.shard, view, start - first, stop - start, 0))
    return tuple(found)


def split_files(outputs: Sequence[Output], max_file_bytes: int = MAX_FILE_BYTES) -> list[tuple[Output, ...]]:
    """Distribute tensors over files, in order; a tensor larger than a file gets one for itself."""
    files: list[list[Output]] = [[]]
    room = limit = max(1, max_file_bytes - _HEADER_ROOM_BYTES)
    for output in outputs:
        if files[-1] and output.size_bytes > room:
            files.append([])
            room = limit
        files[-1].append(output)
        room -= output.size_bytes
    return [tuple(file) for file in files]


def head_is_embedding(parts: Sequence[Shard]) -> bool:
    """Whether output head and embedding hold the same bytes on every rank."""
    embedding = next((name for name in EMBEDDINGS if name in parts[0].tensors), None)
    return embedding is not None and all(
        shard.tensors[HEAD].shape == shard.tensors[embedding].shape and same_bytes(shard, shard, embedding, HEAD)
        for shard in parts
    )
