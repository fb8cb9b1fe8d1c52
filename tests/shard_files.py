"""Shard files for tests: made by torch's own `torch.save` under a stand-in process group, and changed by hand."""

import json
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from small_step import CONFIG

from cloudrl.checkpoints.fsdp import plan_shards, shard_inputs
from cloudrl.checkpoints.merge import Merged, write
from cloudrl.checkpoints.saved_files import SavedFiles
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.shards.merge import MERGE
from cloudrl.shards.source import MergeInputs

FIXTURES = Path(__file__).parent / "shards" / "fixtures"
HIDDEN, INTERMEDIATE, VOCABULARY = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]


def numbers(seed: int, count: int) -> list[float]:
    """The values that make_fixtures.py gives parameter number `seed`, as float32."""
    return [struct.unpack("<f", struct.pack("<f", (seed + i) * 0.37 % 3 - 1.5))[0] for i in range(count)]


def config_files(**changes: Any) -> dict[str, bytes]:
    """What is in `huggingface/`."""
    return {"config.json": json.dumps(CONFIG | changes).encode(), "tokenizer.json": b"{}"}


def members(path: Path) -> dict[str, bytes]:
    """Everything in a torch file, by its name below the root."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename.partition("/")[2]: archive.read(info) for info in archive.infolist()}


def write_members(path: Path, content: Mapping[str, bytes], root: str | None = None) -> None:
    """Write a torch file; CRCs are right."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(f"{root or path.stem}/{name}", data)


def edit(path: Path, change: Callable[[dict[str, bytes]], None], root: str | None = None) -> None:
    """Change members of a torch file; CRCs are right afterwards."""
    with zipfile.ZipFile(path) as archive:
        old_root = archive.namelist()[0].partition("/")[0]
    content = members(path)
    change(content)
    write_members(path, content, root or old_root)


def replace_in_pickle(old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    """A change for `edit`."""

    def change(content: dict[str, bytes]) -> None:
        assert old in content["data.pkl"]
        content["data.pkl"] = content["data.pkl"].replace(old, new)

    return change


def rename_tensor(folder: Path, old: str, new: str) -> None:
    """Of a tensor, on both ranks."""
    texts = (b"X" + len(name).to_bytes(4, "little") + name.encode() for name in (old, new))
    change = replace_in_pickle(*texts)
    for rank in (0, 1):
        edit(shard_path(folder, rank), change)


def shard_path(folder: Path, rank: int, world_size: int = 2, kind: str = "model") -> Path:
    """As verl names it."""
    return folder / f"{kind}_world_size_{world_size}_rank_{rank}.pt"


def copied(save: str, run: Path) -> Path:
    """The files of a fixture, as the actor of a step of this run, with config and tokenizer."""
    role = Path(shutil.copytree(FIXTURES / save, role_folder(run)))
    (role / "huggingface").mkdir()
    for name, data in config_files().items():
        (role / "huggingface" / name).write_bytes(data)
    (role.parent / "data.pt").write_bytes(b"data")
    return role


def role_folder(run: Path) -> Path:
    """Where the actor of a step is."""
    return run / "global_step_1" / "actor"


def opened(role: Path) -> MergeInputs:
    """The folder of a role of a step, as all commands open it; its records may be of any step."""
    origin = LocalSource(role.parent)
    (found,) = [each for each in origin.inventory().checkpoints if each.role == role.name]
    return replace(shard_inputs(SavedFiles(found, origin.open)), step=None)


def merge_role(role: Path, target: Path, files: Mapping[str, bytes] | None = None, **options: Any) -> Merged:
    """Merge the folder of a role; `files` are in `huggingface/` instead of what is there."""
    inputs = opened(role)
    return merge(inputs if files is None else replace(inputs, config_files=files), target, **options)


def merge(inputs: MergeInputs, target: Path, *, dtype: str | None = None, lora: str = MERGE, **options: Any) -> Merged:
    """Merge shards, wherever their bytes come from."""
    return write(plan_shards(inputs, dtype, lora), target, **options)


def read_safetensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Type, shape and bytes of each tensor of a model, by name; without the safetensors library."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__")
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            found[name] = (entry["dtype"], tuple(entry["shape"]), data[8 + length + start : 8 + length + end])
        assert len(data) == 8 + length + max(entry["data_offsets"][1] for entry in header.values())
    return found
