"""The files of a checkpoint as `merge` and `verify` take them, wherever each of them lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.errors import CheckpointError
from cloudrl.saves.names import is_small
from cloudrl.shards.inputs import MergeInputs, Sidecars

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.saves.inventory import Checkpoint, FileCopy
    from cloudrl.shards.source import ShardSource

    OpenFile = Callable[[FileCopy], ShardSource]

_HUGGINGFACE = "huggingface/"


def merge_inputs(checkpoint: Checkpoint, open_file: OpenFile) -> MergeInputs:
    """Say where everything is; only small files are read, and shards stay where they are.

    Args:
        checkpoint: What to merge or to verify.
        open_file: Gives the bytes of one of its files, wherever that lies.

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
    shards = {
        kind: {rank: open_file(file) for rank, file in checkpoint.shards(kind).items()}
        for kind in ("model", "optim", "extra_state")
    }
    models, size = shards["model"], checkpoint.world_size
    if not models or size is None:
        raise CheckpointError(f"{checkpoint.name} has no shards of a model", hint="cloudrl checkpoints list")
    small = {
        name.removeprefix(_HUGGINGFACE): copies[0]
        for name, copies in checkpoint.files.items()
        if name.startswith(_HUGGINGFACE) and is_small(name, copies[0].size_bytes)
    }
    return MergeInputs(
        shards=models,
        config_files={name: open_file(file).read(0, file.size_bytes) for name, file in small.items()},
        world_size=size,
        sidecars={
            rank: Sidecars(
                shards["optim"].get(rank), shards["extra_state"].get(rank), checkpoint.records.get(rank)
            )
            for rank in models
        },
    )
