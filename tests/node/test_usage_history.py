"""How busy all nodes were: what is held in memory, answered, and written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_clock import Clock

from cloudrl.node.usage_history import DAY, HOUR, UsageHistory
from cloudrl.protocol import answers
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage


class Cluster:
    """Nodes that report every five seconds to rank 0."""

    def __init__(self, folder: Path, nodes: int = 2, gpus: int = 1) -> None:
        self.file, self.clock = folder / "usage.jsonl", Clock()
        self.clock.now = 1000.0
        self.gpus, self.silent = gpus, set[int]()
        self.reports = [NodeReport(rank, f"10.0.0.{rank}") for rank in range(nodes)]
        self.history = UsageHistory(lambda: self.reports, self.file, lambda: (1.5, 12.0), now=self.clock)

    def run(self, for_s: float, percent: float = 50.0) -> None:
        ends_at = self.clock() + for_s
        gpus = tuple(GpuUsage(index, "H100", percent, 100, 200, 300.0) for index in range(self.gpus))
        while self.clock() < ends_at:
            self.clock.sleep(5.0)
            for place, report in enumerate(self.reports):
                if report.rank not in self.silent:
                    self.reports[place] = replace(report, usage=Usage(self.clock(), percent, gpus=gpus))
            self.history.look()

    def answer(self, span: str) -> dict[int, tuple[Usage, ...]]:
        return answers.usage(json.loads(json.dumps(self.history.answer(span))))

    @property
    def lines(self) -> list[dict]:
        return list(map(json.loads, self.file.read_text().splitlines()))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_an_hour_by_seconds(cluster: Cluster) -> None:
    cluster.run(60, 10.0)
    cluster.run(7200, 90.0)
    hour = cluster.answer(HOUR)[1]
    assert (len(hour), hour[0].sampled_at, hour[-1].sampled_at) == (720, cluster.clock() - 3595, cluster.clock())
    assert {each.cpu_percent for each in hour} == {90.0}
    assert hour[0].gpus == (GpuUsage(0, "", 90.0, 100, 200, 300.0),)


def test_a_day_by_the_minute(cluster: Cluster) -> None:
    cluster.run(86_400 + 3600)
    day = cluster.answer(DAY)[0]
    assert len(day) == 1440
    assert day[-1].sampled_at - day[0].sampled_at == pytest.approx(86_400, abs=120)


def test_a_node_that_is_silent_adds_nothing(cluster: Cluster) -> None:
    cluster.run(20)
    cluster.silent = {1}
    cluster.run(20)
    hour = cluster.answer(HOUR)
    assert (len(hour[0]), len(hour[1])) == (8, 4)


def test_the_file_begins_with_short_pieces(cluster: Cluster) -> None:
    cluster.run(60)
    assert len(cluster.lines) > 4, "a run of a minute has a curve, too"
    cluster.run(6000)
    assert len(cluster.lines) < 160
    last = cluster.lines[-1]
    assert (last["cost"], last["per_hour"], set(last["nodes"])) == (1.5, 12.0, {"0", "1"})
    assert last["at"] - cluster.lines[-2]["at"] == 60
    assert last["nodes"]["0"][1] == 50.0


def test_an_answer_is_bounded(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nodes=64, gpus=8)
    cluster.run(3600, 37.5)
    text = json.dumps(cluster.history.answer(HOUR))
    assert len(text) < 800_000
    hour = answers.usage(json.loads(text))
    assert len(hour) == 64
    assert 30 <= len(hour[63]) <= 50
    assert {gpu.utilization_percent for each in hour[63] for gpu in each.gpus} == {37.5}


def test_a_full_disk_ends_nothing(cluster: Cluster) -> None:
    cluster.file.mkdir()
    cluster.run(120)
    assert len(cluster.answer(HOUR)[0]) == 24
