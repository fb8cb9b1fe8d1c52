"""Merges the shards of all ranks into a Hugging Face model, without torch and without holding a tensor in memory."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.names import INDEX
from cloudrl.shards.adapter import ADAPTER, TAKE_ADAPTER, adapter_files, adapter_outputs, make_updates
from cloudrl.shards.architectures import check_architecture
from cloudrl.shards.copying import Target, copy
from cloudrl.shards.dtypes import WANTED, DType
from cloudrl.shards.lora import Lora, has_lora, read_lora, refuse_adapted_experts
from cloudrl.shards.lora_settings import read_settings, unsure_of_scale
from cloudrl.shards.model_files import ModelFiles, file_names, header, in_file_order, index, output_files, read_files
from cloudrl.shards.on_disk import rule_of
from cloudrl.shards.parameters import check_parameters, is_tied, keeps_experts_fused
from cloudrl.shards.plan import (
    EMBEDDINGS,
    MAX_FILE_BYTES,
    Output,
    Update,
    head_of,
    hold_the_same,
    make_outputs,
    split_files,
)
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.shard import Shard
from cloudrl.shards.source import MergeInputs
from cloudrl.shards.validate import validate
from cloudrl.shards.wrappers import unwrapped

_QUANTIZATION, _TIED, _TEXT = "quantization_config", "tie_word_embeddings", "text_config"


@dataclass(frozen=True)
class Plan:
    """All that is known before a byte is read or written.

    Attributes:
        files: Name of each weight file, and its tensors in the order of the file.
        texts: Name and content of all other files.
        warnings: What to look at: odd tensors, a missing replica.
    """

    files: Mapping[str, Sequence[Output]]
    texts: Mapping[str, bytes]
    warnings: tuple[str, ...]

    @property
    def outputs(self) -> list[Output]:
        """Every tensor."""
        return [output for file in self.files.values() for output in file]

    @property
    def weights_bytes(self) -> int:
        """Of all tensors."""
        return sum(output.size_bytes for output in self.outputs)

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        beside = (*map(header, self.files.values()), *self.texts.values())
        return self.weights_bytes + sum(map(len, beside))


MERGE, ADAPTER_ALONE = "merge", "adapter"
"""What can become of a LoRA adapter."""


def wanted_type(dtype: str | None, lora: str) -> DType | None:
    """What `--dtype` stands for; None keeps the type of each tensor.

    Raises:
        InputError: `dtype` or `lora` is unknown.
    """
    if lora not in {MERGE, ADAPTER_ALONE}:
        raise InputError(f"lora {lora!r} is unknown; choose {MERGE} or {ADAPTER_ALONE}")
    name = dtype_name(dtype, lora)
    if name not in WANTED:
        raise InputError(f"dtype {name!r} is unknown; choose {', '.join(WANTED)}")
    return WANTED[name]


def dtype_name(dtype: str | None, lora: str) -> str:
    """The value of `--dtype`, or what stands for it: adapters are small, and peft reads them in any type."""
    return dtype or ("keep" if lora == ADAPTER_ALONE else "bf16")


def plan_merge(
    inputs: MergeInputs, *, dtype: str | None = None, lora: str = MERGE, max_file_bytes: int = MAX_FILE_BYTES
) -> Plan:
    """Check everything and decide what is written; only directories and pickles are read.

    Args:
        inputs: The files.
        dtype: Of all floats: `bf16` (as verl's own merger), `fp16`, `fp32`, or `keep`. Other types are kept. Without it
            `bf16` for a model, and `keep` for an adapter.
        lora: What becomes of a LoRA adapter: `merge` takes it into the model, `adapter` gives it alone, for peft.
        max_file_bytes: The most that a weight file may have.

    Raises:
        InputError: `dtype` or `lora` is unknown.
        CheckpointError: The checkpoint is incomplete, damaged, mixed, or not of a kind that can be merged.
    """
    wanted = wanted_type(dtype, lora)
    beside = read_files(inputs.config_files)
    config = beside.config
    validated = validate(inputs)
    parts, wrappers = unwrapped(validated.chosen())
    tensors, label = parts[0].tensors, parts[0].label
    warnings = [finding.message for finding in validated.report.findings]
    names = {name: name for name in tensors}
    updates: dict[str, Update] = {}
    if has_lora(tensors):
        found, unsure = _read_adapter(parts[0], inputs, config)
        warnings += unsure
        if lora == ADAPTER_ALONE:
            outputs = in_file_order(adapter_outputs(parts, found, wanted))
            return Plan({ADAPTER: outputs}, adapter_files(found, inputs.config_files, config), tuple(warnings))
        if not found.base:
            raise CheckpointError(f"{label} has an adapter alone, without the model that it is for", hint=TAKE_ADAPTER)
        names, updates = dict(found.base), make_updates(parts, found)
    elif lora == ADAPTER_ALONE:
        raise CheckpointError(f"{label} has no LoRA adapter", hint="Leave out --lora adapter, for the whole model")
    is_plain = not wrappers and not has_lora(tensors)
    architecture = check_architecture(config, names.keys(), parts[0], is_plain=is_plain)
    changes: dict[str, object] = {"architectures": [architecture]}
    if is_tied(architecture, config):
        head = head_of(names)

        def is_embedding(embedding: str) -> bool:
            is_adapted = head in updates or embedding in updates
            return not is_adapted and hold_the_same(parts, names[head], names[embedding])

        tied = tie(config, names, is_embedding)
        changes |= tied.changes
        warnings += tied.warnings
        if not tied.has_head:
            names.pop(head, None)
    rule = replace(rule_of(architecture), keeps_experts=keeps_experts_fused(config))
    outputs = make_outputs(parts, wanted, names=names, rule=rule, updates=updates)
    try:
        return make_plan(outputs, beside, changes, wanted, warnings=warnings, max_file_bytes=max_file_bytes)
    except CheckpointError as error:
        if not wrappers:
            raise
        without = f"{error.message} (names are without the wrappers that the shards have: {', '.join(wrappers)})"
        raise CheckpointError(without, hint=error.hint) from error


def _read_adapter(shard: Shard, inputs: MergeInputs, config: Mapping[str, Any]) -> tuple[Lora, list[str]]:
    """The adapter of a model, and what is to be told of its scale."""
    settings = read_settings(inputs.lora, inputs.adapter_config)
    warnings = unsure_of_scale(settings, inputs.first_adapter, shard.label)
    if keeps_experts_fused(config):
        refuse_adapted_experts(shard.tensors, shard.label)
    return read_lora(shard.tensors, settings, config, shard.label), warnings


@dataclass(frozen=True)
class Tie:
    """What becomes of the output head of a model whose config says that it is the embedding."""

    has_head: bool
    changes: Mapping[str, object] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def tie(config: Mapping[str, Any], names: Collection[str], is_embedding: Callable[[str], bool]) -> Tie:
    """Leave out a head that is the embedding, and keep any other.

    Args:
        config: Says that they are one.
        names: Of all tensors.
        is_embedding: Whether the head holds the same as the tensor of this name.
    """
    embedding, head = next((name for name in EMBEDDINGS if name in names), None), head_of(names)
    if head in names and (embedding is None or not is_embedding(embedding)):
        differ = f"{head} and the embedding differ, though config.json says they are one: both are kept, as untied"
        text = config.get(_TEXT)
        below = {_TEXT: {**text, _TIED: False}} if isinstance(text, dict) and _TIED in text else {}
        return Tie(True, {_TIED: False, **below}, (differ,))
    is_below = _TIED not in config and _TEXT in config  # where transformers 4.57 looks, and 5 does not
    return Tie(False, {_TIED: True} if is_below else {})


def make_plan(
    outputs: Sequence[Output],
    beside: ModelFiles,
    changes: Mapping[str, object],
    wanted: DType | None,
    *,
    warnings: Sequence[str] = (),
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Plan:
    """Distribute tensors over files, and have config and index say so.

    Args:
        outputs: Every tensor.
        beside: What goes with the weights.
        changes: What is another in the model's config.
        wanted: The type that was asked for; None if each tensor keeps its own.
        warnings: What to look at.
        max_file_bytes: The most that a weight file may have.

    Raises:
        CheckpointError: The tensors are not those of the config, or a file has a name that leads out of the folder.
    """
    files = [in_file_order(file) for file in split_files(outputs, max_file_bytes)]
    named = dict(zip(file_names(len(files)), files, strict=True))
    if beside.config.get(_QUANTIZATION) is not None:
        changes = {**changes, _QUANTIZATION: None}
        warnings = [*warnings, f"config.json has a {_QUANTIZATION}, left out, since these weights are plain"]
    texts = output_files(beside, changes, wanted or _common_type(outputs))
    _check(outputs, {**beside.config, **changes})
    if len(named) > 1:
        texts[INDEX] = index(named)
    return Plan(named, texts, tuple(warnings))


def _check(outputs: Sequence[Output], config: Mapping[str, Any]) -> None:
    """Raises: CheckpointError: the config is not that of these tensors."""
    named = config.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        check_parameters(named[0], config, {output.name: output.shape for output in outputs})


def write_model(plan: Plan, folder: Path, on_progress: OnProgress = silent) -> tuple[str, ...]:
    """Write a planned model into an empty folder; its last byte comes before the progress says that all is done.

    Returns:
        What to look at in the model, with the plan's warnings.

    Raises:
        CheckpointError: A shard cannot be read, or is damaged.
        OSError: The folder cannot be written.
    """
    meter = Meter(sum(output.stored_bytes for output in plan.outputs), on_progress)
    for name, text in plan.texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    with ExitStack() as stack:
        targets = [_begin(folder / name, outputs, stack) for name, outputs in plan.files.items()]
        odd = copy(targets, meter)
    meter.finish()
    return (*plan.warnings, *sorted(odd))


def _common_type(outputs: Sequence[Output]) -> DType | None:
    """The type of most of the floats: what a config can name."""
    sizes: dict[DType, int] = {}
    for output in outputs:
        if output.dtype.is_float:
            sizes[output.dtype] = sizes.get(output.dtype, 0) + output.elements
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else None


def _begin(path: Path, outputs: Sequence[Output], stack: ExitStack) -> Target:
    """Make a weight file with its header, as long as it is going to be; `stack` closes it."""
    head = header(outputs)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    stack.callback(os.close, file)
    os.pwrite(file, head, 0)
    os.ftruncate(file, len(head) + sum(output.size_bytes for output in outputs))
    return Target(file, outputs, len(head))
