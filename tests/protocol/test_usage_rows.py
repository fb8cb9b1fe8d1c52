"""Samples as rows of numbers, and back."""

from dataclasses import replace

import pytest

from cloudrl.protocol.report import GpuUsage, Usage
from cloudrl.protocol.usage_rows import from_row, mean_row, to_row

OLDER = Usage(1000.5, 12.5, 600, 1000, 5_000_000_000_000, 7_000_000_000_000, 1e9, None)
HOST = replace(OLDER, shm_used_bytes=5, shm_total_bytes=64, store_used_bytes=None, store_total_bytes=30)
GPUS = (GpuUsage(0, "", 97.0, 61_234, 81_559, 612.0), GpuUsage(1001, "", None, 5, 9_856, None))


@pytest.mark.parametrize("gpus", [(), GPUS[:1], GPUS])
def test_a_sample_comes_back(gpus: tuple[GpuUsage, ...]) -> None:
    usage = Usage(**{**vars(HOST), "gpus": gpus})
    assert from_row(to_row(usage)) == usage


@pytest.mark.parametrize("gpus", [(), GPUS[:1], GPUS])
def test_a_row_from_before_shared_memory_was_counted(gpus: tuple[GpuUsage, ...]) -> None:
    usage = replace(OLDER, gpus=gpus)
    row = to_row(usage)
    assert from_row([*row[:8], *row[12:]]) == usage


def test_names_of_gpus_are_no_numbers() -> None:
    row = to_row(Usage(1.0, gpus=(GpuUsage(3, "NVIDIA H100", 50.0, temperature_c=60.0),)))
    assert from_row(row).gpus == (GpuUsage(3, "", 50.0),)


@pytest.mark.parametrize("row", [[], [1.0], [None] * 8, ["x", *[None] * 7], [1.0] * 10, [1.0, [], *[None] * 6]])
def test_what_is_no_row(row: list) -> None:
    with pytest.raises(ValueError, match="not a row"):
        from_row(row)


def test_the_mean_of_rows_knows_what_any_of_them_says() -> None:
    first = to_row(Usage(1.0, cpu_percent=10.0, memory_used_bytes=1000, disk_used_bytes=7))
    second = to_row(Usage(6.0, cpu_percent=20.0, memory_used_bytes=2001, gpus=(GpuUsage(0, "", 33.3),)))
    mean = from_row(mean_row([first, second]))
    assert (mean.sampled_at, mean.cpu_percent, mean.disk_used_bytes) == (6.0, 15.0, 7)
    assert mean.memory_used_bytes in (1500, 1501)
    assert mean.gpus == (GpuUsage(0, "", 33.3),)
