"""Saves of FSDP: a shard of each rank, and config and tokenizer on the node of rank 0."""

from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.errors import CheckpointError
from cloudrl.protocol.ranks import missing_ranks
from cloudrl.saves.inventory import LIST_CHECKPOINTS
from cloudrl.saves.names import CONFIG, HUGGINGFACE, KINDS, LORA_META
from cloudrl.shards.lora_settings import ADAPTER_CONFIG
from cloudrl.shards.merge import Plan, plan_merge
from cloudrl.shards.source import MergeInputs, Sidecars

_MAX_META_BYTES = 1 << 16
_MAX_ADAPTER_CONFIG_BYTES = 4 << 20
"""It may name each module by itself."""


def shard_inputs(save: SavedFiles) -> MergeInputs:
    """Say where everything is; only small files are read.

    Raises:
        CheckpointError: There are no shards, or a small file cannot be read, or is too large.
    """
    checkpoint = save.checkpoint
    shards = {kind: {rank: save.open_file(file) for rank, file in checkpoint.shards(kind).items()} for kind in KINDS}
    models, size = shards["model"], checkpoint.world_size
    if not models or size is None:
        raise CheckpointError(f"{checkpoint.name} has no shards of a model", hint=LIST_CHECKPOINTS)
    return MergeInputs(
        shards=models,
        config_files=save.read_small(HUGGINGFACE),
        world_size=size,
        step=checkpoint.step,
        warnings=save.warnings(HUGGINGFACE),
        sidecars={
            rank: Sidecars(shards["optim"].get(rank), shards["extra_state"].get(rank), checkpoint.records.get(rank))
            for rank in models
        },
        lora=_read_meta(save),
        adapter_config=_read_adapter_config(save),
        first_adapter=save.first_adapter,
    )


def plan_shards(inputs: MergeInputs, dtype: str | None, lora: str) -> Plan:
    """See `plan_merge`; some ranks of a save alone, without rank 0's config, are refused for what they are."""
    gone = missing_ranks(sorted(inputs.shards), inputs.world_size or 0)
    if gone and CONFIG.removeprefix(HUGGINGFACE) not in inputs.config_files:
        raise CheckpointError(
            f"{gone} of {inputs.world_size} and {CONFIG} are not here: other nodes may have them",
            hint=f"Copy them into the same folder, or take another step: {LIST_CHECKPOINTS}",
        )
    return plan_merge(inputs, dtype=dtype, lora=lora)


def _read_meta(save: SavedFiles) -> bytes | None:
    """What verl says of a LoRA adapter, if it says anything."""
    copies = save.checkpoint.files.get(LORA_META)
    return save.read(copies[0]) if copies is not None and copies[0].size_bytes <= _MAX_META_BYTES else None


def _read_adapter_config(save: SavedFiles) -> bytes | None:
    """What peft says of the adapter that the run started from, if somebody has put it there.

    Raises:
        CheckpointError: It is too large to be one.
    """
    files = save.checkpoint.files
    names = (ADAPTER_CONFIG, f"lora_adapter/{ADAPTER_CONFIG}")  # the second one is of verl 0.6 and before
    copies = next((files[name] for name in names if name in files), None)
    if copies is None:
        return None
    if copies[0].size_bytes > _MAX_ADAPTER_CONFIG_BYTES:
        raise CheckpointError(
            f"{copies[0].label} has {copies[0].size_bytes} bytes, and {_MAX_ADAPTER_CONFIG_BYTES} is the most",
            hint="Name modules by pattern in its target_modules, or merge with peft: merge_and_unload",
        )
    return save.read(copies[0])
