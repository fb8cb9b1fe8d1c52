"""One list of columns for a terminal and for a pipe."""

import io

import pytest
from rich.console import Console

from cloudrl.cli import cluster
from cloudrl.cli._nodes import HEADS, node_table
from cloudrl.cli._terminal import _Nodes
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage
from cloudrl.providers.model import Status

NODES = (
    NodeReport(0, "10.0.0.1", phase=Phase.FETCH, detail="model owner/name", seconds={"setup": 1.5, "files": 9.0}),
    NodeReport(1, "10.0.0.2", phase=Phase.FAILED, failure=Failure(FailureKind.SETUP, 1, "`false` exited with 1")),
    NodeReport(2, "10.0.0.3", phase=Phase.RAY, seen_s_ago=12.0),
    NodeReport(3, "10.0.0.4", phase=Phase.READY, services={"judge": "ready", "search": "started again, 1 of 5"}),
)
ROWS = [
    ["0", "10.0.0.1", "fetch", "1.5 s", "model owner/name"],
    ["1", "10.0.0.2", "failed", "0.0 s", "`false` exited with 1"],
    ["2", "10.0.0.3", "ray", "0.0 s", "no heartbeat for 12 s"],
    ["3", "10.0.0.4", "ready", "0.0 s", "service search: started again, 1 of 5"],
]


def test_both_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status("lab", "local", Phase.FETCH, nodes_wanted=4, nodes=NODES)
    screen = io.StringIO()
    Console(file=screen, width=120).print(node_table(status))
    cluster._show(status)
    for text in (screen.getvalue().partition("\n")[2], capsys.readouterr().out):
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert lines[:5] == [" ".join(row) for row in [list(HEADS), *ROWS]]


def test_a_cluster_that_waits_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status("lab", "slurm", Phase.PENDING, nodes_wanted=2, reason="Priority: jobs with a higher one come first")
    screen = io.StringIO()
    Console(file=screen, width=120).print(node_table(status))
    cluster._show(status)
    nodes = _Nodes()
    nodes.show(status)
    nodes.show(status)  # said once
    out, err = capsys.readouterr()
    said = "lab on slurm: pending; Priority: jobs with a higher one come first"
    assert screen.getvalue().startswith(f"{said}, 0 of 2 nodes")
    assert out == f"{said}\n"
    assert err.count(said) == 1


def test_gpus_that_do_nothing_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage(1000.0, gpus=(GpuUsage(0, idle_since=100.0), GpuUsage(1)))
    node = NodeReport(0, "10.0.0.1", phase=Phase.READY, usage=usage)
    cluster._show(Status("lab", "dstack", Phase.READY, nodes_wanted=1, nodes=(node,), price_per_hour=20.0))
    err = capsys.readouterr().err
    assert "warning: 1 of 2 GPUs have computed nothing for 15 min 00 s or more (rank 0: 0), and the cluster" in err
    assert "  → End the cluster, or submit a job: cloudrl down dstack/lab" in err
