"""What goes wrong with the machines of a training that runs on: slow nodes, and memory and disks that fill. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from cloudrl.jobs.evidence import Evidence, RunWarning
from cloudrl.protocol.folders import MEMORY
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import Usage
from cloudrl.units import duration_text, size_text
from cloudrl.verl import keys
from cloudrl.verl.balance import ROLLOUT
from cloudrl.verl.memory.host import KILLED_AT
from cloudrl.verl.memory.runs import allocated_gib
from cloudrl.verl.memory.training import ASLEEP, CONTEXT
from cloudrl.verl.metrics import Step

_BUSIER_PERCENT = 25.0
_TAKES_PART_PERCENT = 5.0
"""A node whose GPUs compute less than that has no part in the training: no rank waits for it."""
_WATCHED_S = 180.0
_GROWTH_S = 600.0
_UNKNOWN_LEFT_S = 6 * 3600.0
"""For how long disk and memory should last if the run's end is unknown."""
_FULL = 0.95
"""Ray takes no more objects and tasks on a node whose disk is as full (Ray 2.60, local_fs_capacity_threshold)."""
_FEW_BYTES = 50 * 10**9
"""Of a large share, 5% are room enough."""
_CLOSE_TO_KILLED = KILLED_AT - 0.05
"""Ray ends processes at `KILLED_AT`; a phase that moves offloaded states takes more than these 5% at once."""
_PARTS, _PARTS_S = 6, 1800.0
"""Memory that grows is higher in each of so many parts of at least so many seconds, at its lowest and at its highest.
Chance alone does that once in 500,000 hours (6! for each of the two). A part has a whole step, in which states move."""
_LAST_STEPS = 30
"""Of so many steps the longest counts: validations and saves among them."""
_AHEAD = 3
"""The growth of an hour says nothing of more than three."""
_GREW = 0.02
"""Of all memory, in all parts together: what grows less is noise, and leaves hours."""
_FAST_PART_S, _GREW_FAST = 60.0, 0.06
"""Memory that fills within minutes is seen in shorter parts, and has to grow by more."""
_LEAST_SHM_BYTES = 1 << 30
"""NCCL and Ray need as much of it (cloudrl's preflight): a process that finds none ends with a bus error."""
_STORE_FULL = 0.95
"""Of an object store: Ray then writes what is put into it to the disk, and reads it from there."""
_GPU_LEFT = 0.03
"""Of a GPU: published runs that fitted have left more, and fragmentation takes as much (docs/memory.md)."""
_GPU_STEPS = 20
"""Steps after which the growth of the peak means anything: a peak of a few steps grows with any longer answer."""


def find_machine_warnings(evidence: Evidence) -> tuple[RunWarning, ...]:
    """All that is wrong with them."""
    usage = evidence.usage
    return (
        *_slow_node(usage, evidence.pools),
        *_gpu_memory(evidence.steps, usage),
        *_filling(_HOST_MEMORY, evidence),
        *_shared_memory(usage),
        *_object_store(usage),
        *_filling(_DISK, evidence),
    )


def _slow_node(usage: Mapping[int, Sequence[Usage]], pools: Mapping[int, str]) -> Iterator[RunWarning]:
    """The others wait for the slowest node in every step, so it is the one that has no pauses.

    Where the rollout has nodes of its own, only nodes that train wait for each other.
    """
    shares = {rank: _gpu_percent(samples) for rank, samples in usage.items() if pools.get(rank) != ROLLOUT}
    busy = {rank: share for rank, share in shares.items() if share is not None and share >= _TAKES_PART_PERCENT}
    if len(busy) < 2:
        return
    slow = max(busy, key=lambda rank: busy[rank])
    others = median(share for rank, share in busy.items() if rank != slow)
    if busy[slow] - others > _BUSIER_PERCENT:
        yield RunWarning(
            "node",
            f"rank {slow} computes {busy[slow]:.0f}% of the time, the others {others:.0f}%: they wait for it",
            f"Compare its clocks and temperature with the others' (nvidia-smi -q -d PERFORMANCE on rank {slow}); "
            "replace the node if it is throttled",
        )


def _gpu_memory(steps: Sequence[Step], usage: Mapping[int, Sequence[Usage]]) -> Iterator[RunWarning]:
    """The peak of training (verl 0.9.1, workers/engine_workers.py) against the smallest GPU.

    Until verl 0.6 it counts the rollout's pool, too, and can be more than the GPU has: it then says nothing.
    """
    peaks = [(step.step, peak) for step in steps if (peak := allocated_gib(step.metrics))]
    totals = [
        gpu.memory_total_mib / 1024
        for samples in usage.values()
        for gpu in (samples[-1].gpus if samples else ())
        if gpu.memory_total_mib
    ]
    if not peaks or not totals or peaks[-1][1] > min(totals):
        return
    is_tuned = steps[-1].loss is not None
    others = CONTEXT.likely + (0.0 if is_tuned else ASLEEP.likely)
    peak, room = peaks[-1][1], min(totals) - others - peaks[-1][1]
    middle, before = peaks[len(peaks) // 2]
    grew = peak - before if len(peaks) >= _GPU_STEPS else 0.0
    if room >= _GPU_LEFT * min(totals) and room >= grew:
        return
    more = f", {grew:.1f} GiB more than at step {middle}" if grew >= 0.1 else ""
    tokens, rows = keys.FINE_TUNED_TOKENS_AT_ONCE if is_tuned else keys.TOKENS_AT_ONCE
    yield RunWarning(
        "gpu",
        f"training has needed {peak:.1f} of the {min(totals):.1f} GiB of a GPU{more}; "
        f"{'CUDA takes' if is_tuned else 'CUDA and the sleeping rollout take'} about {others:.1f}: "
        "a longer sequence may end the job",
        f"Resume with a smaller {tokens} or {rows}\nOr with fused kernels: {keys.FUSED_KERNELS[is_tuned]}=True",
    )


@dataclass(frozen=True)
class _Store:
    """Something of a node that fills.

    Attributes:
        kind: of the warning.
        name: as a sentence calls it.
        sizes: used and all bytes, as they count; None where no sample says them.
        limit: bytes of it that may be used, by samples and all bytes.
        wall: what happens at the limit.
        lasts_s: seconds until it is full, by samples and the seconds of a step; None if it does not fill, 0 if it is
            full.
        remedy: what to do.
    """

    kind: str
    name: str
    sizes: Callable[[Sequence[Usage]], tuple[int, int] | None]
    limit: Callable[[Sequence[Usage], int], float]
    wall: str
    lasts_s: Callable[[Sequence[Usage], float], float | None]
    remedy: str


def _filling(store: _Store, evidence: Evidence) -> Iterator[RunWarning]:
    """Of the node on which it is full first; nodes may share a disk."""
    usage, left_s = evidence.usage, evidence.left_s
    enough_s = _UNKNOWN_LEFT_S if left_s is None else left_s
    step_s = max((step.step_s or 0.0 for step in evidence.steps[-_LAST_STEPS:]), default=0.0)
    lasting = {
        rank: lasts_s for rank, samples in usage.items() if (lasts_s := store.lasts_s(samples, step_s)) is not None
    }
    short = sorted((rank for rank, lasts_s in lasting.items() if lasts_s <= enough_s), key=lambda rank: lasting[rank])
    sizes = store.sizes(usage[short[0]]) if short else None
    if sizes is None:
        return
    rank, *more = short
    used, total = sizes
    others = f"; likewise {ranks_text(more)}" if more else ""
    when = f"will be full in {duration_text(lasting[rank])}" if lasting[rank] else f"is {used / total:.0%} full"
    until = f"; the run needs {duration_text(left_s)} more" if left_s is not None else ""
    limit = store.limit(usage[rank], total)
    room = f"{size_text(max(0, round(limit) - used))} of {size_text(total)} free"
    if limit < total:
        room = room.removesuffix("free") + f"until {store.wall}, at {limit / total:.0%}"
    yield RunWarning(store.kind, f"the {store.name} of rank {rank} {when} ({room}){others}{until}", store.remedy)


def _disk_of(usage: Usage) -> tuple[int, int] | None:
    return _pair(usage.disk_used_bytes, usage.disk_total_bytes)


def _memory_of(usage: Usage) -> tuple[int, int] | None:
    return _pair(usage.memory_used_bytes, usage.memory_total_bytes)


def _disk_sizes(samples: Sequence[Usage]) -> tuple[int, int] | None:
    measured = _measured(samples, _disk_of)
    return measured[-1][1:] if measured else None


def _memory_sizes(samples: Sequence[Usage]) -> tuple[int, int] | None:
    """At its fullest in the last minutes: offloaded states come and go within a step."""
    if not (measured := _measured(samples, _memory_of)):
        return None
    now, _, total = measured[-1]
    return max(used for at, used, _ in measured if at >= now - _WATCHED_S), total


def _pair(used: int | None, total: int | None) -> tuple[int, int] | None:
    return (used, total) if used is not None and total else None


def _measured(
    samples: Sequence[Usage], sizes: Callable[[Usage], tuple[int, int] | None]
) -> list[tuple[float, int, int]]:
    """Time, used and all bytes of those samples that say them."""
    return [(sample.sampled_at, *pair) for sample in samples if (pair := sizes(sample)) is not None]


def _disk_lasts_s(samples: Sequence[Usage], _step_s: float) -> float | None:
    """By its first and last sample; None too, where it is too early to say."""
    if not (measured := _measured(samples, _disk_of)):
        return None
    (since, before, _), (now, used, total) = measured[0], measured[-1]
    limit = _disk_limit(samples, total)
    if used > _FULL * limit and limit - used < _FEW_BYTES:
        return 0.0
    if now - since < _GROWTH_S or used <= before:
        return None
    return max(0.0, limit - used) * (now - since) / (used - before)


def _disk_limit(samples: Sequence[Usage], total: int) -> float:
    """Ray takes no more work before its disk is full; only what a node says now tells whether it is Ray's."""
    return total - samples[-1].disk_kept_bytes


def _memory_lasts_s(samples: Sequence[Usage], step_s: float) -> float | None:
    """Seconds until Ray ends processes; 0 where that is close."""
    if (sizes := _memory_sizes(samples)) is None:
        return None
    used, total = sizes
    if used > _CLOSE_TO_KILLED * total:
        return 0.0
    measured = _measured(samples, _memory_of)
    whole_s, fast_s = (measured[-1][0] - measured[0][0]) / _PARTS, max(_FAST_PART_S, step_s)
    lasting = []
    if whole_s >= max(_PARTS_S / _PARTS, step_s):
        lasting.append(_grows_for_s(_parts(measured, whole_s), whole_s, KILLED_AT * total, _GREW * total))
    if step_s and fast_s <= whole_s:
        lasting.append(_grows_for_s(_parts(measured, fast_s), fast_s, KILLED_AT * total, _GREW_FAST * total))
    return min((seconds for seconds in lasting if seconds is not None), default=None)


def _parts(measured: Sequence[tuple[float, int, int]], part_s: float) -> list[list[int]]:
    """What was in use in each of the last parts, oldest first; each has so many seconds."""
    start = measured[-1][0] - _PARTS * part_s
    parts: list[list[int]] = [[] for _ in range(_PARTS)]
    for at, used, _ in measured:
        if at >= start:
            parts[min(_PARTS - 1, int((at - start) / part_s))].append(used)
    return parts


def _grows_for_s(parts: Sequence[Sequence[int]], part_s: float, limit: float, noise: float) -> float | None:
    """Seconds until what grows without a pause reaches a limit; None if it does not.

    Offloaded states come and go within a step, so it grows only if it is higher in each part, at its lowest and at its
    highest. Memory also rises for a while after the start: growth that slows down is taken to slow down further.

    Args:
        parts: what was in use in each part of the time; unknown where one is empty.
        part_s: seconds of each.
        limit: where it ends.
        noise: growth of all parts together that means nothing.
    """
    if not all(parts):
        return None
    highs, lows = [max(part) for part in parts], [min(part) for part in parts]
    grows = all(later > earlier for each in (highs, lows) for earlier, later in itertools.pairwise(each))
    if not grows or highs[-1] - highs[0] < noise:
        return None
    before, lately = highs[-3] - highs[-5], highs[-1] - highs[-3]
    slows = lately / before
    if slows < 1 and lately * slows / (1 - slows) < limit - highs[-1]:
        return None
    lasts_s = (limit - highs[-1]) * 2 * part_s / lately
    return lasts_s if lasts_s <= _AHEAD * _PARTS * part_s else None


_DISK = _Store(
    "disk", "disk", _disk_sizes, _disk_limit, "Ray takes no more work", _disk_lasts_s,
    f"Keep fewer checkpoints ({keys.CHECKPOINTS_KEPT}=2), or remove some: cloudrl checkpoints prune --keep-last 2",
)  # fmt: skip
_HOST_MEMORY = _Store(
    "memory", "memory", _memory_sizes, lambda _, total: KILLED_AT * total, "Ray ends processes", _memory_lasts_s,
    f"Resume with fewer processes ({keys.AGENT_WORKERS}, {keys.LOADERS}) or on nodes with more memory "
    "(--set memory=...). What grows by the step is often a reward function or a tool that keeps what it has seen",
)  # fmt: skip


def _shared_memory(usage: Mapping[int, Sequence[Usage]]) -> Iterator[RunWarning]:
    sizes = {rank: _shm_sizes(samples[-1]) for rank, samples in usage.items() if samples}
    full = {rank: pair for rank, pair in sizes.items() if pair is not None and _lacks_shm(*pair)}
    if full:
        used, total = next(iter(full.values()))
        yield RunWarning(
            "shm",
            f"{MEMORY} of {ranks_text(list(full))} has {size_text(max(0, total - used))} of {size_text(total)} left: "
            "a process that finds no room there ends with a bus error",
            f"Start the cluster with more (--set shm_size=...)\nOr keep no weights there: {keys.USES_SHM}=False",
        )


def _shm_sizes(usage: Usage) -> tuple[int, int] | None:
    return _pair(usage.shm_used_bytes, usage.shm_total_bytes)


def _lacks_shm(used: int, total: int) -> bool:
    """A small one says nothing: whoever started the cluster wants it so, or uses none."""
    return total > _LEAST_SHM_BYTES and total - used < min(_LEAST_SHM_BYTES, (1 - _FULL) * total)


def _object_store(usage: Mapping[int, Sequence[Usage]]) -> Iterator[RunWarning]:
    """For minutes: what is put into it and read again at once does no harm."""
    full = {rank: last for rank, samples in usage.items() if (last := _full_store(samples)) is not None}
    if full:
        used, total = next(iter(full.values()))
        yield RunWarning(
            "store",
            f"Ray's object store on {ranks_text(list(full))} is {used / total:.0%} full ({size_text(total)}): "
            "Ray writes rows to the disk and reads them from there",
            f"Take nodes with more memory (--set memory=...), of which the store is a part, or fewer {keys.ANSWERS}",
        )


def _full_store(samples: Sequence[Usage]) -> tuple[int, int] | None:
    """Used and all bytes, if it was full in every sample of the last minutes."""
    if not samples:
        return None
    since = samples[-1].sampled_at - _WATCHED_S
    recent = itertools.takewhile(lambda sample: sample.sampled_at >= since, reversed(samples))
    pairs = [pair for sample in recent if (pair := _pair(sample.store_used_bytes, sample.store_total_bytes))]
    is_long = bool(pairs) and samples[0].sampled_at <= since
    is_full = is_long and all(used > _STORE_FULL * total for used, total in pairs)
    return pairs[0] if is_full else None


def _gpu_percent(samples: Sequence[Usage]) -> float | None:
    """The mean over all GPUs and the last minutes; None without GPUs, or of too few minutes."""
    recent = [sample for sample in samples if sample.sampled_at >= samples[-1].sampled_at - 2 * _WATCHED_S]
    if not recent or recent[-1].sampled_at - recent[0].sampled_at < _WATCHED_S:
        return None
    shares = [gpu.utilization_percent for usage in recent for gpu in usage.gpus if gpu.utilization_percent is not None]
    return fmean(shares) if shares else None
