"""Merges a checkpoint, wherever its files lie, into a folder that appears whole or not at all."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudrl.checkpoints.staging import refuse_existing, staged
from cloudrl.errors import CheckpointError
from cloudrl.saves.inventory import Checkpoint, FileCopy
from cloudrl.saves.megatron_layout import Kind, Weights
from cloudrl.saves.names import is_small
from cloudrl.shards.merge import plan_merge, write_model
from cloudrl.shards.model_files import WEIGHTS
from cloudrl.shards.model_folder import ModelInputs, plan_model
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.shards.source import MergeInputs, ShardSource, Sidecars

OpenFile = Callable[[FileCopy], ShardSource]

_HUGGINGFACE = "huggingface/"
_OTHERS = "cloudrl checkpoints list"


@dataclass(frozen=True)
class Merged:
    """A merged model.

    Attributes:
        path: The folder, as `from_pretrained` and vLLM take it.
        tensors: How many were written.
        parameters: Their elements.
        size_bytes: Of the weights.
        warnings: What to look at: NaN, odd tensors.
    """

    path: Path
    tensors: int
    parameters: int
    size_bytes: int
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For `--json`, and from the head."""
        return {**asdict(self), "path": str(self.path.absolute()), "warnings": list(self.warnings)}


def merge_inputs(checkpoint: Checkpoint, open_file: OpenFile) -> MergeInputs | ModelInputs:
    """Say where everything is; only small files are read, and shards stay where they are.

    Args:
        checkpoint: What to merge or to verify.
        open_file: Gives the bytes of one of its files, wherever that lies.

    Raises:
        CheckpointError: Megatron wrote it, it has no shards, or a small file cannot be read.
    """
    weights = checkpoint.weights
    if weights is not None and weights.kind is not Kind.DIST:
        return model_inputs(checkpoint, weights, open_file)
    if checkpoint.is_megatron and weights is None:
        raise CheckpointError(f"{checkpoint.name} has no weights", hint=_OTHERS)
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
        raise CheckpointError(f"{checkpoint.name} has no shards of a model", hint=_OTHERS)
    return MergeInputs(
        shards=models,
        config_files=_read_small(checkpoint, _HUGGINGFACE, open_file),
        world_size=size,
        step=checkpoint.step,
        warnings=tuple(_odd(checkpoint, _HUGGINGFACE)),
        sidecars={
            rank: Sidecars(shards["optim"].get(rank), shards["extra_state"].get(rank), checkpoint.records.get(rank))
            for rank in models
        },
    )


def model_inputs(checkpoint: Checkpoint, weights: Weights, open_file: OpenFile) -> ModelInputs:
    """The same of a whole model, or of an adapter.

    Raises:
        CheckpointError: A small file cannot be read.
    """
    beside = {
        name.removeprefix(weights.folder): open_file(copies[0])
        for name, copies in checkpoint.files.items()
        if name.startswith(weights.folder) and name.endswith(".safetensors")
    }
    files = {name: source for name, source in beside.items() if "/" not in name}
    return ModelInputs(
        files, _read_small(checkpoint, weights.folder, open_file), tuple(_odd(checkpoint, weights.folder))
    )


def _read_small(checkpoint: Checkpoint, folder: str, open_file: OpenFile) -> dict[str, bytes]:
    """Config, tokenizer and the like, by their path below the folder."""
    small = {
        name.removeprefix(folder): copies[0]
        for name, copies in checkpoint.files.items()
        if name.startswith(folder) and is_small(name, copies[0].size_bytes)
    }
    return {name: open_file(file).read(0, file.size_bytes) for name, file in small.items()}


def _odd(checkpoint: Checkpoint, folder: str) -> Iterator[str]:
    """What is to be told of the files themselves."""
    for gap in checkpoint.unfinished:
        yield f"{checkpoint.name}: {gap} is missing; if a job saves it now, or was cut off, files may not fit together"
    for name, copies in checkpoint.files.items():
        if name.startswith(folder) and not name.endswith(WEIGHTS) and not is_small(name, copies[0].size_bytes):
            size_mb = copies[0].size_bytes / 1e6
            yield f"{name} was left out, since {size_mb:.0f} MB are too much beside a model: copy it if it is needed"


def merge(
    inputs: MergeInputs | ModelInputs,
    target: Path,
    *,
    dtype: str = "bf16",
    sync: bool = False,
    on_progress: OnProgress = silent,
) -> Merged:
    """Merge one role of one step; the shards are only read, and a merge that was killed can be repeated.

    Everything that can be known without reading tensors is checked first.

    Args:
        inputs: The files.
        target: A folder that does not exist.
        dtype: See `plan_merge`.
        sync: Wait until the disk has the model. Without it a power failure within the next half minute may cost it;
            a killed process never does.
        on_progress: Called with bytes of the shards.

    Raises:
        InputError: `dtype` is unknown, or the target exists.
        CheckpointError: See `plan_merge`; or the target cannot be written.
    """
    refuse_existing(target)
    plan = plan_model(inputs, dtype=dtype) if isinstance(inputs, ModelInputs) else plan_merge(inputs, dtype=dtype)
    with staged(target, plan.size_bytes, sync=sync) as folder:
        warnings = write_model(plan, folder, on_progress)
    parameters = sum(output.elements for output in plan.outputs)
    return Merged(target, len(plan.outputs), parameters, plan.weights_bytes, warnings)
