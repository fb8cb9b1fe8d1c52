"""Megatron's checkpoints: whether they are intact.

By default their weights are a whole model as safetensors files. All else is torch's distributed checkpoints (verl
0.9.1, utils/checkpoint/megatron_checkpoint_manager.py): `__R_N.distcp` of each writing rank, and `.metadata`, a pickle
that says which tensor lies where. It is written last and renamed into place (torch 2.13, distributed/checkpoint/
filesystem.py, `_FileSystemWriter.finish`). It is not unpickled: the names of files in it are read from its opcodes.
"""

import json
import pickletools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from cloudrl.checkpoints.merge import OpenFile, model_inputs
from cloudrl.errors import CheckpointError
from cloudrl.saves.inventory import Checkpoint, FileCopy
from cloudrl.saves.megatron_layout import DIST_FILE, MANIFEST, METADATA, Kind
from cloudrl.shards.model_folder import check_model, read_header
from cloudrl.shards.report import Finding, Report

_MAX_METADATA_BYTES = 1 << 30
_MAX_MANIFEST_BYTES = 1 << 20


def verify_megatron(checkpoint: Checkpoint, open_file: OpenFile) -> Report:
    """Check that every file which the metadata names is there and not empty, and that a whole model is one.

    Raises:
        CheckpointError: A file cannot be read from where it lies.
    """
    data: dict[str, dict[str, FileCopy]] = defaultdict(dict)
    for path, copies in checkpoint.files.items():
        folder, _, name = path.rpartition("/")
        if DIST_FILE.fullmatch(name):
            data[folder][name] = copies[0]
    findings = [
        finding
        for folder, files in sorted(data.items())
        for finding in _check(checkpoint, open_file, f"{folder}/".lstrip("/"), files)
    ]
    if data:
        findings.append(Finding("of .distcp files it is checked that they are there, not what they hold", fatal=False))
    model = ModelReport(checkpoint, open_file)
    manifest = _read_manifest(checkpoint, open_file)
    step, world_size = manifest.get("global_step"), manifest.get("world_size")
    if step not in (None, checkpoint.step):
        findings.append(Finding(f"{MANIFEST} says that this is step {step}, and the folder step {checkpoint.step}"))
    return Report(
        world_size=world_size if isinstance(world_size, int) else None,
        shards=None,
        ranks=tuple(sorted({_rank(name) for files in data.values() for name in files})),
        tensors=model.tensors,
        size_bytes=model.size_bytes + sum(file.size_bytes for files in data.values() for file in files.values()),
        step=step if isinstance(step, int) else None,
        step_source="manifest" if isinstance(step, int) else None,
        findings=(*model.findings, *findings),
    )


class ModelReport:
    """What is there of a whole model, or of an adapter; nothing where weights are in another form."""

    def __init__(self, checkpoint: Checkpoint, open_file: OpenFile) -> None:
        self.tensors = self.size_bytes = 0
        self.findings: list[Finding] = []
        if checkpoint.weights is None or checkpoint.weights.kind is Kind.DIST:
            return
        inputs = model_inputs(checkpoint, checkpoint.weights, open_file)
        shards = []
        for name, source in inputs.weights.items():
            try:
                shards.append(read_header(name, source))
            except CheckpointError as error:
                self.findings.append(Finding(error.message, file=source.label))
        if not self.findings:
            self.findings += check_model(inputs, shards)
        self.findings.append(Finding("safetensors files have no checksums: their structure is checked", fatal=False))
        self.tensors = sum(len(shard.tensors) for shard in shards)
        self.size_bytes = sum(source.size_bytes() for source in inputs.weights.values())


def _read_manifest(checkpoint: Checkpoint, open_file: OpenFile) -> Mapping[str, Any]:
    """What verl wrote of the save when it was over; nothing where it is not there, or nothing of that kind."""
    copies = checkpoint.files.get(MANIFEST)
    if copies is None or copies[0].size_bytes > _MAX_MANIFEST_BYTES:
        return {}
    try:
        content = json.loads(open_file(copies[0]).read(0, copies[0].size_bytes))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def named_files(metadata: bytes) -> set[str]:
    """The data files that a pickled `.metadata` names; nothing in it is executed.

    Raises:
        CheckpointError: It is no pickle, or names none.
    """
    try:
        words = {str(word) for _, word, _ in pickletools.genops(metadata) if isinstance(word, str)}
    except (ValueError, UnicodeError, IndexError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{METADATA} is damaged: {error}") from error
    named = {word for word in words if DIST_FILE.fullmatch(word.rpartition("/")[2])}
    if not named:
        raise CheckpointError(f"{METADATA} is damaged: it names no file")
    return named


def _check(checkpoint: Checkpoint, open_file: OpenFile, prefix: str, data: Mapping[str, FileCopy]) -> Iterator[Finding]:
    """What is wrong in one folder of a role, such as `model/dist_ckpt/`."""
    for file in data.values():
        if not file.size_bytes:
            yield Finding("the file is empty", file=file.label)
    copies = checkpoint.files.get(f"{prefix}{METADATA}")
    if copies is None:
        yield Finding(f"{prefix}{METADATA} is not there: its saving was cut off, or it lies on a node that is gone")
        return
    metadata = copies[0]
    if not 0 < metadata.size_bytes <= _MAX_METADATA_BYTES:
        yield Finding(f"{prefix}{METADATA} has {metadata.size_bytes} bytes", file=metadata.label)
        return
    try:
        named = named_files(open_file(metadata).read(0, metadata.size_bytes))
    except CheckpointError as error:
        yield Finding(error.message, file=metadata.label)
        return
    for name in sorted(named - data.keys()):
        yield Finding(f"{prefix}{name} is named in {METADATA}, and is not there", _rank(name.rpartition("/")[2]))


def _rank(name: str) -> int:
    """Which has written a data file."""
    return int(name.removeprefix("__").partition("_")[0])
