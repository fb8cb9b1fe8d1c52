"""Merges the shards of all ranks into a folder that appears whole or not at all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cloudrl.checkpoints.staging import refuse_existing, staged
from cloudrl.shards.merge import plan_merge, write_model
from cloudrl.shards.progress import OnProgress, silent

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.shards.inputs import MergeInputs


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


def merge(
    inputs: MergeInputs,
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
    plan = plan_merge(inputs, dtype=dtype)
    with staged(target, plan.size_bytes, sync=sync) as folder:
        warnings = write_model(plan, folder, on_progress)
    parameters = sum(output.elements for output in plan.outputs)
    return Merged(target, len(plan.outputs), parameters, plan.weights_bytes, warnings)
