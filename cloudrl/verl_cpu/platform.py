"""What verl asks of a device, answered for the CPU."""

# ruff: noqa: D102, ARG002 - the methods and their arguments are those of verl's PlatformBase, which explains them

from __future__ import annotations

import os
import resource
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase


class _CpuDeviceModule(types.ModuleType):
    """`torch.cpu`, and what verl 0.9.1 calls on `torch.cuda` besides (get_torch_device() in its sources)."""

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)
    manual_seed = staticmethod(torch.manual_seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    @staticmethod
    def is_available() -> bool:
        """False: verl asks whether there is an accelerator to move data to."""
        return False

    @staticmethod
    def get_device_name(*_: object) -> str:
        return "CPU"

    @staticmethod
    def empty_cache(*_: object) -> None:
        return None

    ipc_collect = set_per_process_memory_fraction = empty_cache

    @staticmethod
    def memory_allocated(*_: object) -> int:
        """Bytes of memory that this process holds now."""
        return int(psutil.Process().memory_info().rss)

    @staticmethod
    def max_memory_allocated(*_: object) -> int:
        """Bytes of memory that this process held at most."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    @staticmethod
    def mem_get_info(*_: object) -> tuple[int, int]:
        """Free and total memory of the machine in bytes."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total


_DEVICE_MODULE = _CpuDeviceModule("cloudrl.verl_cpu.device")


class CpuPlatform(PlatformBase):
    """The CPU as a platform of verl (verl/plugin/platform/platform_base.py)."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        # verl passes this on to torch as a device; an index would mean an accelerator.
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, *_: object, **__: object) -> None:
        return None

    # A CPU has nothing to wait for, to set, to empty or to profile, and no runtime of CUDA's.
    synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = set_device

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        """Return `gloo`; in a training worker, first set up what verl cannot set up for a CPU.

        A training worker asks for this name once, to build the backend string "cpu:gloo,<device>:<backend>",
        and builds its process group from it unless one exists (verl/utils/distributed.py,
        initialize_global_process_group_ray). With the device "cpu" torch refuses that string, because it
        names a device twice, and verl leaves no other way in. So the group is made here. It is also the last
        call before the worker looks its engine up, and the first in which a process is known to need one.
        """
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ and not torch.distributed.is_initialized():
            from cloudrl.verl_cpu import engine  # noqa: F401  registers the engines with verl

            torch.distributed.init_process_group(
                backend="gloo",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
                init_method=os.environ.get("DIST_INIT_METHOD"),
            )
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        # verl counts "GPU" or "NPU" resources only (verl/single_controller/ray/base.py,
        # _check_resource_available), so a CPU node is started with a declared GPU slot a worker.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False
