"""What can be said of Megatron's checkpoints without Megatron: whether all files are there.

They are torch's distributed checkpoints (verl 0.9.1, utils/checkpoint/megatron_checkpoint_manager.py): `__R_N.distcp`
of each writing rank, and `.metadata`, a pickle that says which tensor lies where. It is written last and renamed into
place (torch 2.13, distributed/checkpoint/filesystem.py, `_FileSystemWriter.finish`). It is not unpickled: the names
of files in it are read from its opcodes.
"""

import pickletools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from cloudrl.checkpoints.merge import OpenFile
from cloudrl.errors import CheckpointError
from cloudrl.saves.inventory import Checkpoint, FileCopy
from cloudrl.shards.report import Finding, Report

METADATA = ".metadata"
_DATA = re.compile(r"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_MAX_METADATA_BYTES = 1 << 30


def verify_megatron(checkpoint: Checkpoint, open_file: OpenFile) -> Report:
    """Check that every file which the metadata names is there and not empty; tensors are not looked at.

    Raises:
        CheckpointError: The metadata cannot be read from where they lie.
    """
    data: dict[str, dict[str, FileCopy]] = defaultdict(dict)
    for path, copies in checkpoint.files.items():
        folder, _, name = path.rpartition("/")
        if _DATA.fullmatch(name):
            data[folder][name] = copies[0]
    findings = [
        finding
        for folder, files in sorted(data.items())
        for finding in _check(checkpoint, open_file, f"{folder}/".lstrip("/"), files)
    ]
    return Report(
        world_size=None,
        shards=None,
        ranks=tuple(sorted({_rank(name) for files in data.values() for name in files})),
        tensors=0,
        size_bytes=sum(file.size_bytes for files in data.values() for file in files.values()),
        step=None,
        step_source=None,
        findings=(*findings, Finding("this is Megatron's: files are checked, tensors are not", fatal=False)),
    )


def named_files(metadata: bytes) -> set[str]:
    """The data files that a pickled `.metadata` names; nothing in it is executed.

    Raises:
        CheckpointError: It is no pickle, or names none.
    """
    try:
        words = {str(word) for _, word, _ in pickletools.genops(metadata) if isinstance(word, str)}
    except (ValueError, UnicodeError, IndexError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{METADATA} is damaged: {error}") from error
    named = {word for word in words if _DATA.fullmatch(word.rpartition("/")[2])}
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
