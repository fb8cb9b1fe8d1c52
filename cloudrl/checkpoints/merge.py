"""Merges a checkpoint, wherever its files lie, into a folder that appears whole or not at all."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloudrl.checkpoints.megatron_inputs import OpenFile, megatron_inputs, odd_files, read_small
from cloudrl.checkpoints.staging import refuse_existing, staged
from cloudrl.errors import CheckpointError, InputError
from cloudrl.protocol.ranks import missing_ranks
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import LORA_META
from cloudrl.shards.lora_settings import ADAPTER_CONFIG
from cloudrl.shards.megatron import DistInputs, plan_dist
from cloudrl.shards.merge import MERGE, Plan, dtype_name, plan_merge, write_model
from cloudrl.shards.model_folder import ModelInputs, plan_model
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.shards.source import MergeInputs, Sidecars

Inputs = MergeInputs | ModelInputs | DistInputs
"""The files of one role of one step, by the form that they have."""

_HUGGINGFACE, _CONFIG = "huggingface/", "config.json"
_OTHERS = "cloudrl checkpoints list"
_MAX_META_BYTES = 1 << 16
_MAX_ADAPTER_CONFIG_BYTES = 4 << 20
"""It may name each module by itself."""


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


def merge_inputs(
    checkpoint: Checkpoint, open_file: OpenFile, base: str | None = None, *, first_adapter: str | None = None
) -> Inputs:
    """Say where everything is; only small files are read, and shards stay where they are.

    Args:
        checkpoint: What to merge or to verify.
        open_file: Gives the bytes of one of its files, wherever that lies.
        base: The model that the run was trained from: see `megatron_inputs`.
        first_adapter: See `MergeInputs`.

    Raises:
        InputError: A base model is named and not needed, or is none.
        ConnectionFailed: The Hub does not answer.
        CheckpointError: It has no shards, or a small file cannot be read, or is too large.
    """
    if checkpoint.is_megatron or checkpoint.weights is not None:
        return megatron_inputs(checkpoint, open_file, base)
    if base is not None:
        raise InputError(f"{checkpoint.name} has its own config, so --base {base} has no use", hint="Leave it out")
    shards = {
        kind: {rank: open_file(file) for rank, file in checkpoint.shards(kind).items()}
        for kind in ("model", "optim", "extra_state")
    }
    models, size = shards["model"], checkpoint.world_size
    if not models or size is None:
        raise CheckpointError(f"{checkpoint.name} has no shards of a model", hint=_OTHERS)
    return MergeInputs(
        shards=models,
        config_files=read_small(checkpoint, _HUGGINGFACE, open_file),
        world_size=size,
        step=checkpoint.step,
        warnings=tuple(odd_files(checkpoint, _HUGGINGFACE)),
        sidecars={
            rank: Sidecars(shards["optim"].get(rank), shards["extra_state"].get(rank), checkpoint.records.get(rank))
            for rank in models
        },
        lora=_read_meta(checkpoint, open_file),
        adapter_config=_read_adapter_config(checkpoint, open_file),
        first_adapter=first_adapter,
    )


def merge(
    inputs: Inputs,
    target: Path,
    *,
    dtype: str | None = None,
    lora: str = MERGE,
    sync: bool = False,
    on_progress: OnProgress = silent,
) -> Merged:
    """Merge one role of one step; the shards are only read, and a merge that was killed can be repeated.

    Everything that can be known without reading tensors is checked first.

    Args:
        inputs: The files.
        target: A folder that does not exist.
        dtype: See `plan_merge`.
        lora: See `plan_merge`.
        sync: Wait until the disk has the model. Without it a power failure within the next half minute may cost it;
            a killed process never does.
        on_progress: Called with bytes of the shards.

    Raises:
        InputError: `dtype` or `lora` is unknown, or the target exists.
        CheckpointError: See `plan_merge`; or the target cannot be written.
    """
    refuse_existing(target)
    plan = _plan(inputs, dtype, lora)
    with staged(target, plan.size_bytes, sync=sync) as folder:
        warnings = write_model(plan, folder, on_progress)
    parameters = sum(output.elements for output in plan.outputs)
    return Merged(target, len(plan.outputs), parameters, plan.weights_bytes, warnings)


def _plan(inputs: Inputs, dtype: str | None, lora: str) -> Plan:
    if isinstance(inputs, ModelInputs):
        return plan_model(inputs, dtype=dtype, lora=lora)
    if isinstance(inputs, MergeInputs):
        _refuse_part_of_a_save(inputs)
        return plan_merge(inputs, dtype=dtype, lora=lora)
    if lora != MERGE:
        raise InputError("of Megatron's distributed format no adapter is made", hint="Leave out --lora")
    return plan_dist(inputs, dtype=dtype_name(dtype, lora))


def _refuse_part_of_a_save(inputs: MergeInputs) -> None:
    """Of a save of several nodes, what one has: without rank 0's there is no config, and the ranks tell why."""
    gone = missing_ranks(sorted(inputs.shards), inputs.world_size or 0)
    if gone and _CONFIG not in inputs.config_files:
        raise CheckpointError(
            f"{gone} of {inputs.world_size} and {_HUGGINGFACE}{_CONFIG} are not here: other nodes may have them",
            hint=f"Copy them into the same folder, or take another step: {_OTHERS}",
        )


def _read_meta(checkpoint: Checkpoint, open_file: OpenFile) -> bytes | None:
    """What verl says of a LoRA adapter, if it says anything."""
    copies = checkpoint.files.get(LORA_META)
    if copies is None or copies[0].size_bytes > _MAX_META_BYTES:
        return None
    return open_file(copies[0]).read(0, copies[0].size_bytes)


def _read_adapter_config(checkpoint: Checkpoint, open_file: OpenFile) -> bytes | None:
    """What peft says of the adapter that the run started from, if somebody has put it there.

    Raises:
        CheckpointError: It is too large to be one.
    """
    names = (ADAPTER_CONFIG, f"lora_adapter/{ADAPTER_CONFIG}")  # the second one is of verl 0.6 and before
    copies = next((checkpoint.files[name] for name in names if name in checkpoint.files), None)
    if copies is None:
        return None
    if copies[0].size_bytes > _MAX_ADAPTER_CONFIG_BYTES:
        raise CheckpointError(
            f"{copies[0].label} has {copies[0].size_bytes} bytes, and {_MAX_ADAPTER_CONFIG_BYTES} is the most",
            hint="Name modules by pattern in its target_modules, or merge with peft: merge_and_unload",
        )
    return open_file(copies[0]).read(0, copies[0].size_bytes)
