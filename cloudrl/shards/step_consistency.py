"""Which training step each rank's files are from: by the record of the save, else by scheduler or optimizer."""

import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.protocol.ranks import ranks_text
from cloudrl.saves.names import record_file, shard_file
from cloudrl.saves.records import SaveRecord
from cloudrl.shards.dtypes import DType
from cloudrl.shards.pickled import PickledObject
from cloudrl.shards.report import Finding
from cloudrl.shards.shard import Shard, read_state, saved_as
from cloudrl.shards.source import ShardSource, Sidecars
from cloudrl.shards.tensors import Unreadable, View, read_view
from cloudrl.shards.torch_zip import Archive, open_archive

_NUMBERS = {DType.FLOAT32: "<f", DType.FLOAT64: "<d", DType.INT64: "<q", DType.INT32: "<i"}


class StepConsistency:
    """The step of each rank, by the first evidence that all ranks have; else by what some have.

    Attributes:
        step: The one of most ranks; None if nothing tells. Scheduler and optimizer count updates, of which a step may
            have several.
        source: What told it: the best evidence that at least one rank has.
        findings: Ranks that disagree, and what cannot be read beside a model: a mild finding, since it needs that not.

    Args:
        shards: The model files.
        sidecars: What is beside them, by rank.
    """

    def __init__(self, shards: Mapping[int, Shard], sidecars: Mapping[int, Sidecars]) -> None:
        self.findings: list[Finding] = []
        self.step: int | None = None
        self.source: str | None = None
        present = {rank: each for rank, each in sorted(sidecars.items()) if rank in shards}
        for rank, each in present.items():
            if each.record is not None:
                self.findings += check_record(shards[rank].archive, "model", rank, each.record)
        for evidence in ("record", "scheduler", "optimizer"):  # an optimizer's pickle takes longest
            ranks: dict[int, list[int]] = defaultdict(list)
            for rank, each in present.items():
                if (step := self._read_step(evidence, rank, each)) is not None:
                    ranks[step].append(rank)
            self._compare(evidence, ranks)
            if sum(map(len, ranks.values())) == len(shards):
                break
        if self.source is None and len(shards) > 1:
            message = "nothing tells whether all ranks are from one step: no record, scheduler or optimizer state"
            self.findings.append(Finding(message, fatal=False))

    def _read_step(self, evidence: str, rank: int, sidecars: Sidecars) -> int | None:
        if evidence == "record":
            return sidecars.record.step if sidecars.record is not None else None
        source = sidecars.extra if evidence == "scheduler" else sidecars.optim
        if source is None:
            return None
        try:
            return _scheduler_step(source, rank) if evidence == "scheduler" else _optimizer_step(source, rank)
        except CheckpointError as error:
            self.findings.append(Finding(error.message, rank, source.label, fatal=False))
            return None

    def _compare(self, evidence: str, ranks: Mapping[int, list[int]]) -> None:
        """Take the step of most ranks, unless a better evidence told one; the others are findings."""
        if not ranks:
            return
        common, *others = sorted(ranks, key=lambda step: -len(ranks[step]))
        if self.source is None:
            self.step, self.source = common, evidence
        unit = "step" if evidence == "record" else f"update (by its {evidence})"
        for step in others:
            are = "is" if len(ranks[step]) == 1 else "are"
            message = (
                f"{ranks_text(ranks[step])} {are} from another step: {unit} {step}, "
                f"and {ranks_text(ranks[common])} from {common}"
            )
            self.findings.append(Finding(message, ranks[step][0]))


def check_record(archive: Archive, kind: str, rank: int, record: SaveRecord) -> Iterator[Finding]:
    """Whether a file is the one that was there when the save had finished: by size, and by its directory.

    The directory has the CRC-32 of every byte; reading the bytes checks those. That a record does not name a file which
    the model needs not is a mild finding.
    """
    source, wrong = archive.source, record_file(record.world_size, record.rank)
    doubt = f"; if nothing else disagrees, it is the record that is wrong: remove {wrong} beside it"
    name = shard_file(kind, record.world_size, rank)
    saved = record.files.get(name)
    if record.rank != rank:
        message = f"the record of the save beside it is of rank {record.rank}, not of rank {rank}"
    elif saved is None:
        message = f"the record of the save of step {record.step} beside it does not name {name}"
    elif (size := source.size_bytes()) != saved.size_bytes:
        message = f"it has {size} bytes, and {saved.size_bytes} were saved at step {record.step}"
    elif archive.digest != saved.sha256:
        was = f"{saved.sha256[:12]} was saved at step {record.step}"
        message = f"its directory has the SHA-256 {archive.digest[:12]}, and {was}: it is another file"
    else:
        return
    is_vital = kind == "model" or record.rank != rank or saved is not None
    yield Finding(message + doubt, rank, source.label, fatal=is_vital)


def _state(source: ShardSource, kind: str, rank: int) -> tuple[Archive, dict[Any, Any]]:
    """What a file holds; nothing for what is not a dict."""
    archive = open_archive(source)
    saved_as(archive, kind, rank)
    state = read_state(archive)
    return archive, state if isinstance(state, dict) else {}


def _scheduler_step(source: ShardSource, rank: int) -> int | None:
    _, state = _state(source, "extra_state", rank)
    scheduler = state.get("lr_scheduler")
    step = scheduler.get("last_epoch") if isinstance(scheduler, dict) else None
    return step if isinstance(step, int) else None


def _optimizer_step(source: ShardSource, rank: int) -> int | None:
    """The `step` of the first parameter that has one (torch 2.13, torch/optim/adam.py)."""
    archive, state = _state(source, "optim", rank)
    parameters = state.get("state")
    for parameter in parameters.values() if isinstance(parameters, dict) else ():
        step = parameter.get("step") if isinstance(parameter, dict) else None
        if isinstance(step, View | PickledObject):
            step = _scalar(archive, step)
        if isinstance(step, int) or (isinstance(step, float) and math.isfinite(step)):
            return int(step)
    return None


def _scalar(archive: Archive, value: View | PickledObject) -> float | None:
    """The value of a tensor of one number."""
    try:
        view = read_view(value)
    except Unreadable:
        return None
    member, size = archive.members.get(f"data/{view.storage}"), view.dtype.size_bytes
    if view.elements != 1 or view.dtype not in _NUMBERS or member is None:
        return None
    if (view.offset + 1) * size > member.size_bytes:
        return None
    data = archive.source.read(member.offset + view.offset * size, size)
    number: float = struct.unpack(_NUMBERS[view.dtype], data)[0]
    return number
