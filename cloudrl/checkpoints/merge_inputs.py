"""The files of a checkpoint as `merge` and `verify` take them, wherever each of them lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.errors import CheckpointError
from cloudrl.saves.names import is_small
from cloudrl.shards.inputs import MergeInputs, Sidecars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudrl.checkpoints.sources import FileOpener
    from cloudrl.saves.inventory import Checkpoint, FileCopy
    from cloudrl.shards.source import ShardSource

_HUGGINGFACE = "huggingface/"


def merge_inputs(checkpoint: Checkpoint, files: FileOpener) -> MergeInputs:
    """Say where everything is; only small files are read, and shards stay where they are.

    Raises:
        CheckpointError: Megatron wrote it, it has no shards, or a small file cannot be read.
    """
    if checkpoint.is_megatron:
        raise CheckpointError(
            f"{checkpoint.name} is a checkpoint of Megatron (.distcp files and .metadata), and merging these is not "
            "supported yet",
            hint="On a machine with a GPU and megatron-core: python -m verl.model_merger merge --backend megatron "
            "--local_dir DIR --target_dir OUT",
        )
    models, size = checkpoint.shards("model"), checkpoint.world_size
    if not models or size is None:
        raise CheckpointError(f"{checkpoint.name} has no shards of a model", hint="cloudrl checkpoints list")

    def opened(rank: int, file: FileCopy) -> ShardSource:
        return files.open(file, label=f"rank {rank} on {file.label}")

    return MergeInputs(
        shards={rank: opened(rank, file) for rank, file in models.items()},
        config_files=_config_files(checkpoint, files),
        world_size=size,
        sidecars=_sidecars(checkpoint, opened),
    )


def _config_files(checkpoint: Checkpoint, files: FileOpener) -> dict[str, bytes]:
    """What lies in `huggingface/`, weights aside."""
    found = {}
    for name, copies in checkpoint.files.items():
        if name.startswith(_HUGGINGFACE) and is_small(name, copies[0].size_bytes):
            found[name.removeprefix(_HUGGINGFACE)] = files.open(copies[0]).read(0, copies[0].size_bytes)
    return found


def _sidecars(
    checkpoint: Checkpoint, opened: Callable[[int, FileCopy], ShardSource]
) -> Mapping[int, Sidecars]:
    optim, extra = checkpoint.shards("optim"), checkpoint.shards("extra_state")
    return {
        rank: Sidecars(
            optim=opened(rank, optim[rank]) if rank in optim else None,
            extra=opened(rank, extra[rank]) if rank in extra else None,
            record=checkpoint.records.get(rank),
        )
        for rank in checkpoint.ranks
    }
