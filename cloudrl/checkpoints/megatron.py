"""Saves of Megatron, and whole models: where their files are, and whether they are intact.

By default Megatron's weights are a whole model as safetensors files. All else is torch's distributed checkpoints (verl
0.9.1, utils/checkpoint/megatron_checkpoint_manager.py): `__R_N.distcp` of each writing rank, and `.metadata`, a pickle
that says which tensor is where. It is written last and renamed into place (torch 2.13, distributed/checkpoint/
filesystem.py, `_FileSystemWriter.finish`).
"""

from collections import defaultdict
from collections.abc import Iterator

from cloudrl.checkpoints.base_model import read_base
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.inventory import LIST_CHECKPOINTS, Checkpoint
from cloudrl.saves.megatron_layout import DIST_FILE, MANIFEST, METADATA, Kind, Weights
from cloudrl.saves.names import HUGGINGFACE
from cloudrl.shards.dist_items import StoredChunk, open_archives, open_chunks
from cloudrl.shards.dist_metadata import DistMetadata, Item, read_metadata
from cloudrl.shards.megatron import DistInputs, plan_dist, writer
from cloudrl.shards.merge import MERGE, Plan, dtype_name
from cloudrl.shards.model_folder import ModelInputs, check_model, read_header
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.report import Finding, Report
from cloudrl.shards.source import ShardSource
from cloudrl.shards.torch_zip import Archive
from cloudrl.shards.validate import find_rotten

_CONFIG = "transformer_config.json"
"""Config and tokenizer beside the distributed format: verl 0.8 and before wrote them there."""


def model_inputs(save: SavedFiles) -> ModelInputs:
    """Say where the files of a whole model or an adapter are.

    Raises:
        CheckpointError: A small file cannot be read.
    """
    folder = _weights(save).folder
    return ModelInputs(save.open_below(folder, ".safetensors"), save.read_small(folder), save.warnings(folder))


def dist_inputs(save: SavedFiles) -> DistInputs:
    """Say where the files of Megatron's distributed format are.

    Raises:
        InputError: The base model cannot be used.
        ConnectionFailed: The Hub does not answer.
        CheckpointError: There are no weights, or a small file cannot be read.
    """
    checkpoint, folder = save.checkpoint, _weights(save).folder
    metadata = checkpoint.files.get(folder + METADATA)
    if metadata is None:
        raise CheckpointError(
            f"{checkpoint.name} has no {folder}{METADATA}: its saving was cut off, or a node is gone",
            hint=f"Take another step: {LIST_CHECKPOINTS}",
        )
    manifest = save.read_json(MANIFEST)
    return DistInputs(
        save.open_file(metadata[0]),
        save.open_below(folder, ".distcp"),
        read_base(save.base) if save.base is not None else save.read_small(HUGGINGFACE),
        {**save.read_json(_CONFIG), **({"arch": manifest["arch"]} if "arch" in manifest else {})},
        save.warnings(HUGGINGFACE),
    )


def plan_distributed(inputs: DistInputs, dtype: str | None, lora: str) -> Plan:
    """See `plan_dist`; no adapter is made of this format."""
    if lora != MERGE:
        raise InputError("of Megatron's distributed format no adapter is made", hint="Leave out --lora")
    return plan_dist(inputs, dtype=dtype_name(dtype, lora))


def verify_files(save: SavedFiles, on_progress: OnProgress = silent) -> Report:
    """Check what can be: every byte of the distributed format, and the structure of a whole model.

    Raises:
        CheckpointError: A file cannot be read from where it is.
    """
    checkpoint, weights = save.checkpoint, save.checkpoint.weights
    findings: list[Finding] = []
    tensors = size_bytes = 0
    if weights and weights.kind is not Kind.DIST:
        inputs = model_inputs(save)
        tensors, problems = _check_model(inputs)
        findings += problems
        size_bytes += sum(source.size_bytes() for source in inputs.weights.values())
    files = {folder: save.open_below(folder, ".distcp") for folder in _dist_folders(checkpoint)}
    total = sum(source.size_bytes() for file in files.values() for source in file.values())
    meter = Meter(total, on_progress)
    for folder, data in files.items():
        metadata, problems = _open_metadata(save, folder)
        findings += problems
        if metadata is not None:
            findings += _check_data(folder, metadata, data, meter)
            tensors += len(metadata.tensors) if weights and folder == weights.folder else 0
    meter.finish()
    manifest = save.read_json(MANIFEST)
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


def _weights(save: SavedFiles) -> Weights:
    """Where the weights are.

    Raises:
        CheckpointError: The folder has no files of it.
    """
    if save.checkpoint.weights is None:
        raise CheckpointError(f"{save.checkpoint.name} has no weights", hint=LIST_CHECKPOINTS)
    return save.checkpoint.weights


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


def _open_metadata(save: SavedFiles, folder: str) -> tuple[DistMetadata | None, list[Finding]]:
    copies = save.checkpoint.files.get(folder + METADATA)
    if copies is None:
        message = f"{folder}{METADATA} is not there: its saving was cut off, or it is on a node that is gone"
        return None, [Finding(message)]
    try:
        return read_metadata(save.open_file(copies[0])), []
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
