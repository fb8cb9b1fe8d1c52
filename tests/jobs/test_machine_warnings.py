"""Memory that fills while a training runs: told before the wall, and not of healthy runs."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import ClassVar

import pytest
from healthy_runs import PROFILES, host_memory

from cloudrl.jobs.evidence import Evidence, RunWarning
from cloudrl.jobs.machine_warnings import find_machine_warnings
from cloudrl.protocol.report import GpuUsage, Usage
from cloudrl.verl.metrics import Step

GIB = 1 << 30
H100 = GpuUsage(0, "NVIDIA H100 80GB HBM3", memory_total_mib=81_559)


def warnings(
    usage: dict[int, Sequence[Usage]], steps: Sequence[Step] = (), left_s: float | None = None
) -> list[RunWarning]:
    return list(find_machine_warnings(Evidence(steps, usage, left_s=left_s)))


def host(*gib: float, total_gib: float = 500, every_s: float = 60.0) -> list[Usage]:
    """A sample of the memory of a node in each minute."""
    return [
        Usage(number * every_s, memory_used_bytes=round(used * GIB), memory_total_bytes=round(total_gib * GIB))
        for number, used in enumerate(gib)
    ]


def trained_for(step_s: float) -> list[Step]:
    return [Step(number, {"timing_s/step": step_s}) for number in range(1, 20)]


def growing(start: float, by: float, *, swing: float = 40.0, minutes: int = 61) -> list[Usage]:
    """By so many GiB a minute; every other minute, offloaded states are on the GPU."""
    return host(*(start + by * minute - swing * (minute % 2) for minute in range(minutes)))


class TestHostMemory:
    def test_it_grows_by_the_step(self) -> None:
        [warning] = warnings({0: growing(200, 0.1), 1: growing(300, 1)}, left_s=4 * 3600)
        assert warning.kind == "memory"
        assert warning.seen == (
            "the memory of rank 1 will be full in 1 h 44 min (123 GB of 537 GB until Ray ends processes, at 95%); "
            "the run needs 4 h 00 min more"
        )
        assert "reward function" in warning.remedy

    def test_it_fills_within_minutes(self) -> None:
        """As with a reward function that keeps some MB of each answer."""
        leak = host(*(300 + 0.8 * sample for sample in range(73)), every_s=5)
        [warning] = warnings({0: leak}, trained_for(20))
        assert warning.seen.startswith("the memory of rank 0 will be full in 11 min 44 s (126 GB of 537 GB until Ray")
        assert warnings({0: leak}) == [], "before the first step, models are loaded"
        assert warnings({0: leak}, trained_for(90)) == [], "not yet six steps"

    def test_it_is_nearly_full(self) -> None:
        [warning] = warnings({0: host(455)})
        assert warning.seen == ("the memory of rank 0 is 91% full (21.5 GB of 537 GB until Ray ends processes, at 95%)")

    def test_what_was_seen_at_its_highest_counts(self) -> None:
        """The last sample is one of a phase in which offloaded states are on the GPU."""
        [warning] = warnings({0: host(455, 300, every_s=30)})
        assert warning.seen == "the memory of rank 0 is 91% full (21.5 GB of 537 GB until Ray ends processes, at 95%)"

    @pytest.mark.parametrize(
        ("samples", "left_s"),
        [
            (growing(300, 1), 3600),
            (growing(300, 1, minutes=20), None),
            (growing(300, 0), None),
            (growing(300, -1), None),
            (growing(300, 0.1), None),
            (host(440), None),
            ([Usage(0.0), Usage(7200.0)], None),
            ([Usage(0.0), *host(300)], None),
            ([], None),
        ],
        ids=[
            "lasts until the end",
            "too early",
            "swings",
            "falls",
            "grows less than 2%",
            "88%",
            "unknown",
            "one",
            "no",
        ],
    )
    def test_it_lasts(self, samples: list[Usage], left_s: float | None) -> None:
        assert warnings({0: samples}, left_s=left_s) == []

    def test_a_rise_that_ends_is_no_growth(self) -> None:
        """It would be full in an hour at the pace of its first half."""
        rise = host(*(300 + 150 * (1 - 0.95**minute) for minute in range(61)))
        assert warnings({0: rise}, left_s=3600) == []

    def test_samples_of_a_deque(self) -> None:
        """As a look has them."""
        assert warnings({0: deque(growing(300, 1), maxlen=720)}, left_s=4 * 3600) == warnings(
            {0: growing(300, 1)}, left_s=4 * 3600
        )

    def test_healthy_runs(self) -> None:
        """What a watcher of each kind of run would have seen in 512 hours, looking every ten minutes.

        One of these 64 runs rises for so long, from so high, that a person would warn, too; of 480 others none does.
        """
        false_alarms = []
        for name, profile in PROFILES.items():
            for seed in range(8):
                samples = host_memory(profile, random.Random(f"{name}-{seed}"), 8)
                steps = [Step(1, {"timing_s/step": sum(profile.step.values()), "timing_s/testing": profile.test_s})]
                window: deque[Usage] = deque(maxlen=120)
                while more := list(islice(samples, 20)):
                    window.extend(more)
                    false_alarms += [(name, seed, warning.seen) for warning in warnings({0: window}, steps)]
        assert len(false_alarms) <= 1, false_alarms


def disk(used: float, kept: float = 0.0) -> list[Usage]:
    """Of 1,000 GB."""
    gb = 10**9
    return [Usage(0.0, disk_used_bytes=round(used * gb), disk_total_bytes=1000 * gb, disk_kept_bytes=round(kept * gb))]


class TestDisk:
    def test_ray_stops_before_its_disk_is_full(self) -> None:
        [warning] = warnings({0: disk(920, kept=50)})
        assert warning.seen == "the disk of rank 0 is 92% full (30.0 GB of 1.0 TB until Ray takes no more work, at 95%)"
        assert warnings({0: disk(890, kept=50)}) == []

    def test_a_disk_without_ray(self) -> None:
        [warning] = warnings({0: disk(960)})
        assert warning.seen == "the disk of rank 0 is 96% full (40.0 GB of 1.0 TB free)"
        assert warnings({0: disk(920)}) == []


def trained(*gib: float, key: str = "actor/perf/max_memory_allocated_gb", **metrics: float) -> list[Step]:
    return [Step(number, {key: used, **metrics}) for number, used in enumerate(gib, 1)]


class TestGpuMemory:
    USAGE: ClassVar = {0: [Usage(0.0, gpus=(H100, replace(H100, index=1)))]}

    def test_little_is_left(self) -> None:
        [warning] = warnings(self.USAGE, trained(74.9))
        assert warning.kind == "gpu"
        assert warning.seen == (
            "training has needed 74.9 of the 79.6 GiB of a GPU; CUDA and the sleeping rollout take about 2.6: "
            "a longer sequence may end the job"
        )
        assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in warning.remedy

    def test_it_grows_with_the_answers(self) -> None:
        [warning] = warnings(self.USAGE, trained(*(44 + step for step in range(26))))
        assert "needed 69.0 of the 79.6 GiB of a GPU, 12.0 GiB more than at step 14" in warning.seen

    def test_fine_tuning_has_keys_of_its_own_and_no_rollout(self) -> None:
        key = "perf/max_memory_allocated_gb"
        [warning] = warnings(self.USAGE, trained(77, key=key, **{"train/loss": 0.5}))
        assert "CUDA takes about 1.1" in warning.seen
        assert "data.max_token_len_per_gpu" in warning.remedy
        assert " model.use_fused_kernels=True" in warning.remedy

    @pytest.mark.parametrize(
        ("steps", "usage"),
        [
            (trained(70), USAGE),
            (trained(*(40 + step for step in range(12))), USAGE),
            (trained(*[20, *[60] * 25]), USAGE),
            (trained(204.9), USAGE),
            (trained(79), {0: [Usage(0.0)]}),
            (trained(79), {0: []}),
            ([Step(1, {})], USAGE),
            ([], USAGE),
        ],
        ids=["room", "too early", "the first step", "verl 0.6", "GPUs unknown", "no samples", "not said", "no steps"],
    )
    def test_it_has_room(self, steps: list[Step], usage: dict[int, list[Usage]]) -> None:
        assert warnings(usage, steps) == []


class TestSharedMemory:
    def test_it_is_nearly_full(self) -> None:
        full = [Usage(0.0, shm_used_bytes=64 * GIB - 10, shm_total_bytes=64 * GIB)]
        [warning] = warnings({0: [Usage(0.0, shm_used_bytes=0, shm_total_bytes=64 * GIB)], 3: full, 4: full})
        assert warning.kind == "shm"
        assert warning.seen.startswith("/dev/shm of ranks 3-4 has 10 B of 68.7 GB left")
        assert "--set shm_size=" in warning.remedy

    @pytest.mark.parametrize(
        ("used", "total"), [(60 * GIB, 64 * GIB), (1000, 1001), (None, 64 * GIB), (5, None), (0, 0)]
    )
    def test_it_has_room(self, used: int | None, total: int | None) -> None:
        assert warnings({0: [Usage(0.0, shm_used_bytes=used, shm_total_bytes=total)]}) == []


def store(*shares: float) -> list[Usage]:
    """A sample of Ray's object store in each minute."""
    return [
        Usage(60.0 * number, store_used_bytes=round(share * 100 * GIB), store_total_bytes=100 * GIB)
        for number, share in enumerate(shares)
    ]


class TestObjectStore:
    def test_it_stays_full(self) -> None:
        [warning] = warnings({2: store(0.5, 0.99, 0.97, 0.98, 0.99)})
        assert warning.kind == "store"
        assert warning.seen.startswith("Ray's object store on rank 2 is 99% full (107 GB)")

    @pytest.mark.parametrize(
        "samples",
        [store(0.99, 0.99), store(0.99, 0.99, 0.2, 0.99, 0.99), store(0.5, 0.6), [Usage(0.0), Usage(600.0)], []],
        ids=["too early", "read again at once", "room", "unknown", "no samples"],
    )
    def test_it_has_room(self, samples: list[Usage]) -> None:
        assert warnings({0: samples}) == []
