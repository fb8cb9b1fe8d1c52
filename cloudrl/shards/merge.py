"""Merges the shards of all ranks into a Hugging Face model, without torch and without holding a tensor in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.errors import InputError
from cloudrl.shards.architectures import check_architecture
from cloudrl.shards.config import is_said_tied, output_files, read_config
from cloudrl.shards.copying import Copier, copy_tasks, total_bytes
from cloudrl.shards.dtypes import WANTED, DType
from cloudrl.shards.plan import HEAD, MAX_FILE_BYTES, Output, is_tied, make_outputs, split_files
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.safetensors import INDEX, file_names, header, in_file_order, index
from cloudrl.shards.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cloudrl.shards.inputs import MergeInputs
    from cloudrl.shards.report import Report
    from cloudrl.shards.shard import Shard


@dataclass(frozen=True)
class Merged:
    """A merged model.

    Attributes:
        path: The folder, as `from_pretrained` and vLLM take it.
        files: The names of the weight files in it.
        tensors: How many were written.
        parameters: Their elements.
        size_bytes: Of the weights.
        read_bytes: Of the shards.
        report: What the check before the merge found; nothing fatal.
        warnings: What to look at: NaN, odd tensors.
    """

    path: Path
    files: tuple[str, ...]
    tensors: int
    parameters: int
    size_bytes: int
    read_bytes: int
    report: Report
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All that is known before a byte is read or written.

    Attributes:
        files: Name of each weight file, and its tensors in the order of the file.
        texts: Name and content of all other files.
    """

    files: Mapping[str, Sequence[Output]]
    texts: Mapping[str, bytes]
    report: Report
    warnings: tuple[str, ...]

    @property
    def outputs(self) -> list[Output]:
        """Every tensor."""
        return [output for file in self.files.values() for output in file]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        weights = sum(output.size_bytes for output in self.outputs) + sum(
            len(header(file)) for file in self.files.values()
        )
        return weights + sum(len(text) for text in self.texts.values())


def plan_merge(inputs: MergeInputs, *, dtype: str = "bf16", max_file_bytes: int = MAX_FILE_BYTES) -> Plan:
    """Check everything and decide what is written; only directories and pickles are read.

    Args:
        inputs: The files.
        dtype: Of all floats: `bf16` (as verl's own merger), `fp16`, `fp32`, or `keep`. Other types are kept.
        max_file_bytes: The most that a weight file may have.

    Raises:
        InputError: `dtype` is unknown.
        CheckpointError: The checkpoint is incomplete, damaged, mixed, or not of a kind that can be merged.
    """
    wanted = _wanted(dtype)
    config = read_config(inputs.config_files)
    validated = validate(inputs)
    parts = validated.chosen()
    architecture = check_architecture(config, parts[0])
    leave_out, tied, warnings = _tied(config, parts)
    outputs = make_outputs(parts, wanted, leave_out=leave_out)
    files = [in_file_order(file) for file in split_files(outputs, max_file_bytes)]
    named = dict(zip(file_names(len(files)), files, strict=True))
    texts = output_files(
        inputs.config_files, config, wanted or _common_type(outputs), architecture=architecture, tied=tied
    )
    if len(named) > 1:
        texts[INDEX] = index(named)
    mild = tuple(finding.message for finding in validated.report.findings)
    return Plan(named, texts, validated.report, (*mild, *warnings))


def write_model(
    plan: Plan, folder: Path, threads: int | None = None, on_progress: OnProgress = silent
) -> Merged:
    """Write a planned model into an empty folder; its last byte comes before the progress says that all is done.

    Raises:
        CheckpointError: A shard cannot be read, or is damaged.
        OSError: The folder cannot be written.
    """
    outputs = plan.outputs
    read_bytes = total_bytes(outputs)
    meter = Meter(read_bytes, on_progress)
    copier = Copier(meter, threads=threads)
    for name, text in plan.texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    for name, file in plan.files.items():
        _write_weights(folder / name, file, copier)
    meter.finish()
    return Merged(
        path=folder,
        files=tuple(plan.files),
        tensors=len(outputs),
        parameters=sum(output.elements for output in outputs),
        size_bytes=sum(output.size_bytes for output in outputs),
        read_bytes=read_bytes,
        report=plan.report,
        warnings=(*plan.warnings, *(f"{name} has NaN" for name in sorted(copier.with_nan))),
    )


def _wanted(dtype: str) -> DType | None:
    if dtype not in WANTED:
        raise InputError(f"dtype {dtype!r} is unknown; choose {', '.join(WANTED)}")
    return WANTED[dtype]


def _common_type(outputs: Sequence[Output]) -> DType | None:
    """The type of most of the floats: what a config can name."""
    sizes: dict[DType, int] = {}
    for output in outputs:
        if output.dtype.is_float:
            sizes[output.dtype] = sizes.get(output.dtype, 0) + output.elements
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else None


def _tied(
    config: Mapping[str, object], parts: Sequence[Shard]
) -> tuple[set[str], bool | None, tuple[str, ...]]:
    """What to leave out for tied embeddings, what the config must say of them, and warnings."""
    if not is_said_tied(config) or HEAD not in parts[0].tensors:
        return set(), None, ()
    if is_tied(parts):
        return {HEAD}, None, ()
    message = (
        f"{HEAD} and the embedding differ, though config.json says they are one: both are kept, as untied"
    )
    return set(), False, (message,)


def _write_weights(path: Path, outputs: Sequence[Output], copier: Copier) -> None:
    head = header(outputs)
    target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(target, head, 0)
        os.ftruncate(target, len(head) + sum(output.size_bytes for output in outputs))
        copier.copy(copy_tasks(outputs, len(head)), target)
    finally:
        os.close(target)
