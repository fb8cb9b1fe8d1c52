"""What a merge will write, tensor by tensor and file by file, and from where each byte comes. Nothing is read."""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType, result_type
from cloudrl.shards.layout import part_range, shard_dim
from cloudrl.shards.on_disk import USUAL, Rule, Slice, on_disk, stays_float32
from cloudrl.shards.shard import Shard
from cloudrl.shards.tensors import View
from cloudrl.shards.validate import same_bytes

MAX_FILE_BYTES = 5_000_000_000
"""Of tensors and header together: what Hugging Face's hub and transformers 4 take as the size of one file."""
_HEADER_ROOM_BYTES = 1 << 20

HEAD = "lm_head.weight"
HEADS = (HEAD, f"language_model.{HEAD}")
EMBEDDINGS = (
    "model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor, as one rank's file has it.

    Its elements go to the whole in runs of `run` elements, the first of them at element `start`, each `step` elements
    after the one before; a tensor that is cut along its first dimension makes one run.

    Attributes:
        update: What is added to it.
        first: Its first element in the tensor that `update` is for.
    """

    shard: Shard
    view: View
    start: int
    run: int
    step: int
    update: "Update | None" = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class WholePieces:
    """The pieces of a tensor as the ranks have it, made anew each time: a large model has a million on 64 ranks.

    Attributes:
        parts: One shard for each part, in order.
        name: Of the tensor in the shards.
        shape: Of the whole.
        dim: Along which it is cut; None if the first part has all of it.
    """

    parts: Sequence[Shard]
    name: str
    shape: tuple[int, ...]
    dim: int | None
    update: "Update | None" = None

    def __iter__(self) -> Iterator[Piece]:
        shape, dim = self.shape, self.dim
        holders = self.parts[:1] if dim is None else self.parts
        rows = 1 if dim is None else shape[dim]
        row_elements = math.prod(shape if dim is None else shape[dim + 1 :])
        for part, shard in enumerate(holders):
            first, end = part_range(rows, part, len(holders))
            view = shard.tensors.view(self.name)
            if view.elements:
                start, run, step = first * row_elements, (end - first) * row_elements, rows * row_elements
                yield Piece(shard, view, start, run, step, self.update, start)


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor of the merged model: the pieces make the whole, without gap or overlap; without any it is zero."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    pieces: WholePieces | tuple[Piece, ...]

    @property
    def elements(self) -> int:
        """How many."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """In the merged model."""
        return self.elements * self.dtype.size_bytes

    @property
    def stored_bytes(self) -> int:
        """Of all pieces, which are of one type."""
        piece = next(iter(self.pieces), None)
        return self.elements * piece.view.dtype.size_bytes if piece is not None else 0


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    """What an adapter adds to a tensor of `columns` columns: scale x (B @ A).

    With several experts, each of which has `rows` rows, A has the halves of one after the other, and B those of all
    interleaved: [rows, rank, experts].
    """

    a: Output
    b: Output
    experts: int
    scale: float

    @property
    def rows(self) -> int:
        """Of one expert."""
        return self.b.shape[0]

    @property
    def columns(self) -> int:
        """Of all."""
        return self.a.shape[1]

    @property
    def rank(self) -> int:
        """Of one expert."""
        return self.a.shape[0] // self.experts


def make_outputs(
    parts: Sequence[Shard],
    wanted: DType | None,
    *,
    names: Mapping[str, str] | None = None,
    rule: Rule = USUAL,
    updates: Mapping[str, Update] = MappingProxyType({}),
) -> list[Output]:
    """Plan every tensor, in the order of `names`.

    Args:
        parts: One shard for each part, in order; they fit together (`layout.check_together`).
        wanted: The type of all floats; None keeps theirs.
        names: Those to be written -> those in the shards; without it all, in the order of the state dict.
        rule: How the model differs on disk.
        updates: What is added to tensors, by the names to be written.

    Raises:
        CheckpointError: A tensor is cut in a way that its rule has no place for.
    """
    outputs = []
    for name, stored in (names or {name: name for name in parts[0].tensors}).items():
        tensor = parts[0].tensors[stored]
        dtype = result_type(tensor.view.dtype, None if stays_float32(name) else wanted)
        dim, update, slices = shard_dim(tensor), updates.get(name), on_disk(name, tensor.shape, rule)
        if update is not None and dim:
            raise CheckpointError(f"{name} is cut along dimension {dim}, which FSDP does not do")
        pieces = WholePieces(parts, stored, tensor.shape, dim, update)
        if len(slices) > 1:
            some = tuple(pieces)
            outputs += [Output(piece.name, piece.shape, dtype, _cut(name, some, piece)) for piece in slices]
        else:
            outputs += [Output(piece.name, piece.shape, dtype, pieces) for piece in slices]
    return outputs


def _cut(name: str, pieces: Sequence[Piece], part: Slice) -> tuple[Piece, ...]:
    """What pieces of a whole tensor have of a slice of it."""
    first, end = part.first, part.first + math.prod(part.shape)
    problems = []
    for piece in pieces[max(0, bisect_right(pieces, first, key=lambda piece: piece.start) - 1) :]:
        if piece.start >= end:
            break
        if piece.run != piece.view.elements:
            raise CheckpointError(f"{name} is cut within its experts, which FSDP does not do")
        start, stop = max(first, piece.start), min(end, piece.start + piece.run)
        if start < stop:
            view = replace(piece.view, offset=piece.view.offset + start - piece.start, shape=(stop - start,))
            problems.append(Piece(piece.shard, view, start - first, stop - start, 0, piece.update, start))
    return tuple(problems)


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


def head_of(names: Collection[str]) -> str:
    """The output head among these, where it has its name; there may be none."""
    return next((name for name in HEADS if name in names), HEAD)


def hold_the_same(parts: Sequence[Shard], head: str, embedding: str) -> bool:
    """Whether output head and embedding, by their names in the shards, hold the same bytes on every rank."""
    return all(
        shard.tensors[head].shape == shard.tensors[embedding].shape and same_bytes(shard, shard, embedding, head)
        for shard in parts
    )
