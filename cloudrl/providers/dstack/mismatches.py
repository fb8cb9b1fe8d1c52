"""Why machines of a fleet do not fit a cluster: each wish that one does not meet, with both numbers. Pure.

What dstack 0.22.5 compares: server/services/instances.py (filter_instances, get_shared_instances_with_offers), and
gpuhunt's `matches` for the resources. A host of one's own counts with the bytes that were free below Docker's folder
when it was added (runner/internal/shim/host/host.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cloudrl.protocol.ranks import names_text
from cloudrl.providers.dstack.machine_states import Instance
from cloudrl.units import dollars_text

_MIB_PER_GB = 1024
_SHOWN = 4


@dataclass(frozen=True)
class Mismatch:
    """One wish that a machine does not meet.

    Attributes:
        text: the wish, what the machine has, and what is asked for: `disk 800GB, asked for 900GB..`.
        option: what changes the wish, as it is typed.
    """

    text: str
    option: str


def mismatches(task: Any, instance: Instance, *, nodes: int) -> Iterator[Mismatch]:
    """The wishes that a machine does not meet.

    Args:
        task: dstack's own configuration of the cluster (core/models/configurations.py: TaskConfiguration).
        instance: the machine.
        nodes: of the cluster; several take whole machines.
    """
    kind = getattr(instance.answer, "instance_type", None)
    if instance.status == "unreachable":
        yield Mismatch("cannot be reached by dstack's server", "See why: cloudrl fleet list")
    yield from _place(task, instance)
    yield from _use(instance, nodes)
    if kind is not None:
        yield from _resources(task.resources, kind.resources)


def describe(task: Any, instances: Sequence[Instance], *, nodes: int) -> tuple[str, tuple[str, ...]]:
    """All of that of several machines in a sentence, likewise ones together, and the options that change it.

    Args:
        task: as `mismatches` has it.
        instances: the machines.
        nodes: of the cluster.

    Returns:
        "" and nothing where every machine would do.
    """
    names: dict[str, list[str]] = {}
    options: list[str] = []
    for instance in instances:
        found = list(mismatches(task, instance, nodes=nodes))
        if found:
            names.setdefault("; ".join(each.text for each in found), []).append(instance.hostname or instance.name)
            options += [each.option for each in found]
    lines = [f"{names_text(machines)}: {text}" for text, machines in list(names.items())[:_SHOWN]]
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return " | ".join([*lines, *more]), tuple(dict.fromkeys(options))


def _place(task: Any, instance: Instance) -> Iterator[Mismatch]:
    for name, has in (("backends", instance.backend), ("regions", instance.region)):
        asked = [getattr(each, "value", each) for each in getattr(task, name, None) or ()]
        if asked and has and has.lower() not in [str(each).lower() for each in asked]:
            option = f"--set dstack.{name}=[{has}]"
            yield Mismatch(f"{name[:-1]} {has}, asked for {', '.join(map(str, asked))}", option)
    most = getattr(task, "max_price", None)
    if most is not None and instance.price > most:
        yield Mismatch(
            f"price {dollars_text(instance.price)}/h, asked for at most {dollars_text(most)}",
            "--set dstack.max_price=...",
        )


def _use(instance: Instance, nodes: int) -> Iterator[Mismatch]:
    total, busy = (getattr(instance.answer, name, None) or 0 for name in ("total_blocks", "busy_blocks"))
    if busy and nodes > 1 and busy < total:
        yield Mismatch(f"blocks: {busy} of {total} in use, asked for all", "Wait, or stop what runs there: dstack ps")
    elif instance.status == "busy" and busy >= max(1, total):
        yield Mismatch("in use by another run", "Wait, or stop what runs there: dstack ps")


def _resources(asked: Any, has: Any) -> Iterator[Mismatch]:
    arch = getattr(has.cpu_arch, "value", None)
    wanted_arch = getattr(asked.cpu.arch, "value", None)
    if wanted_arch is not None and (arch or "x86") != wanted_arch:
        yield Mismatch(f"CPU architecture {arch}, asked for {wanted_arch}", f"--set cpu={arch}:2..")
    if not _within(has.cpus, asked.cpu.count):
        yield Mismatch(f"CPUs {has.cpus}, asked for {_range(asked.cpu.count)}", f"--set cpu={has.cpus}..")
    yield from _size("memory", has.memory_mib, asked.memory)
    if asked.disk is not None and has.disk is not None and has.disk.size_mib:
        yield from _size("disk", has.disk.size_mib, asked.disk.size)
    if asked.shm_size is not None and has.memory_mib < asked.shm_size * _MIB_PER_GB:
        text = f"memory {_gb(has.memory_mib)}, asked for {asked.shm_size:g}GB of it as /dev/shm"
        yield Mismatch(text, f"--set shm_size={has.memory_mib // _MIB_PER_GB // 2}GB")
    if asked.gpu is not None and (asked.gpu.count.min or 0) > 0:
        yield from _gpus(asked.gpu, has.gpus)


def _gpus(asked: Any, has: Sequence[Any]) -> Iterator[Mismatch]:
    if not has:
        yield Mismatch(f"no GPUs, asked for {_gpu_wish(asked)}", "Machines with GPUs, or --gpu 0 for a cluster without")
        return
    first = has[0]
    memory_gb = first.memory_mib / _MIB_PER_GB
    vendor, name = getattr(first.vendor, "value", None), str(first.name)
    option = f"--gpu {name}:{len(has)}"
    wanted_vendor = getattr(asked.vendor, "value", None)
    if wanted_vendor and vendor and vendor != wanted_vendor:
        yield Mismatch(f"GPUs of {vendor}, asked for {wanted_vendor}", f"--gpu {vendor}:{len(has)}")
    elif asked.name and name.lower() not in [str(each).lower() for each in asked.name]:
        yield Mismatch(f"GPU {name}, asked for {', '.join(asked.name)}", option)
    if not _within(len(has), asked.count):
        yield Mismatch(f"{len(has)} GPU{'' if len(has) == 1 else 's'}, asked for {_range(asked.count)}", option)
    if asked.memory is not None and not _within(memory_gb, asked.memory):
        yield Mismatch(f"GPU memory {memory_gb:g}GB, asked for {_range(asked.memory, 'GB')}", option)
    if asked.total_memory is not None and not _within(memory_gb * len(has), asked.total_memory):
        total = f"{memory_gb * len(has):g}GB"
        yield Mismatch(f"GPU memory {total} together, asked for {_range(asked.total_memory, 'GB')}", option)


def _gpu_wish(asked: Any) -> str:
    parts = [*(asked.name or ()), *([_range(asked.memory, "GB")] if asked.memory is not None else [])]
    return ":".join([*parts, _range(asked.count)])


def _size(what: str, has_mib: int, asked: Any) -> Iterator[Mismatch]:
    if not _within(has_mib / _MIB_PER_GB, asked):
        text = f"{what} {_gb(has_mib)}, asked for {_range(asked, 'GB')}"
        yield Mismatch(text, f"--set {what}={has_mib // _MIB_PER_GB}GB..")


def _gb(mib: int) -> str:
    return f"{mib // _MIB_PER_GB}GB"


def _within(value: float, limits: Any) -> bool:
    return (limits.min is None or value >= limits.min) and (limits.max is None or value <= limits.max)


def _range(limits: Any, unit: str = "") -> str:
    least, most = (f"{value:g}{unit}" if value is not None else "" for value in (limits.min, limits.max))
    return least if least == most else f"{least}..{most}"
