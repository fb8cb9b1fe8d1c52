"""A model that is there whole, as safetensors files: read, checked, and planned to be written again in another type.

Format: safetensors 0.8, README.md, `Format`. It has no checksums: what can be checked is that header, file and index
agree.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.saves.names import INDEX
from cloudrl.shards.adapter import ADAPTER, TAKE_ADAPTER
from cloudrl.shards.architectures import COVERED
from cloudrl.shards.critic import critic_config, critic_outputs, is_value_head
from cloudrl.shards.dtypes import DType, result_type
from cloudrl.shards.lora_settings import ADAPTER_CONFIG
from cloudrl.shards.merge import ADAPTER_ALONE, MERGE, Plan, make_plan, tie, wanted_type
from cloudrl.shards.model_files import first_architecture, in_file_order, read_files
from cloudrl.shards.on_disk import stays_float32
from cloudrl.shards.parameters import is_tied
from cloudrl.shards.plan import HEAD, MAX_FILE_BYTES, Output, Piece, head_of
from cloudrl.shards.report import Finding
from cloudrl.shards.shard import Shard
from cloudrl.shards.source import ShardSource
from cloudrl.shards.tensor_table import TensorTable
from cloudrl.shards.tensors import Tensor, View
from cloudrl.shards.torch_zip import Archive, Member, Members
from cloudrl.shards.validate import same_bytes
from cloudrl.shards.wrappers import SAVE_THE_MODEL, unwrapped

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 1 << 24  # 100,000 tensors
_DTYPES = {dtype.safetensors: dtype for dtype in DType}
_ANOTHER_COPY_HINT = "Take another copy, or another step: cloudrl checkpoints list"


@dataclass(frozen=True)
class ModelInputs:
    """A whole model, or a LoRA adapter in peft's format.

    Attributes:
        weights: Its safetensors files, by name.
        config_files: What else is beside them.
        warnings: What is odd about the files, to be told.
    """

    weights: Mapping[str, ShardSource]
    config_files: Mapping[str, bytes] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def is_adapter(self) -> bool:
        """Whether it needs its base model."""
        return ADAPTER in self.weights or ADAPTER_CONFIG in self.config_files


def plan_model(
    inputs: ModelInputs, *, dtype: str | None = None, lora: str = MERGE, max_file_bytes: int = MAX_FILE_BYTES
) -> Plan:
    """Check everything and decide what is written; of the weights only headers are read, and a head that may be tied.

    Args:
        inputs: The files.
        dtype: See `plan_merge`.
        lora: See `plan_merge`.
        max_file_bytes: The most that a weight file may have.

    Raises:
        InputError: `dtype` or `lora` is unknown.
        CheckpointError: A file is missing or damaged, or there is no model where one is asked for, or no adapter.
    """
    wanted = wanted_type(dtype, lora)
    if inputs.is_adapter and lora == MERGE:
        raise CheckpointError("the adapter alone was saved, without the model that it is for", hint=TAKE_ADAPTER)
    if not inputs.is_adapter and lora == ADAPTER_ALONE:
        raise CheckpointError("there is no LoRA adapter, but a whole model", hint="Leave out --lora adapter")
    shards = [read_header(name, source) for name, source in sorted(inputs.weights.items())]
    for finding in check_model(inputs, shards):
        raise CheckpointError(finding.message, hint=_ANOTHER_COPY_HINT)
    if inputs.is_adapter:
        return Plan({ADAPTER: in_file_order(_outputs(shards, wanted))}, dict(inputs.config_files), inputs.warnings)
    beside = read_files(inputs.config_files)
    config = beside.config
    shards = _unwrapped(shards, first_architecture(config))
    outputs = _outputs(shards, wanted)
    changes: dict[str, Any] = {}
    warnings = inputs.warnings
    if any(output.name == HEAD and is_value_head(output.shape, config) for output in outputs):
        changes, outputs = critic_config(config), critic_outputs(outputs)
    elif is_tied(first_architecture(config), config):
        where = {name: shard for shard in shards for name in shard.tensors}
        head = head_of(where)
        tied = tie(config, where, lambda name: same_bytes(where[name], where[head], name, head))
        outputs = [output for output in outputs if tied.has_head or output.name != head]
        changes, warnings = dict(tied.changes), (*warnings, *tied.warnings)
    return make_plan(outputs, beside, changes, wanted, warnings=warnings, max_file_bytes=max_file_bytes)


def _unwrapped(shards: list[Shard], architecture: str) -> list[Shard]:
    """The same without the wrappers of torch in names.

    Raises:
        CheckpointError: There are some, and it is not known which names the model has.
    """
    found: list[Shard] = []
    for shard in shards:
        (named,), wrappers = unwrapped([shard])
        is_known = architecture in COVERED
        if not is_known and not all(name.startswith("module.") for name in shard.tensors) and wrappers == ("module",):
            found.append(shard)  # a class may have something of this name
            continue
        if wrappers and not is_known:
            raise CheckpointError(
                f"{shard.label} has tensors inside `{wrappers[0]}`, and it is not known which names a "
                f"{architecture or 'model without an architecture'} has",
                hint=SAVE_THE_MODEL,
            )
        found.append(named)
    return found


def _outputs(shards: list[Shard], wanted: DType | None) -> list[Output]:
    return [_output(shard, name, tensor, wanted) for shard in shards for name, tensor in shard.tensors.items()]


def _output(shard: Shard, name: str, tensor: Tensor, wanted: DType | None) -> Output:
    elements = tensor.view.elements
    pieces = (Piece(shard, tensor.view, 0, elements, elements),) if elements else ()
    dtype = result_type(tensor.view.dtype, None if stays_float32(name) else wanted)
    return Output(name, tensor.shape, dtype, pieces)


def check_model(inputs: ModelInputs, shards: list[Shard]) -> Iterator[Finding]:
    """Whether each tensor is there once, and all that the index names.

    Megatron-Bridge leaves out a whole file if one tensor of it is missing, and goes on (megatron-bridge 0.5.2,
    models/conversion/model_bridge.py).
    """
    for name in (ADAPTER, ADAPTER_CONFIG) if inputs.is_adapter else ():
        if name not in inputs.weights and name not in inputs.config_files:
            yield Finding(f"the adapter has no {name}")
    if not shards:
        yield Finding("there are no weights")
    file_of: dict[str, str] = {}
    for shard in shards:
        for name in shard.tensors:
            if name in file_of:
                yield Finding(f"{name} is in {file_of[name]} and in {shard.archive.root}", file=shard.label)
            file_of[name] = shard.archive.root
    if INDEX in inputs.config_files:
        yield from _check_index(inputs.config_files[INDEX], inputs.weights, file_of)


def _check_index(text: bytes, files: Mapping[str, ShardSource], found: Mapping[str, str]) -> Iterator[Finding]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield Finding(f"{INDEX} is not JSON: {error}")
        return
    named = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(named, dict):
        yield Finding(f"{INDEX} has no weight_map")
        return
    gone = sorted({str(file) for file in named.values()} - files.keys())
    if gone:
        yield Finding(f"{INDEX} names {len(gone)} files that are not there: {', '.join(gone[:3])}")
        return
    wrong = sorted(name for name in named.keys() | found.keys() if named.get(name) != found.get(name))
    if wrong:
        yield Finding(f"{INDEX} and the files disagree on {len(wrong)} tensors: {', '.join(wrong[:3])}")


def read_header(name: str, source: ShardSource) -> Shard:
    """Which tensors a file has, and where.

    Raises:
        CheckpointError: It is cut off, or no safetensors file.
    """
    size = source.size_bytes()
    length = _LENGTH.unpack(source.read(0, _LENGTH.size))[0] if size >= _LENGTH.size else 0
    start = _LENGTH.size + length
    if not 2 <= length <= _MAX_HEADER_BYTES or start > size:
        raise _damaged(source, f"its header would have {length} bytes, and the file has {size}")
    try:
        entries = json.loads(source.read(_LENGTH.size, length))
        entries.pop("__metadata__", None)
        located = {str(key): _locate(key, entry) for key, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(source, f"its header cannot be read ({error})") from error
    at, members, tensors = 0, {}, {}
    for key, (view, first, end) in sorted(located.items(), key=lambda item: item[1][1:]):
        if first != at or end - first != view.size_bytes:
            raise _damaged(source, f"{key} would be at bytes {first} to {end}")
        at, members[f"data/{key}"], tensors[key] = end, Member(start + first, end - first, 0), Tensor(view.shape, view)
    if start + at != size:
        raise _damaged(source, f"its tensors end at byte {start + at}, and it has {size}: it is cut off or too long")
    archive = Archive(source, name, Members.of(members), "", has_crcs=False)
    return Shard(0, None, archive, TensorTable(tensors, {}))


def _locate(key: str, entry: Mapping[str, Any]) -> tuple[View, int, int]:
    """A tensor, and where it begins and ends."""
    first, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{key} is of type {entry['dtype']!r:.20}, which cannot be read")
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in (first, end, *shape)) or len(shape) > 64:
        raise ValueError(f"{key} has an impossible shape or place")
    if math.prod(shape) >= 1 << 62:
        raise ValueError(f"{key} has an impossible shape")
    return View(key, _DTYPES[entry["dtype"]], 0, shape), first, end


def _damaged(source: ShardSource, why: str) -> CheckpointError:
    return CheckpointError(f"{source.label} is not a complete safetensors file: {why}", hint=_ANOTHER_COPY_HINT)
