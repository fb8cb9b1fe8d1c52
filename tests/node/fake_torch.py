"""A stand-in for torch, as far as a node's check of its GPUs calls it. Standard library only, Python 3.9.

The file in $FAKE_TORCH steers it: JSON of GPU -> what goes wrong there, {"1": "error: words"}, {"1": "hang"}, {"1":
"wrong"}, and "count": how many GPUs there are, 8 if it is not there. Where `nvidia-smi --version` says that the driver
runs an older CUDA only, CUDA cannot be initialised, in the words of c10/cuda/CUDAFunctions.cpp (torch 2.13).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from types import SimpleNamespace
from typing import Any


def _asked() -> dict[str, Any]:
    try:
        with open(os.environ.get("FAKE_TORCH", "")) as file:
            return dict(json.load(file))
    except OSError:
        return {}


class Tensor(list):  # type: ignore[type-arg]
    """Values, of which a matrix has one for all."""

    def __matmul__(self, other: Tensor) -> Tensor:
        return Tensor([float(self.side) - (_state.fault == "wrong")])

    side = 0

    def min(self) -> float:
        return float(min(self))

    def max(self) -> float:
        return float(max(self))

    def sum(self) -> int:
        return int(sum(self))

    def to(self, _device: str) -> Tensor:
        return self

    def tolist(self) -> list[float]:
        return list(self)


_state = SimpleNamespace(fault="", rank=0, world=1)
bfloat16, float32, uint8 = "bfloat16", "float32", "uint8"


_TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version {}). Please update your GPU driver by downloading and "
    "installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)


def _init() -> None:
    """Look at the driver, as torch does before it touches a GPU."""
    if shutil.which("nvidia-smi") is None:
        return
    said = subprocess.run(["nvidia-smi", "--version"], capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"^CUDA Version +: (\d+)\.(\d+)$", said, re.MULTILINE)
    driver, own = (
        tuple(map(int, text)) for text in (found.groups() if found else ("99", "0"), version.cuda.split("."))
    )
    if driver < own:
        raise RuntimeError(_TOO_OLD.format(driver[0] * 1000 + driver[1] * 10))


def _set_device(index: int) -> None:
    _state.fault = str(_asked().get(str(index), ""))
    if _state.fault == "hang":
        time.sleep(3600)
    if _state.fault.startswith("error: "):
        raise RuntimeError(_state.fault[len("error: ") :])


def ones(shape: tuple[int, int], **_: object) -> Tensor:
    matrix = Tensor([1.0])
    matrix.side = shape[0]
    return matrix


def arange(count: int, **_: object) -> Tensor:
    return Tensor([count * (count - 1) // 2])


def full(_shape: tuple[int, ...], value: float, **_: object) -> Tensor:
    return Tensor([value])


def zeros(_count: int, **_: object) -> Tensor:
    return Tensor([0.0])


def tensor(values: list[float], **_: object) -> Tensor:
    return Tensor(values)


def _init_process_group(_backend: str, **options: Any) -> None:
    _state.rank, _state.world = options["rank"], options["world_size"]


def _all_gather(gathered: list[Tensor], _own: Tensor) -> None:
    for number, each in enumerate(gathered):
        each[:] = [float(number)]


def _all_to_all_single(exchanged: Tensor, _own: Tensor) -> None:
    exchanged[:] = [float(number) for number in range(_state.world)]


def _nothing(*_: object, **__: object) -> Any:
    return None


def _exchange(_operations: object) -> list[Any]:
    time.sleep(0.01)
    return [SimpleNamespace(wait=_nothing)]


version = SimpleNamespace(cuda="13.0", hip=None)
cuda = SimpleNamespace(
    init=_init,
    device_count=lambda: int(_asked().get("count", 8)),
    set_device=_set_device,
    synchronize=_nothing,
    nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
)
distributed = SimpleNamespace(
    TCPStore=_nothing,
    init_process_group=_init_process_group,
    all_gather=_all_gather,
    all_to_all_single=_all_to_all_single,
    all_reduce=_nothing,
    barrier=_nothing,
    batch_isend_irecv=_exchange,
    P2POp=_nothing,
    irecv=None,
    isend=None,
    ReduceOp=SimpleNamespace(MAX="max"),
    get_rank=lambda: _state.rank,
    get_world_size=lambda: _state.world,
)
