"""Checks a checkpoint as far as a machine can tell: structure, ranks, cut, step, and every byte's CRC."""

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

from cloudrl.errors import CheckpointError
from cloudrl.shards.cancellation import check, workers
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.report import Finding, Report
from cloudrl.shards.source import MergeInputs, Sidecars
from cloudrl.shards.step_consistency import check_record
from cloudrl.shards.torch_zip import Archive, damaged, open_archive
from cloudrl.shards.validate import validate

_THREADS = 4
_RankFile = tuple[int, Archive]


def verify(inputs: MergeInputs, *, on_progress: OnProgress = silent) -> Report:
    """Check the files of one role of one step, those for a resume too. Nothing found is an exception.

    Every byte is read, where its file lies, and compared with the CRC-32 that the file's directory has of it; the
    directory with the record of the save.
    """
    validated = validate(inputs)
    models = [(rank, shard.archive) for rank, shard in validated.shards.items()]
    beside, wrong = _open_sidecars(inputs)
    files = [*models, *beside]
    members = [member for _, archive in files for member in archive.members.values()]
    meter = Meter(sum(member.size_bytes for member in members), on_progress)
    with workers(_THREADS, "cloudrl-verify") as threads:
        rotten = list(threads.map(lambda file: list(_find_rotten(file, meter)), files))
    meter.finish()
    wrong += [*_changed(inputs), *(finding for each in rotten for finding in each)]
    reported = {finding.file for finding in wrong if finding.fatal} - {None}
    findings = [each for each in validated.report.findings if each.fatal or each.file not in reported]
    return replace(validated.report, findings=(*findings, *wrong))


def _open_sidecars(inputs: MergeInputs) -> tuple[list[_RankFile], list[Finding]]:
    """The optimizer's and the other state of each rank, and what is wrong with them before they are read."""
    opened: list[_RankFile] = []
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


def _changed(inputs: MergeInputs) -> Iterator[Finding]:
    """Config and tokenizer, which a user may have changed on purpose."""
    record = inputs.sidecars.get(0, Sidecars()).record
    if record is None:
        return
    for name, content in inputs.config_files.items():
        saved = record.files.get(f"huggingface/{name}")
        if saved is not None and saved.sha256 != sha256(content).hexdigest():
            yield Finding(f"huggingface/{name} is not as it was saved at step {record.step}", fatal=False)


def _find_rotten(file: _RankFile, meter: Meter) -> Iterator[Finding]:
    rank, archive = file
    source = archive.source
    for name, member in archive.members.items():
        check()
        try:
            crc = source.crc32(member.offset, member.size_bytes)
        except CheckpointError as error:
            yield Finding(f"{name} cannot be read: {error.message}", rank, source.label)
        else:
            if crc != member.crc32:
                yield Finding(damaged(source, name, member.crc32, crc).message, rank, source.label)
        meter.add(member.size_bytes)
