"""Opens the shards of a checkpoint and finds what is wrong with them, before any tensor is read.

`verify` checks it as far as a machine can tell: structure, ranks, cut, step, and every byte's CRC.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.protocol.ranks import ranks_text
from cloudrl.saves.names import LORA_META
from cloudrl.shards.cancellation import check, workers
from cloudrl.shards.layout import Layout, check_together, read_layout, shard_dim
from cloudrl.shards.lora import has_lora
from cloudrl.shards.lora_settings import read_settings
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.report import Finding, Report
from cloudrl.shards.shard import Shard, open_shard
from cloudrl.shards.source import MergeInputs, ShardSource, Sidecars
from cloudrl.shards.step_consistency import StepConsistency, check_record
from cloudrl.shards.torch_zip import Archive, damaged, open_archive

_THREADS = 4
RankFile = tuple[int, Archive]


@dataclass(frozen=True)
class Validated:
    """What was opened, and what was found.

    Attributes:
        shards: By rank; those that could not be opened are findings.
        layout: None if it could not be read.
    """

    shards: Mapping[int, Shard]
    layout: Layout | None
    report: Report

    def chosen(self) -> tuple[Shard, ...]:
        """One shard for each part, in the order of the parts.

        Raises:
            CheckpointError: Something is wrong with the checkpoint: the first of it, and how much more there is.
        """
        fatal = [finding for finding in self.report.findings if finding.fatal]
        if fatal or self.layout is None:
            first, more = fatal[0], len(fatal) - 1
            place = f"{first.file}: " if first.file and first.file not in first.message else ""
            others = f" (and {more} more {'problem' if more == 1 else 'problems'})" if more else ""
            raise CheckpointError(
                f"{place}{first.message}{others}",
                hint="See all of it with `cloudrl checkpoints verify`, and other steps with "
                "`cloudrl checkpoints list`.",
            )
        holders = (self.layout.holders(part) for part in range(self.layout.parts))
        return tuple(next(self.shards[rank] for rank in ranks if rank in self.shards) for ranks in holders)


def validate(inputs: MergeInputs) -> Validated:
    """Open all shards and check that they are whole, of their ranks, of one step, and fit together.

    A shard that cannot be opened is no harm while a replica can.
    """
    sources, world_size = inputs.shards, inputs.world_size
    shards: dict[int, Shard] = {}
    failures: dict[int, CheckpointError] = {}
    known: dict[Any, Any] = {}
    for rank, source in sorted(sources.items()):
        try:
            shards[rank] = open_shard(source, rank, known)
        except CheckpointError as error:
            failures[rank] = error
    findings: list[Finding] = []
    layout: Layout | None = None
    steps = StepConsistency(shards, inputs.sidecars)
    if not sources:
        findings.append(Finding("there are no model shards"))
    try:
        layout = read_layout(list(shards.values()), world_size) if shards else None
        findings += check_together(shards, layout) if layout else ()
        if layout and not any(finding.fatal for finding in findings):
            findings += _replicas(shards, layout)
    except CheckpointError as error:
        findings.append(Finding(error.message))
    findings = [*_failed(sources, failures, layout), *findings, *steps.findings]
    if steps.source == "record" and inputs.step not in (None, steps.step):
        message = f"its records are of step {steps.step}, and the folder is that of step {inputs.step}: was it renamed?"
        findings.append(Finding(message, fatal=False))
    if unsummed := [rank for rank, shard in shards.items() if not shard.archive.has_crcs]:
        message = f"saved without CRC-32, so damage cannot be found: {ranks_text(unsummed)}"
        findings.append(Finding(message, fatal=False))
    findings += (Finding(warning, fatal=False) for warning in inputs.warnings)
    report = Report(
        world_size=layout.world_size if layout else world_size,
        shards=layout.parts if layout else None,
        ranks=tuple(sorted(shards)),
        tensors=max((len(shard.tensors) for shard in shards.values()), default=0),
        size_bytes=sum(shard.archive.source.size_bytes() for shard in shards.values()),
        step=steps.step,
        step_source=steps.source,
        findings=tuple(findings),
    )
    return Validated(shards, layout, report)


def _failed(
    sources: Mapping[int, ShardSource], failures: Mapping[int, CheckpointError], layout: Layout | None
) -> Iterator[Finding]:
    """A finding for each file that could not be opened: a mild one if a replica of its part was."""
    for rank, error in failures.items():
        others = layout.holders(rank % layout.parts) if layout is not None else ()
        is_replaced = any(other in sources and other not in failures for other in others)
        yield Finding(error.message, rank, sources[rank].label, fatal=not is_replaced)


def _replicas(shards: Mapping[int, Shard], layout: Layout) -> Iterator[Finding]:
    """Whether ranks that hold the same bytes really do; all have the same tensors."""
    first: dict[int, Shard] = {}
    anyone = next(iter(shards.values()))
    for rank, shard in shards.items():
        of_part = first.setdefault(rank % layout.parts, shard)
        is_cut = [shard_dim(kind) is not None for kind in shard.tensors.kinds]
        for name, kind in zip(shard.tensors, shard.tensors.which, strict=True):
            other = of_part if is_cut[kind] else anyone
            if other is not shard and not same_bytes(other, shard, name):
                message = f"{name} differs from that of rank {other.rank}, and both should hold the same"
                yield Finding(message, rank, shard.label)
                break


def same_bytes(one: Shard, other: Shard, name: str, other_name: str | None = None) -> bool:
    """Whether two views hold equal bytes: by the CRCs of their storages, else by those of the views."""
    mine, theirs = one.tensors.view(name), other.tensors.view(other_name or name)
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return False
    here, there = one.member(mine), other.member(theirs)
    has_crcs = one.archive.has_crcs and other.archive.has_crcs
    if has_crcs and (mine.offset, here.size_bytes, here.crc32) == (theirs.offset, there.size_bytes, there.crc32):
        return True
    length = mine.elements * mine.dtype.size_bytes
    return one.archive.source.crc32(one.offset(mine), length) == other.archive.source.crc32(
        other.offset(theirs), length
    )


def verify(inputs: MergeInputs, *, on_progress: OnProgress = silent) -> Report:
    """Check the files of one role of one step, those for a resume too. Nothing found is an exception.

    Every byte is read, where its file is, and compared with the CRC-32 that the file's directory has of it; the
    directory with the record of the save.
    """
    validated = validate(inputs)
    models = [(rank, shard.archive) for rank, shard in validated.shards.items()]
    beside, wrong = _open_sidecars(inputs)
    files = [*models, *beside]
    meter = Meter(sum(archive.members.size_bytes for _, archive in files), on_progress)
    with workers(_THREADS, "cloudrl-verify") as threads:
        rotten = list(threads.map(lambda file: list(find_rotten(file, meter)), files))
    meter.finish()
    wrong += [*_changed(inputs), *_adapter(inputs, validated.shards), *(finding for each in rotten for finding in each)]
    reported = {finding.file for finding in wrong if finding.fatal} - {None}
    findings = [finding for finding in validated.report.findings if finding.fatal or finding.file not in reported]
    return replace(validated.report, findings=(*findings, *wrong))


def _open_sidecars(inputs: MergeInputs) -> tuple[list[RankFile], list[Finding]]:
    """The optimizer's and the other state of each rank, and what is wrong with them before they are read."""
    opened: list[RankFile] = []
    findings: list[Finding] = []
    for rank, sidecars in inputs.sidecars.items():
        for kind, source in (("optim", sidecars.optim), ("extra_state", sidecars.extra)):
            if source is None:
                continue
            try:
                archive = open_archive(source)
                if sidecars.record is not None:
                    findings += check_record(archive, kind, rank, sidecars.record)
            except CheckpointError as error:
                findings.append(Finding(error.message, rank, source.label))
            else:
                opened.append((rank, archive))
    return opened, findings


def _adapter(inputs: MergeInputs, shards: Mapping[int, Shard]) -> Iterator[Finding]:
    """A LoRA adapter whose scale is unknown: no resume needs it, but a merge does."""
    if any(has_lora(shard.tensors) for shard in shards.values()):
        try:
            read_settings(inputs.lora, inputs.adapter_config)
        except CheckpointError as error:
            yield Finding(error.message, fatal=False)


def _changed(inputs: MergeInputs) -> Iterator[Finding]:
    """Config, tokenizer and the like, which a user may have changed on purpose."""
    record = inputs.sidecars.get(0, Sidecars()).record
    if record is None:
        return
    files = {f"huggingface/{name}": content for name, content in inputs.config_files.items()}
    for name, content in {**files, LORA_META: inputs.lora or b""}.items():
        saved = record.files.get(name)
        if saved is not None and saved.sha256 != sha256(content).hexdigest():
            yield Finding(f"{name} is not as it was saved at step {record.step}", fatal=False)


def find_rotten(file: RankFile, meter: Meter) -> Iterator[Finding]:
    """Members of a rank's file whose bytes are not those that were saved."""
    rank, archive = file
    source = archive.source
    for name, member in archive.members.items():
        check()
        try:
            crc = source.crc32(member.offset, member.size_bytes)
        except CheckpointError as error:
            yield Finding(f"{name} cannot be read: {error.message}", rank, source.label)
        else:
            if archive.has_crcs and crc != member.crc32:
                yield Finding(damaged(source, name, member.crc32, crc).message, rank, source.label)
        meter.add(member.size_bytes)
