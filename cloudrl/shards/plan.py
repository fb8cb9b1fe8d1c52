"""What a merge will write, tensor by tensor and file by file, and from where each byte comes. Nothing is read."""

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cloudrl.shards.dtypes import DType, result_type
from cloudrl.shards.layout import part_range, shard_dim
from cloudrl.shards.shard import Shard
from cloudrl.shards.tensors import View
from cloudrl.shards.validate import same_bytes

MAX_FILE_BYTES = 5_000_000_000
"""Of tensors and header together: what Hugging Face's hub and transformers 4 take as the size of one file."""
_HEADER_ROOM_BYTES = 1 << 20

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Piece:
    """One rank's part of a tensor.

    Its elements go to the whole in runs of `run` elements, the first of them at element `start`, each `step` elements
    after the one before; a tensor that is cut along its first dimension makes one run.

    Attributes:
        check: Whether it is the first to read its storage, which has one CRC-32.
    """

    shard: Shard
    view: View
    start: int
    run: int
    step: int
    check: bool


@dataclass(frozen=True)
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
    parts: Sequence[Shard], wanted: DType | None, *, leave_out: AbstractSet[str] = frozenset()
) -> list[Output]:
    """Plan every tensor, in the order of the state dict.

    Args:
        parts: One shard for each part, in order; they fit together (`layout.check_together`).
        wanted: The type of all floats; None keeps theirs.
        leave_out: Names that are not written.
    """
    seen: set[tuple[int, str]] = set()
    outputs = []
    for name, tensor in parts[0].tensors.items():
        if name in leave_out:
            continue
        shape, dim, pieces = tensor.shape, shard_dim(tensor), []
        holders = parts[:1] if dim is None else parts
        rows = 1 if dim is None else shape[dim]
        row_elements = math.prod(shape if dim is None else shape[dim + 1 :])
        for part, shard in enumerate(holders):
            view = shard.tensors[name].view
            first, end = part_range(rows, part, len(holders))
            if view.elements:
                storage = (shard.rank, view.storage)
                start, run, step = first * row_elements, (end - first) * row_elements, rows * row_elements
                pieces.append(Piece(shard, view, start, run, step, check=storage not in seen))
                seen.add(storage)
        outputs.append(Output(name, shape, result_type(tensor.view.dtype, wanted), tuple(pieces)))
    return outputs


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


def is_tied(parts: Sequence[Shard]) -> bool:
    """Whether output head and embedding hold the same bytes on every rank."""
    return all(
        HEAD in shard.tensors
        and EMBEDDING in shard.tensors
        and shard.tensors[HEAD].shape == shard.tensors[EMBEDDING].shape
        and same_bytes(shard, shard, EMBEDDING, HEAD)
        for shard in parts
    )
