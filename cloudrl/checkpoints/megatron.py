"""Whether Megatron's checkpoints are intact.

By default their weights are a whole model as safetensors files. All else is torch's distributed checkpoints (verl
0.9.1, utils/checkpoint/megatron_checkpoint_manager.py): `__R_N.distcp` of each writing rank, and `.metadata`, a pickle
that says which tensor lies where. It is written last and renamed into place (torch 2.13, distributed/checkpoint/
filesystem.py, `_FileSystemWriter.finish`).
"""

from collections import defaultdict
from collections.abc import Iterator

from cloudrl.checkpoints.megatron_inputs import OpenFile, files_below, megatron_inputs, read_json
from cloudrl.errors import CheckpointError
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.megatron_layout import DIST_FILE, MANIFEST, METADATA, Kind
from cloudrl.shards.dist_items import StoredChunk, open_archives, open_chunks
from cloudrl.shards.dist_metadata import DistMetadata, Item, read_metadata
from cloudrl.shards.megatron import writer
from cloudrl.shards.model_folder import ModelInputs, check_model, read_header
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.report import Finding, Report
from cloudrl.shards.source import ShardSource
from cloudrl.shards.torch_zip import Archive
from cloudrl.shards.validate import find_rotten


def verify_megatron(checkpoint: Checkpoint, open_file: OpenFile, *, on_progress: OnProgress = silent) -> Report:
    """Check what can be: every byte of the distributed format, and the structure of a whole model.

    Raises:
        CheckpointError: A file cannot be read from where it lies.
    """
    weights = checkpoint.weights
    findings: list[Finding] = []
    tensors = size_bytes = 0
    inputs = megatron_inputs(checkpoint, open_file) if weights and weights.kind is not Kind.DIST else None
    if isinstance(inputs, ModelInputs):
        tensors, found = _check_model(inputs)
        findings += found
        size_bytes += sum(source.size_bytes() for source in inputs.weights.values())
    folders = _dist_folders(checkpoint)
    files = {folder: files_below(checkpoint, folder, ".distcp", open_file) for folder in folders}
    total = sum(source.size_bytes() for each in files.values() for source in each.values())
    meter = Meter(total, on_progress)
    for folder, data in files.items():
        metadata, found = _open_metadata(checkpoint, folder, open_file)
        findings += found
        if metadata is not None:
            findings += _check_data(folder, metadata, data, meter)
            tensors += len(metadata.tensors) if weights and folder == weights.folder else 0
    meter.finish()
    manifest = read_json(checkpoint, MANIFEST, open_file)
    step, world_size = manifest.get("global_step"), manifest.get("world_size")
    if step not in (None, checkpoint.step):
        findings.append(
            Finding(f"{MANIFEST} says that this is step {step!r:.40}, and the folder step {checkpoint.step}")
        )
    return Report(
        world_size=world_size if isinstance(world_size, int) else None,
        shards=None,
        ranks=tuple(sorted({writer(name) for data in files.values() for name in data})),
        tensors=tensors,
        size_bytes=size_bytes + total,
        step=step if isinstance(step, int) else None,
        step_source="manifest" if isinstance(step, int) else None,
        findings=tuple(findings),
    )


def _check_model(inputs: ModelInputs) -> tuple[int, list[Finding]]:
    """How many tensors a whole model or an adapter has, and what is wrong with it."""
    shards, findings = [], []
    for name, source in inputs.weights.items():
        try:
            shards.append(read_header(name, source))
        except CheckpointError as error:
            findings.append(Finding(error.message, file=source.label))
    if not findings:
        findings += check_model(inputs, shards)
    findings.append(Finding("safetensors files have no checksums: their structure is checked", fatal=False))
    return sum(len(shard.tensors) for shard in shards), findings


def _dist_folders(checkpoint: Checkpoint) -> list[str]:
    """Those in torch's distributed format, each with a slash at its end."""
    folders = {path.rpartition("/")[0] for path in checkpoint.files if DIST_FILE.fullmatch(path.rpartition("/")[2])}
    return sorted(f"{folder}/" for folder in folders)


def _open_metadata(
    checkpoint: Checkpoint, folder: str, open_file: OpenFile
) -> tuple[DistMetadata | None, list[Finding]]:
    copies = checkpoint.files.get(folder + METADATA)
    if copies is None:
        message = f"{folder}{METADATA} is not there: its saving was cut off, or it lies on a node that is gone"
        return None, [Finding(message)]
    try:
        return read_metadata(open_file(copies[0])), []
    except CheckpointError as error:
        return None, [Finding(error.message, file=copies[0].label)]


def _check_data(folder: str, metadata: DistMetadata, data: dict[str, ShardSource], meter: Meter) -> Iterator[Finding]:
    """Every item of the files of one folder."""
    chunks: dict[str, list[StoredChunk]] = defaultdict(list)
    objects: dict[str, list[Item]] = defaultdict(list)
    for key, tensor in metadata.tensors.items():
        for chunk in tensor.chunks:
            chunks[chunk.item.file].append(StoredChunk(key, tensor.dtype, chunk))
    for item in metadata.objects.values():
        objects[item.file].append(item)
    for name in sorted(chunks.keys() | objects.keys()):
        source, rank = data.get(name), writer(name)
        if source is None:
            yield Finding(f"{folder}{name} is named in {METADATA}, and is not there", rank)
            continue
        try:
            for archive in _archives(source, rank, chunks[name], objects[name]):
                yield from find_rotten((rank, archive), meter)
        except CheckpointError as error:
            yield Finding(error.message, rank, source.label)


def _archives(source: ShardSource, rank: int, chunks: list[StoredChunk], objects: list[Item]) -> Iterator[Archive]:
    yield open_chunks(source, rank, chunks).archive
    yield from open_archives(source, objects)
