"""Cuts the shards of FSDP anew for another number of ranks, optimizer included; without torch, and streaming.

The new file of a rank has runs of rows of some old ones (`cloudrl.shards.cutting`). What is not cut, such as buffers
and the step of the optimizer, is the same on all ranks. The pickle is that of rank r % W with other shapes, storages
and device mesh: whatever else torch has written there stays. So does the other state of that rank: scheduler, and
random generators.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.names import shard_file
from cloudrl.shards.cancellation import workers
from cloudrl.shards.cutting import Table, check_padding, optimizer_table, refuse_other_cuts, unknown_units
from cloudrl.shards.layout import check_together
from cloudrl.shards.new_files import NewFile, renamed
from cloudrl.shards.new_rank import Goal, new_file
from cloudrl.shards.optimizer import open_optimizer
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.shard import Shard, read_state, saved_as
from cloudrl.shards.source import MergeInputs, ShardSource
from cloudrl.shards.step_consistency import check_record
from cloudrl.shards.torch_zip import Archive, open_archive
from cloudrl.shards.validate import Validated, validate
from cloudrl.shards.writing import FileWriter, thread_count

_MEMBER_BYTES = 600
"""Of a member, at most: its headers, and what the pickle says of it."""
MOST_RANKS = 4096
_SAME_WORLD_SIZE_HINT = (
    "Go on with the same number of GPUs; or merge the model, and train on from that without its optimizer"
)


@dataclass(frozen=True)
class ReshardPlan:
    """All that is known before a byte is written.

    Attributes:
        tables: The model, and the optimizer if it was saved.
        extras: The other state of each rank, if it was saved.
        goal: What the new files are for.
        warnings: What to look at.
    """

    tables: tuple[Table, ...]
    extras: Mapping[int, Archive]
    goal: Goal
    warnings: tuple[str, ...]

    @property
    def old_world_size(self) -> int:
        """Ranks that saved it."""
        return len(self.tables[0].shards)

    @cached_property
    def transfer_bytes(self) -> int:
        """Of tensors in the new files."""
        return sum(table.cut_bytes + self.goal.world_size * table.uncut_bytes for table in self.tables)

    @property
    def size_bytes(self) -> int:
        """Of all new files together, at most."""
        size = self.transfer_bytes
        for table in self.tables:
            archive = table.shards[0].archive
            beside = len(archive.members) * _MEMBER_BYTES + archive.members["data.pkl"].size_bytes
            size += self.goal.world_size * beside + sum(table.padding_bytes(self.goal.world_size))
        extra = max((archive.source.size_bytes() for archive in self.extras.values()), default=0)
        return size + self.goal.world_size * extra


def plan_reshard(
    inputs: MergeInputs, world_size: int, *, fsdp_version: int | None = None, torch: tuple[int, int] | None = None
) -> ReshardPlan:
    """Check everything and decide what is written; only directories, pickles and padding are read.

    Args:
        inputs: The files.
        world_size: Ranks that are going to load it.
        fsdp_version: 1 or 2, as `fsdp_config.json` says; without it, what the optimizer tells.
        torch: Major and minor version of the torch that is going to load it; needed for one rank of FSDP1 alone, whose
            files do not show in which form that torch writes a DTensor.

    Raises:
        InputError: So many ranks are not possible, or `torch` is needed.
        CheckpointError: The files are incomplete, damaged, mixed, or not of a kind that can be cut anew.
    """
    validated = validate(inputs)
    models = _models(validated)
    if not 1 <= world_size <= MOST_RANKS:
        raise InputError(f"a world size of {world_size} is not possible: it is between 1 and {MOST_RANKS}")
    if world_size == len(models):
        raise InputError(f"it is a save of {world_size} ranks already", hint="Name another --world-size")
    refuse_other_cuts(models)
    optimizer = _optimizer(inputs, models, validated)
    version = _version(models, optimizer, fsdp_version, world_size)
    goal = Goal(world_size, len(models), version, torch)
    tables = (goal.model_table(models), *([optimizer] if optimizer else []))
    warnings = tuple(finding.message for finding in validated.report.findings)
    return ReshardPlan(tables, _extras(inputs, len(models)), goal, warnings)


def write_shards(plan: ReshardPlan, folder: Path, on_progress: OnProgress = silent) -> None:
    """Write the files of all new ranks into a folder that has none of them.

    Raises:
        CheckpointError: A file cannot be read, or is damaged; what was written is then of no use.
        OSError: The folder cannot be written.
    """
    meter = Meter(plan.transfer_bytes, on_progress)
    for table in plan.tables:
        files = (new_file(table, rank, plan.goal) for rank in range(plan.goal.world_size))
        _write({rank: shard.archive for rank, shard in table.shards.items()}, files, folder, meter)
    if plan.extras:
        _write(plan.extras, _extra_files(plan), folder, meter)
    meter.finish()


def _write(archives: Mapping[int, Archive], files: Iterator[NewFile], folder: Path, meter: Meter) -> None:
    threads = thread_count(archives)
    with ExitStack() as stack, workers(threads, "cloudrl-reshard") as pool:
        writer = FileWriter(archives, pool, threads, meter)
        stack.callback(writer.close)
        for file in files:
            writer.write(file, folder)
        writer.finish()


def _extra_files(plan: ReshardPlan) -> Iterator[NewFile]:
    for rank in range(plan.goal.world_size):
        name = shard_file("extra_state", plan.goal.world_size, rank)
        yield renamed(plan.extras, rank % plan.old_world_size, name.removesuffix(".pt"))


def _models(validated: Validated) -> dict[int, Shard]:
    """The model of each rank.

    Raises:
        CheckpointError: Something is wrong with it, or ranks have replicas.
    """
    parts = validated.chosen()
    layout = validated.layout
    if layout is not None and layout.parts < layout.world_size:
        how = "each rank has the whole (fsdp_size=1)" if layout.parts == 1 else f"{layout.parts} ranks have a copy each"
        raise CheckpointError(
            f"{parts[0].label} was saved with replicas (HSDP): of {layout.world_size} ranks, {how}. "
            "Only shards without replicas can be cut anew",
            hint=_SAME_WORLD_SIZE_HINT,
        )
    return dict(enumerate(parts))


def _optimizer(inputs: MergeInputs, models: Mapping[int, Shard], validated: Validated) -> Table | None:
    """How the optimizer is cut; None if it was not saved."""
    sources = _beside(inputs, "optim", len(models))
    if not sources:
        return None
    known: dict[Any, Any] = {}
    opened = {rank: open_optimizer(source, rank, known) for rank, source in sources.items()}
    shards = {rank: shard for rank, (shard, _) in opened.items()}
    for rank, shard in shards.items():
        _refuse_changed(inputs, shard.archive, "optim", rank)
    for shard in shards.values():
        if shard.tensors.keys() != shards[0].tensors.keys():
            why = "ranks have the state of other parameters than rank 0, as without flat parameters (use_orig_params)"
            raise unknown_units(shard, why)
    if validated.layout is not None:
        for finding in check_together(shards, validated.layout):
            raise CheckpointError(f"{finding.file}: {finding.message}")
    counts = {count for _, count in opened.values()}
    if len(counts) > 1:
        raise CheckpointError(f"the optimizers of the ranks are for {sorted(counts)} parameters, not the same number")
    table = optimizer_table(shards, models, counts.pop())
    check_padding(table)
    return table


def _extras(inputs: MergeInputs, world_size: int) -> dict[int, Archive]:
    archives = {}
    for rank, source in _beside(inputs, "extra_state", world_size).items():
        archive = open_archive(source)
        saved_as(archive, "extra_state", rank)
        read_state(archive)
        _refuse_changed(inputs, archive, "extra_state", rank)
        archives[rank] = archive
    return archives


def _beside(inputs: MergeInputs, kind: str, world_size: int) -> dict[int, ShardSource]:
    """The files of one kind of all ranks; none if no rank has it.

    Raises:
        CheckpointError: Some ranks have it and others have not.
    """
    sources = {}
    for rank, sidecars in inputs.sidecars.items():
        source = sidecars.optim if kind == "optim" else sidecars.extra
        if source is not None:
            sources[rank] = source
    missing = [rank for rank in range(world_size) if rank not in sources]
    if sources and missing:
        raise CheckpointError(f"{shard_file(kind, world_size, missing[0])} is missing, and other ranks have theirs")
    return dict(sorted(sources.items()))


def _refuse_changed(inputs: MergeInputs, archive: Archive, kind: str, rank: int) -> None:
    record = inputs.sidecars[rank].record
    for finding in check_record(archive, kind, rank, record) if record is not None else ():
        if finding.fatal:
            raise CheckpointError(f"{finding.file}: {finding.message}")


def _version(models: Mapping[int, Shard], optimizer: Table | None, said: int | None, world_size: int) -> int:
    """Which FSDP saved it."""
    if not any(tensor.mesh is not None for tensor in models[0].tensors.values()):
        return 1
    tensors = optimizer.shards[0].tensors if optimizer else {}
    is_cut = [tensor.mesh is not None for tensor in tensors.values() if tensor.shape]
    if is_cut:
        return 2 if all(is_cut) else 1
    if said in (1, 2):
        return said
    if world_size > 1:
        return 2  # the models of both are alike
    raise CheckpointError(
        "nothing tells whether FSDP1 or FSDP2 saved it, and one rank of each has files of its own kind",
        hint="Keep fsdp_config.json with the shards.",
    )
