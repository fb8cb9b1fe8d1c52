"""Merges a checkpoint, wherever its files are, into a folder that appears whole or not at all."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudrl.checkpoints.formats import format_of
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.checkpoints.staging import refuse_existing, staged
from cloudrl.options.merge import DEFAULTS, MergeOptions
from cloudrl.shards.merge import Plan, write_model
from cloudrl.shards.progress import OnProgress, silent


@dataclass(frozen=True)
class Merged:
    """A merged model, or an adapter by itself.

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


def merge(
    save: SavedFiles,
    target: Path,
    options: MergeOptions = DEFAULTS,
    *,
    on_progress: OnProgress = silent,
) -> Merged:
    """Merge one role of one step; its files are only read, and a merge that was killed can be repeated.

    Everything that can be known without reading tensors is checked first.

    Args:
        save: The files.
        target: A folder that does not exist.
        options: How; the base is that of `save`.
        on_progress: Called with bytes of the shards.

    Raises:
        InputError: `dtype` or `lora` is unknown, the target exists, or a base model is named and not needed.
        ConnectionFailed: The Hub does not answer.
        CheckpointError: See `plan_merge`; or the target cannot be written.
    """
    refuse_existing(target)
    plan = format_of(save.checkpoint).plan_of(save, options.dtype, options.lora)
    return write(plan, target, sync=options.sync, on_progress=on_progress)


def write(plan: Plan, target: Path, *, sync: bool = False, on_progress: OnProgress = silent) -> Merged:
    """Write a planned model into a folder that does not exist.

    Args:
        plan: What to write.
        target: The folder.
        sync: Wait until the disk has the model. Without it a power failure within the next half minute may cost it;
            a killed process never does.
        on_progress: Called with bytes of the shards.

    Raises:
        InputError: The target exists.
        CheckpointError: A shard cannot be read, or the target cannot be written.
    """
    with staged(target, plan.size_bytes, sync=sync) as folder:
        warnings = write_model(plan, folder, on_progress)
    parameters = sum(output.elements for output in plan.outputs)
    return Merged(target, len(plan.outputs), parameters, plan.weights_bytes, warnings)
