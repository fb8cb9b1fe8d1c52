"""The files of a checkpoint as `merge` and `verify` take them, wherever each of them lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.checkpoints.folder import Folder, megatron_error
from cloudrl.checkpoints.source import Companions, Manifest
from cloudrl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudrl.checkpoints.inventory import Checkpoint, FileAt
    from cloudrl.checkpoints.origin import Files
    from cloudrl.checkpoints.source import ShardSource

_HUGGINGFACE = "huggingface/"
_MAX_SMALL_BYTES = 64 << 20


def gather(checkpoint: Checkpoint, origin: Files) -> Folder:
    """Say where everything is; only small files are read, and shards stay where they are.

    Raises:
        CheckpointError: Megatron wrote it, it has no shards, or a small file cannot be read.
    """
    if checkpoint.is_megatron:
        raise megatron_error(checkpoint.name)
    models, size = checkpoint.shards("model"), checkpoint.world_size
    if not models or size is None:
        raise CheckpointError(f"{checkpoint.name} has no shards of a model", hint="cloudrl checkpoints list")

    def source(rank: int, file: FileAt) -> ShardSource:
        return origin.open(file, label=f"rank {rank} on {file.label}")

    return Folder(
        shards={rank: source(rank, file) for rank, file in models.items()},
        config_files=_config_files(checkpoint, origin),
        world_size=size,
        companions=_companions(checkpoint, source),
    )


def _config_files(checkpoint: Checkpoint, origin: Files) -> dict[str, bytes]:
    """What lies in `huggingface/`, weights aside."""
    found = {}
    for name, copies in checkpoint.files.items():
        small = copies[0].size_bytes <= _MAX_SMALL_BYTES and not name.endswith(".safetensors")
        if name.startswith(_HUGGINGFACE) and small:
            found[name.removeprefix(_HUGGINGFACE)] = origin.open(copies[0]).read(0, copies[0].size_bytes)
    return found


def _companions(
    checkpoint: Checkpoint, source: Callable[[int, FileAt], ShardSource]
) -> Mapping[int, Companions]:
    optim, extra = checkpoint.shards("optim"), checkpoint.shards("extra_state")
    return {
        rank: Companions(
            optim=source(rank, optim[rank]) if rank in optim else None,
            extra=source(rank, extra[rank]) if rank in extra else None,
            manifest=Manifest.from_json(checkpoint.saves[rank]) if rank in checkpoint.saves else None,
        )
        for rank in checkpoint.ranks
    }
