"""The formats of a checkpoint, one row each: how a save is recognised, what is read of it, and what a merge plans."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from cloudrl.checkpoints.fsdp import plan_shards, shard_inputs
from cloudrl.checkpoints.megatron import dist_inputs, model_inputs, plan_distributed, verify_files
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.errors import InputError
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.megatron_layout import Kind
from cloudrl.shards.merge import Plan
from cloudrl.shards.model_folder import plan_model
from cloudrl.shards.progress import OnProgress
from cloudrl.shards.report import Report
from cloudrl.shards.validate import verify

_Inputs = TypeVar("_Inputs")


@dataclass(frozen=True)
class Format(Generic[_Inputs]):
    """One form in which a save has its weights.

    Attributes:
        label: What a list of checkpoints calls it.
        fits: Whether a save has this form.
        inputs: Says where everything is; only small files are read, and weights stay where they are.
        plan: Checks all that can be known without reading tensors, and decides what a merge writes; takes `dtype` and
            `lora` as `plan_merge` does.
        verify: Checks a save as far as a machine can tell; what is wrong is in the report, not an exception.
        needs_base: Whether config and tokenizer are not in the save, but those of the model that `--base` names.
    """

    label: str
    fits: Callable[[Checkpoint], bool]
    inputs: Callable[[SavedFiles], _Inputs]
    plan: Callable[[_Inputs, str | None, str], Plan]
    verify: Callable[[SavedFiles, OnProgress], Report]
    needs_base: bool = False

    def plan_of(self, save: SavedFiles, dtype: str | None, lora: str) -> Plan:
        """What a merge of a save writes.

        Raises:
            InputError: A base model is named and not needed, or cannot be used; or `dtype` or `lora` is unknown.
            ConnectionFailed: The Hub does not answer.
            CheckpointError: The save has no weights, or they cannot be merged.
        """
        if save.base is not None and not self.needs_base:
            name = save.checkpoint.name
            raise InputError(f"{name} has its own config, so --base {save.base} has no use", hint="Leave out --base")
        return self.plan(self.inputs(save), dtype, lora)


def _verify_shards(save: SavedFiles, on_progress: OnProgress) -> Report:
    return verify(shard_inputs(save), on_progress=on_progress)


_MODEL = Format(
    label="model",
    fits=lambda checkpoint: checkpoint.weights is not None and checkpoint.weights.kind is not Kind.DIST,
    inputs=model_inputs,
    plan=lambda inputs, dtype, lora: plan_model(inputs, dtype=dtype, lora=lora),
    verify=verify_files,
)
FORMATS: tuple[Format[Any], ...] = (
    Format("FSDP", lambda checkpoint: checkpoint.is_sharded, shard_inputs, plan_shards, _verify_shards),
    replace(_MODEL, label="Megatron", fits=lambda checkpoint: checkpoint.is_megatron and _MODEL.fits(checkpoint)),
    _MODEL,
    Format("Megatron", lambda _: True, dist_inputs, plan_distributed, verify_files, needs_base=True),
)
"""The first that fits is that of a save; the last one also has the saves of Megatron that lack their weights."""


def format_of(checkpoint: Checkpoint) -> Format[Any]:
    """The row of a save."""
    return next(form for form in FORMATS if form.fits(checkpoint))
