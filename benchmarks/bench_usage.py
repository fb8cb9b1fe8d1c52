"""What it costs to know how busy nodes are: CPU time of the agents and of Ray's dashboard, which is asked on rank 0.

    python benchmarks/bench_usage.py

Ray's answer is that of a real cluster of two nodes on this machine, and for the agent also one of 64 nodes with eight
GPUs each, made of it.
"""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import cloudrl
from cloudrl.node.gpus import GpuWatch
from cloudrl.node.ray import Dashboard
from cloudrl.node.usage import EVERY_S, HostSampler
from cloudrl.node.usage_history import HOUR, UsageHistory
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage
from cloudrl.providers.local import processes

ROUNDS, NODES, GPUS = 100, 64, 8
GPU = {
    "index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "utilizationGpu": 0, "memoryUsed": 61_234, "memoryTotal": 81_559, "powerMw": 612_000, "temperatureC": 63,
    "processesPids": {"4242": {"pid": 4242, "gpuMemoryUsage": 61_000, "gpuUtilization": 97}},
}  # fmt: skip


class Answer(Dashboard):
    """A dashboard whose answer is in memory."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def _get(self, path: str) -> Any:
        return json.loads(self.answer) if path.startswith("/nodes") else []


def measured(look: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """CPU seconds of one look."""
    before = clock()
    for _ in range(ROUNDS):
        look()
    return (clock() - before) / ROUNDS


def report(what: str, seconds: float) -> None:
    print(f"{what}: {1000 * seconds:.2f} ms, {seconds / EVERY_S:.3%} of one CPU with a look every {EVERY_S:g} s")


def many(node: dict[str, Any]) -> str:
    """The answer of a large cluster."""
    gpus = [{**GPU, "index": index} for index in range(GPUS)]
    nodes = [{**node, "ip": f"10.0.0.{number}", "gpus": gpus} for number in range(NODES)]
    return json.dumps({"data": {"summary": nodes}})


def remember(nodes: int) -> None:
    """What rank 0 spends on the memory of the last hour and day, over an hour of samples."""
    clock = iter(range(0, 1_000_000, int(EVERY_S)))
    gpus = tuple(GpuUsage(index, "", 50.0, 61_234, 81_559, 612.0) for index in range(GPUS))

    def reports() -> list[NodeReport]:
        at = float(next(clock))
        usage = Usage(at, 20.0, 2 << 38, 1 << 40, 2 << 40, 3 << 40, 5e6, 1e9, gpus)
        return [NodeReport(rank, "", usage=usage) for rank in range(nodes)]

    with tempfile.TemporaryDirectory() as folder:
        now = iter(range(0, 1_000_000, int(EVERY_S)))
        history = UsageHistory(reports, Path(folder, "usage.jsonl"), lambda: (None, None), now=lambda: float(next(now)))
        tracemalloc.start()
        for _ in range(720):
            history.look()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        size = Path(folder, "usage.jsonl").stat().st_size
        report(
            f"rank 0, memory of {nodes} nodes ({held / 1e6:.1f} MB, {size / 1e3:.0f} kB an hour)",
            measured(history.look),
        )
        answered = measured(lambda: history.answer(HOUR))
        print(f"an answer with the hour of {nodes} nodes: {1000 * answered:.0f} ms")


def main() -> None:
    report("a node's own counters", measured(HostSampler(Path(tempfile.gettempdir())).sample))
    with cloudrl.Cluster(name="bench-usage", nodes=2).up(on="local") as ray:
        connection = ray.connection
        dashboard = Dashboard(int(connection.ray_url.rpartition(":")[2]), str(connection.ray_token))
        servers = [psutil.Process(pid) for pid in processes.of_cluster(str(connection.cluster_id))]
        servers = [server for server in servers if "dashboard/dashboard.py" in " ".join(server.cmdline())]

        def used() -> float:
            return sum(sum(server.cpu_times()[:2]) for server in servers)

        def spaced() -> None:
            time.sleep(0.2)

        idle = measured(spaced, used)
        asked = measured(lambda: (dashboard.summary(), time.sleep(0.2)), used)
        [node, *_] = dashboard.summary()
    report(f"Ray's dashboard ({len(servers)} process), two nodes", asked - idle)
    answer = Answer(many(node))
    report(
        f"rank 0, {NODES} nodes with {GPUS} GPUs ({len(answer.answer):,} bytes)", measured(GpuWatch(answer, print).look)
    )
    remember(2)
    remember(NODES)


if __name__ == "__main__":
    main()
