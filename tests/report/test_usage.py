"""How busy nodes were, as charts."""

from cloudrl.protocol.report import GpuUsage, Usage
from cloudrl.report.usage import NodeUsage, measures, usage_json, usage_series


def sample(at: float, percent: float | None) -> Usage:
    gpus = tuple(GpuUsage(each, "", percent, 20, 80, 300.0) for each in range(2))
    return Usage(at, 12.0, 25, 100, 50, 200, 5e6, None, gpus)


def node(rank: int, *percents: float | None) -> NodeUsage:
    return NodeUsage(rank, tuple(sample(1000.0 + 60 * place, percent) for place, percent in enumerate(percents)))


def test_what_a_sample_says() -> None:
    assert measures(sample(1.0, 80.0)) == {
        "gpu": 80.0, "gpu_memory": 25.0, "gpu_power": 600.0, "cpu": 12.0, "memory": 25.0, "disk": 25.0, "received": 5.0,
    }  # fmt: skip
    assert measures(Usage(1.0)) == {}


def test_a_curve_for_each_node_and_no_chart_without_one() -> None:
    charts = {each["title"]: each["curves"] for each in usage_series([node(0, 10.0, None, 30.0), node(3, 50.0)])}
    assert charts["GPU busy (%)"] == [
        {"label": "rank 0", "x": [1000, 1120], "y": [10.0, 30.0]}, {"label": "rank 3", "x": [1000], "y": [50.0]},
    ]  # fmt: skip
    assert "Sent (MB/s)" not in charts
    assert usage_series([]) == []


def test_of_many_nodes_the_bounds_and_the_mean() -> None:
    nodes = [node(rank, float(rank), float(rank)) for rank in range(64)]
    curves = usage_series(nodes)[0]["curves"]
    assert [each["label"] for each in curves] == ["mean of all", "lowest: rank 0", "highest: rank 63"]
    assert curves[0]["y"] == [31.5, 31.5]


def test_a_long_one_is_thinned_and_whole_for_programs() -> None:
    long = node(0, *(float(each % 100) for each in range(1440)))
    assert len(usage_series([long])[0]["curves"][0]["x"]) <= 400
    [found] = usage_json([long])
    assert (found["rank"], len(found["samples"])) == (0, 1440)
    assert found["samples"][1] == {"at": 1060.0, **measures(long.samples[1])}
