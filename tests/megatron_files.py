"""Checkpoints of Megatron for tests: small real ones (shards/make_megatron.py), and what they must merge to."""

import json
import tarfile
from pathlib import Path

from megatron_values import values

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.shards.megatron import DistInputs
from cloudrl.shards.source import LocalShard

FIXTURES = Path(__file__).parent / "shards" / "fixtures" / "megatron"
_DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


def extracted(case: str, folder: Path, fixtures: Path = FIXTURES) -> Path:
    """The folder of the role of the step that a fixture has; its run is `folder`."""
    with tarfile.open(fixtures / f"{case}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    (folder / "global_step_1" / "data.pt").write_bytes(b"x")
    (role,) = (path for path in (folder / "global_step_1").iterdir() if path.is_dir())
    return role


def expected(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The model, as `read_safetensors` has it."""
    names = json.loads((folder / "names.json").read_text())
    dtype = names["dtype"]
    return {name: (_DTYPES[dtype], tuple(shape), values(name, shape, dtype)) for name, shape in names["shapes"].items()}


def weights(role: Path) -> Path:
    """The folder in the distributed format."""
    return role / "model" / "dist_ckpt"


def latest(folder: Path) -> CheckpointHandle:
    """The step that these weights are of; `folder` is two below that of its role."""
    return Checkpoints(LocalSource(folder.parents[3])).select(folder.parents[2].name.rpartition("_")[2])


def dist_inputs(role: Path, **config: object) -> DistInputs:
    """What is merged, with the config of the model that was trained, and changes to it."""
    data = {path.name: LocalShard(path) for path in weights(role).glob("*.distcp")}
    text = json.loads((role.parents[1] / "config.json").read_text()) | config
    return DistInputs(LocalShard(weights(role) / ".metadata"), data, {"config.json": json.dumps(text).encode()})
