"""A folder of this machine with the shards of one role of one step, as verl's FSDP workers write it.

Source: verl 0.9.1, utils/checkpoint/fsdp_checkpoint_manager.py, `save_checkpoint`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.checkpoints.source import Companions, LocalShard, Manifest
from cloudrl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudrl.checkpoints.source import ShardSource

_SHARD = re.compile(r"(model|optim|extra_state)_world_size_(\d{1,6})_rank_(\d{1,6})\.pt")
_MANIFEST = "cloudrl_save_world_size_{size}_rank_{rank}.json"  # cloudrl/node/saves.py
_MAX_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class Folder:
    """What `merge` and `verify` take.

    Attributes:
        shards: The model file of each rank that is there.
        config_files: What lies in `huggingface/`, by its path in there.
        world_size: Ranks of the run.
        companions: What else is there of each rank.
    """

    shards: Mapping[int, ShardSource]
    config_files: Mapping[str, bytes]
    world_size: int
    companions: Mapping[int, Companions]


def open_folder(path: Path) -> Folder:
    """Look at `global_step_10/actor` or another folder with shards in it.

    Raises:
        CheckpointError: There are none, they are of runs of several sizes, or Megatron has saved them.
    """
    refuse_megatron(path)
    found = [match for entry in _entries(path) if (match := _SHARD.fullmatch(entry))]
    size = _world_size(path, {int(match[2]) for match in found if match[1] == "model"})
    files = {(match[1], int(match[3])): path / match[0] for match in found if int(match[2]) == size}
    ranks = sorted(rank for kind, rank in files if kind == "model")
    return Folder(
        shards={rank: LocalShard(files["model", rank]) for rank in ranks},
        config_files=_config_files(path / "huggingface"),
        world_size=size,
        companions={rank: _companions(path, files, rank, size) for rank in ranks},
    )


def refuse_megatron(path: Path) -> None:
    """Megatron saves torch's distributed checkpoints: `__0_0.distcp`, ... and a pickled `.metadata`.

    verl 0.9.1 keeps them in `model/dist_ckpt` (earlier: `dist_ckpt`) below the role's folder.

    Raises:
        CheckpointError: That is what lies here.
    """
    for folder in (path, path / "dist_ckpt", path / "model" / "dist_ckpt"):
        if (folder / ".metadata").is_file() or next(folder.glob("*.distcp"), None) is not None:
            raise megatron_error(str(folder))


def megatron_error(what: str) -> CheckpointError:
    """What is said of Megatron's checkpoints."""
    return CheckpointError(
        f"{what} is a checkpoint of Megatron (.distcp files and .metadata), and merging these is not supported yet",
        hint="On a machine with a GPU and megatron-core: python -m verl.model_merger merge --backend megatron "
        "--local_dir DIR --target_dir OUT",
    )


def _entries(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _world_size(path: Path, sizes: set[int]) -> int:
    """What `fsdp_config.json` says, as verl's own merger takes it; it lies on the node of rank 0 only."""
    config = path / "fsdp_config.json"
    if config.is_file():
        try:
            return int(json.loads(config.read_bytes())["world_size"])
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise CheckpointError(f"{config} does not say the world size: {error!r}") from error
    if not sizes:
        raise CheckpointError(
            f"{path} has no files model_world_size_N_rank_R.pt",
            hint="Name the folder of one role of one step, such as checkpoints/global_step_10/actor.",
        )
    if len(sizes) > 1:
        raise CheckpointError(f"{path} has shards of runs of {sorted(sizes)} ranks, and no fsdp_config.json")
    return sizes.pop()


def _config_files(folder: Path) -> dict[str, bytes]:
    """Small files only: weights may lie there as well."""
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.stat().st_size <= _MAX_SMALL_BYTES
    )
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in paths
        if path.suffix != ".safetensors"
    }


def _companions(path: Path, files: Mapping[tuple[str, int], Path], rank: int, size: int) -> Companions:
    optim, extra = files.get(("optim", rank)), files.get(("extra_state", rank))
    return Companions(
        optim=LocalShard(optim) if optim else None,
        extra=LocalShard(extra) if extra else None,
        manifest=_manifest(path / _MANIFEST.format(size=size, rank=rank)),
    )


def _manifest(path: Path) -> Manifest | None:
    if not path.is_file():
        return None
    try:
        return Manifest.from_json(json.loads(path.read_bytes()))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} is no manifest: {error}", hint="Remove it to do without.") from error
