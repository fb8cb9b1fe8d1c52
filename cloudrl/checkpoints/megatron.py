"""What can be said of Megatron's checkpoints without Megatron: whether all files are there.

They are torch's distributed checkpoints (verl 0.9.1, utils/checkpoint/megatron_checkpoint_manager.py): `__R_N.distcp`
of each writing rank, and `.metadata`, a pickle that says which tensor lies where. It is written last and renamed into
place (torch 2.13, distributed/checkpoint/filesystem.py, `_FileSystemWriter.finish`). It is not unpickled: the names
of files in it are read from its opcodes.
"""

from __future__ import annotations

import pickletools
import re
from typing import TYPE_CHECKING

from cloudrl.errors import CheckpointError
from cloudrl.shards.report import Finding, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cloudrl.checkpoints.sources import FileOpener
    from cloudrl.saves.inventory import Checkpoint, FileCopy

METADATA = ".metadata"
_DATA = re.compile(r"__([0-9]{1,9})_([0-9]{1,9})\.distcp")
_MAX_METADATA_BYTES = 1 << 30


def verify_megatron(checkpoint: Checkpoint, files: FileOpener) -> Report:
    """Check that every file which the metadata names is there and not empty; tensors are not looked at.

    Raises:
        CheckpointError: The metadata cannot be read from where they lie.
    """
    found = {name: copies[0] for name, copies in checkpoint.files.items() if _DATA.fullmatch(_base(name))}
    folders = sorted({name.rpartition("/")[0] for name in found})
    findings = [finding for folder in folders for finding in _check(checkpoint, files, folder, found)]
    ranks = sorted({int(match[1]) for name in found if (match := _DATA.fullmatch(_base(name)))})
    return Report(
        world_size=None,
        shards=None,
        ranks=tuple(ranks),
        tensors=0,
        size_bytes=sum(file.size_bytes for file in found.values()),
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
    named = {word for word in words if _DATA.fullmatch(_base(word))}
    if not named:
        raise CheckpointError(f"{METADATA} is damaged: it names no file")
    return named


def _check(
    checkpoint: Checkpoint, files: FileOpener, folder: str, found: dict[str, FileCopy]
) -> Iterator[Finding]:
    """What is wrong in one folder of a role, such as `model/dist_ckpt`."""
    prefix = f"{folder}/" if folder else ""
    copies = checkpoint.files.get(f"{prefix}{METADATA}")
    here = {
        name.removeprefix(prefix): file for name, file in found.items() if name.rpartition("/")[0] == folder
    }
    yield from _empty(here.values())
    if copies is None:
        yield Finding(
            f"{prefix}{METADATA} is not there: its saving was cut off, or it lies on a node that is gone"
        )
        return
    if not 0 < copies[0].size_bytes <= _MAX_METADATA_BYTES:
        yield Finding(f"{prefix}{METADATA} has {copies[0].size_bytes} bytes", file=copies[0].label)
        return
    try:
        wanted = named_files(files.open(copies[0]).read(0, copies[0].size_bytes))
    except CheckpointError as error:
        yield Finding(error.message, file=copies[0].label)
        return
    for name in sorted(wanted - here.keys()):
        match = _DATA.fullmatch(_base(name))
        yield Finding(
            f"{prefix}{name} is named in {METADATA}, and is not there", int(match[1]) if match else None
        )


def _empty(files: Iterable[FileCopy]) -> Iterator[Finding]:
    for file in files:
        if not file.size_bytes:
            yield Finding("the file is empty", file=file.label)


def _base(name: str) -> str:
    return name.rpartition("/")[2]
