"""GPUs of all nodes, as Ray's dashboard shows them."""

from typing import Any

import pytest
from fake_clock import Clock

from cloudrl.node.gpus import GpuWatch, gpus_of, stores_of
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage

# Ray 2.60, dashboard/modules/reporter/gpu_providers.py: GpuUtilizationInfo, in camel case
H100 = {
    "index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1", "utilizationGpu": 97, "memoryUsed": 61_234,
    "memoryTotal": 81_559, "processesPids": {}, "powerMw": 612_000, "temperatureC": 63,
}  # fmt: skip


def node(ip: str, *utilization: int, state: str = "ALIVE") -> dict[str, Any]:
    gpus = [{**H100, "index": index, "utilizationGpu": percent} for index, percent in enumerate(utilization)]
    return {"ip": ip, "raylet": {"state": state}, "gpus": gpus}


class FakeDashboard:
    """What Ray says, and how often it was asked for its jobs."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] | None = []
        self.asked_for_jobs = 0

    def summary(self) -> list[dict[str, Any]]:
        return self.nodes

    def jobs(self) -> list[dict[str, Any]] | None:
        self.asked_for_jobs += 1
        return self.running


class Watched:
    """A cluster with a GPU watch, looked at every five seconds."""

    def __init__(self) -> None:
        self.ray, self.clock, self.told = FakeDashboard(), Clock(), list[tuple[str, ...]]()
        self.clock.now = 1000.0
        self.watch = GpuWatch(self.ray, self.told.append, now=self.clock)

    def see(self, *nodes: dict[str, Any], for_s: float = 5.0) -> None:
        self.ray.nodes = list(nodes)
        ends_at = self.clock() + for_s
        while self.clock() < ends_at:
            self.watch.look()
            self.clock.sleep(5.0)

    def usage(self, ip: str = "10.0.0.1") -> Usage | None:
        return self.watch.added_to(NodeReport(0, ip)).usage

    def idle_since(self, ip: str = "10.0.0.1") -> list[float | None]:
        return [gpu.idle_since for gpu in self.usage(ip).gpus]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_ray_says_of_a_gpu() -> None:
    [(ip, gpus)] = gpus_of([{"ip": "10.0.0.1", "raylet": {"state": "ALIVE"}, "gpus": [H100]}])
    assert ip == "10.0.0.1"
    assert gpus == (GpuUsage(0, "NVIDIA H100 80GB HBM3", 97.0, 61_234, 81_559, 612.0, 63.0),)


def test_what_the_driver_does_not_say() -> None:
    mig = {
        "index": 1001,
        "name": "MIG 1g.10gb",
        "utilizationGpu": -1,
        "memoryUsed": 5,
        "memoryTotal": 9_856,
        "powerMw": None,
    }
    [(_, gpus)] = gpus_of([{"ip": "10.0.0.1", "raylet": {"state": "ALIVE"}, "gpus": [mig]}])
    assert gpus == (GpuUsage(1001, "MIG 1g.10gb", None, 5, 9_856),)


def test_nodes_that_died_or_have_none_are_left_out() -> None:
    nodes = [node("10.0.0.1", 5, state="DEAD"), node("10.0.0.1", 7), node("10.0.0.2"), {"raylet": {"state": "ALIVE"}}]
    assert [(ip, [gpu.utilization_percent for gpu in gpus]) for ip, gpus in gpus_of(nodes)] == [("10.0.0.1", [7.0])]


def test_they_are_added_to_what_the_node_says_of_itself(watched: Watched) -> None:
    watched.see(node("10.0.0.1", 50, 60))
    report = watched.watch.added_to(NodeReport(0, "10.0.0.1", usage=Usage(5.0, cpu_percent=12.0)))
    assert (report.usage.sampled_at, report.usage.cpu_percent, len(report.usage.gpus)) == (1000.0, 12.0, 2)
    assert watched.usage("10.0.0.2") is None


def test_since_when_a_gpu_has_computed_nothing(watched: Watched) -> None:
    watched.see(node("10.0.0.1", 90, 0))
    watched.see(node("10.0.0.1", 0, 0), for_s=20)
    assert watched.idle_since() == [1005.0, 1000.0]
    watched.see(node("10.0.0.1", 1, 0))
    assert watched.idle_since() == [None, 1000.0]
    watched.see(node("10.0.0.1", -1, 0))
    assert watched.idle_since() == [None, 1000.0]
    watched.see(node("10.0.0.1", 0, 0))
    assert watched.idle_since() == [1035.0, 1000.0]


def test_ray_is_asked_for_jobs_only_when_one_has_been_idle(watched: Watched) -> None:
    watched.ray.running = [
        {"status": "RUNNING", "start_time": 900_000}, {"status": "RUNNING", "start_time": 800_000},
        {"status": "FAILED", "start_time": 1}, {"status": "RUNNING", "start_time": None},
    ]  # fmt: skip
    watched.see(node("10.0.0.1", 90), for_s=600)
    watched.see(node("10.0.0.1", 0), for_s=60)
    assert (watched.ray.asked_for_jobs, watched.watch.working_since) == (0, None)

    watched.see(node("10.0.0.1", 0))
    assert (watched.ray.asked_for_jobs, watched.watch.working_since) == (1, 800.0)

    watched.see(node("10.0.0.1", 90))
    assert watched.watch.working_since is None


def test_a_job_runs_on_while_ray_does_not_say_which(watched: Watched) -> None:
    watched.ray.running = [{"status": "RUNNING", "start_time": 800_000}]
    watched.see(node("10.0.0.1", 0), for_s=120)
    watched.ray.running = None
    watched.see(node("10.0.0.1", 0))
    assert watched.watch.working_since == 800.0

    watched.ray.running = []
    watched.see(node("10.0.0.1", 0))
    assert watched.watch.working_since is None


def test_while_ray_is_silent_its_last_word_stays(watched: Watched) -> None:
    watched.see(node("10.0.0.1", 90))
    watched.see(for_s=60)
    assert (watched.usage().sampled_at, watched.usage().gpus[0].utilization_percent) == (1000.0, 90.0)


def test_whose_gpus_ray_knows(watched: Watched) -> None:
    watched.see(node("10.0.0.1", 90), node("10.0.0.2", 80), for_s=20)
    watched.see(for_s=30)
    assert watched.told == [("10.0.0.1", "10.0.0.2")], "once, and a moment of silence is nothing"
    watched.see(for_s=30)
    assert watched.told[1:] == [()]


def test_what_a_nodes_own_tool_says_comes_first(watched: Watched) -> None:
    watched.see(node("10.0.0.1", 50))
    own = Usage(1002.0, gpus=(GpuUsage(0, "", 70.0),))
    assert watched.watch.added_to(NodeReport(0, "10.0.0.1", usage=own)).usage == own


def test_how_full_the_object_stores_are(watched: Watched) -> None:
    """Ray 2.60, dashboard/modules/node/datacenter.py: get_node_info, in camel case."""
    raylet = {"state": "ALIVE", "objectStoreUsedMemory": 30, "objectStoreAvailableMemory": 70}
    full = {**raylet, "objectStoreUsedMemory": 95, "objectStoreAvailableMemory": 5}
    rows = (("a", raylet), ("a", full), ("b", {**raylet, "state": "DEAD"}), ("c", {"state": "ALIVE"}))
    assert stores_of({"ip": ip, "raylet": each} for ip, each in rows) == {"a": (95, 100)}

    overfull = {**raylet, "objectStoreUsedMemory": 130, "objectStoreAvailableMemory": -30}
    assert stores_of([{"ip": "a", "raylet": overfull}]) == {"a": (130, 100)}, "objects in files for lack of room"

    watched.see({**node("10.0.0.1", 50), "raylet": raylet})
    report = watched.watch.added_to(NodeReport(0, "10.0.0.1", usage=Usage(1000.0)))
    assert report.usage is not None
    assert (report.usage.store_used_bytes, report.usage.store_total_bytes) == (30, 100)
    assert len(report.usage.gpus) == 1
