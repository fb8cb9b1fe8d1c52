"""What the runner measures: processor time and memory of the container, memory and use of its GPUs.

The true one reads the container's cgroup, which a stand-in has none of: here its processes are added up.
Source: dstack, runner/internal/runner/metrics/metrics.go.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from .gpus import CONTROL

_QUERY = ("nvidia-smi", "--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits")
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def present() -> dict[str, Any]:
    """What GET /api/metrics answers."""
    processes = [fields for entry in Path("/proc").iterdir() if entry.name.isdigit() and (fields := _stat(entry))]
    memory = sum(int(fields[21]) for fields in processes) * _PAGE
    ticks = sum(int(field) for fields in processes for field in fields[11:15])
    return {
        "timestamp_micro": time.time_ns() // 1000,
        "cpu_usage_micro": ticks * 1_000_000 // _TICKS,
        "memory_usage_bytes": memory,
        "memory_working_set_bytes": memory,
        "gpus": _gpus() if CONTROL.exists() else [],
    }


def _gpus() -> list[dict[str, int]]:
    output = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=False).stdout
    rows = [[int(word) for word in line.split(", ")] for line in output.splitlines()]
    return [{"gpu_memory_usage_bytes": memory << 20, "gpu_util_percent": percent} for memory, percent in rows]


def _stat(entry: Path) -> list[str]:
    """After the command's name; none of a process that has ended."""
    try:
        return (entry / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []
