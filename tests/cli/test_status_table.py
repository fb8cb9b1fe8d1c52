"""One list of columns for a terminal and for a pipe."""

import io
from dataclasses import replace

import pytest
from fake_clock import Clock
from rich.console import Console

from cloudrl.cli import cluster
from cloudrl.cli._nodes import columns, node_table, rows_of
from cloudrl.cli._terminal import _Nodes
from cloudrl.jobs import Progress
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.job_phases import JobPhase
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Fetching
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage
from cloudrl.providers.model import Status
from cloudrl.sdk.callbacks import Notice, Waiting
from cloudrl.sdk.progress_lines import ProgressLines, StartLines, changes
from cloudrl.verl.startup import Starting

NODES = (
    NodeReport(0, "10.0.0.1", phase=Phase.FETCH, detail="model owner/name", phase_s=81.5),
    NodeReport(1, "10.0.0.2", phase=Phase.FAILED, failure=Failure(FailureKind.SETUP, 1, "`false` exited with 1")),
    NodeReport(2, "10.0.0.3", phase=Phase.RAY, seen_s_ago=12.0, phase_s=15.0),
    NodeReport(3, "10.0.0.4", phase=Phase.READY, services={"judge": "ready", "search": "started again, 1 of 5"}),
)
ROWS = [
    ["0", "10.0.0.1", "fetch", "1 min 22 s", "model owner/name"],
    ["1", "10.0.0.2", "failed", "", "`false` exited with 1"],
    ["2", "10.0.0.3", "ray", "15 s", "no heartbeat for 12 s"],
    ["3", "10.0.0.4", "ready", "", "service search: started again, 1 of 5"],
]


def test_both_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status(ClusterFacts("lab", "", "local", 4), Phase.FETCH, nodes=NODES)
    screen = io.StringIO()
    Console(file=screen, width=120).print(node_table(status))
    cluster._show(status)
    for text in (screen.getvalue().partition("\n")[2], capsys.readouterr().out):
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert lines[:5] == [" ".join(filter(None, row)) for row in [list(columns()), *ROWS]]


# -- many nodes ---------------------------------------------------------------------------------------------------


def many(count: int = 256) -> list[NodeReport]:
    return [
        NodeReport(rank, f"10.0.{rank // 250}.{rank % 250}", phase=Phase.READY, phase_s=50 + rank / 10)
        for rank in range(count)
    ]


def table(nodes: list[NodeReport]) -> list[list[str]]:
    return [cells for cells, _ in rows_of(nodes)]


def test_equal_rows_of_many_nodes_are_one() -> None:
    nodes = many()
    for rank in (7, 40, 41):
        nodes[rank] = replace(nodes[rank], seen_s_ago=float(rank))
    nodes[200] = replace(nodes[200], phase=Phase.FAILED, failure=Failure(FailureKind.SETUP, 200, "`false` exited"))
    assert table(nodes) == [
        ["0-6, 8-39, 42-199, 201-255", "10.0.0.0 and 251 more", "ready", "50 s to 1 min 16 s", ""],
        ["7, 40-41", "10.0.0.7 and 2 more", "ready", "51 s to 54 s", "no heartbeat for 41 s"],
        ["200", "10.0.0.200", "failed", "1 min 10 s", "`false` exited"],
    ]


def test_few_nodes_have_a_row_each() -> None:
    assert [row[0] for row in table(many(16))] == [str(rank) for rank in range(16)]
    assert [row[0] for row in table(many(17))] == ["0-16"]


def test_what_many_nodes_download_is_one_row_with_the_slowest() -> None:
    nodes = [
        replace(node, phase=Phase.FETCH, fetching={"owner/name": Fetching("", (2 + node.rank) * 10**9, 260 * 10**9)})
        for node in many()
    ]
    assert [row[0::4] for row in table(nodes)] == [["0-255", "owner/name: 2.0 GB of 260 GB"]]


def test_a_name_that_a_data_set_says_itself_is_said_once() -> None:
    node = replace(many()[0], phase=Phase.FETCH, fetching={"gsm8k": Fetching("gsm8k: 7,473 train rows")})
    assert [row[0::4] for row in table([node])] == [["0", "gsm8k: 7,473 train rows"]]


def test_a_table_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Each node says something else."""
    nodes = [replace(node, detail=f"model owner/name, {node.rank} of 256") for node in many()]
    rows = table(nodes)
    assert len(rows) == 41
    assert rows[-1] == ["40-255", "", "", "", "216 more nodes; all of them: --json"]
    status = Status(ClusterFacts("lab", "", "local", 256), Phase.READY, nodes=tuple(nodes))
    screen = io.StringIO()
    Console(file=screen, width=120).print(node_table(status))
    cluster._show(status)
    assert len(screen.getvalue().splitlines()) < 50
    assert len(capsys.readouterr().out.splitlines()) < 50


def test_what_changes_on_many_nodes_is_one_line() -> None:
    """Without a terminal."""
    nodes = many()
    nodes[3] = replace(nodes[3], phase=Phase.FETCH)
    assert changes(nodes) == ["ranks 0-2, 4-255: ready", "rank 3 (10.0.0.3): fetch"]
    assert changes(nodes[:2]) == ["rank 0 (10.0.0.0): ready", "rank 1 (10.0.0.1): ready"]


# -- other than nodes ---------------------------------------------------------------------------------------------


def test_a_cluster_that_waits_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "Priority: jobs with a higher one come first"
    status = Status(ClusterFacts("lab", "", "slurm", 2), Phase.PENDING, reason=reason)
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
    cluster._show(Status(ClusterFacts("lab", "", "dstack", 1), Phase.READY, nodes=(node,), price_per_hour=20.0))
    err = capsys.readouterr().err
    assert "warning: 1 of 2 GPUs have computed nothing for 15 min 00 s or more (rank 0: 0), and the cluster" in err
    assert "  → End the cluster, or submit a job: cloudrl down dstack/lab" in err


# -- waiting without a terminal -----------------------------------------------------------------------------------


def test_a_line_comes_every_half_a_minute_and_says_what_is_downloaded_and_since_when(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = _Nodes(clock)
    for seconds in (0, 10, 40, 50, 70):
        clock.sleep(seconds - clock())
        progress = Fetching("", (1 + seconds) * 10**8, 15 * 10**9, 1e8)
        node = NodeReport(0, "10.0.0.1", phase=Phase.FETCH, fetching={"Qwen/Qwen3-8B": progress})
        nodes.show(Status(ClusterFacts("lab", "", "local", 1), Phase.FETCH, nodes=(node,)))
    assert capsys.readouterr().err.splitlines() == [
        "rank 0 (10.0.0.1): fetch",
        "lab: fetch for 40 s; Qwen/Qwen3-8B: 4.1 GB of 15.0 GB, 100 MB/s, 1 min 49 s left",
        "lab: fetch for 1 min 10 s; Qwen/Qwen3-8B: 7.1 GB of 15.0 GB, 100 MB/s, 1 min 19 s left",
    ]


def test_a_machine_that_is_waited_for_says_for_how_long(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, status = _Nodes(clock), Status(ClusterFacts("lab", "", "dstack", 2), Phase.PULLING)
    nodes.show(status)
    clock.sleep(95)
    nodes.show(status)
    assert capsys.readouterr().err.splitlines() == ["lab: pulling for 1 min 35 s"]


def test_the_start_of_a_job_has_a_line_for_each_stage_and_every_half_a_minute(clock: Clock) -> None:
    lines, said = StartLines(clock), []
    loading = Starting("loading the model", JobPhase.INIT)
    for seconds, stage in ((0, loading), (10, loading), (35, loading), (36, Starting("first rollout", JobPhase.GEN))):
        clock.sleep(seconds - clock())
        said += lines.add(Waiting(stage, float(seconds) if stage is loading else 0.0))
    assert said == [
        "before the first step: loading the model",
        "before the first step: loading the model for 35 s",
        "before the first step: first rollout",
    ]


def test_lines_in_python_are_those_of_the_terminal(clock: Clock) -> None:
    said: list[str] = []
    progress = ProgressLines(said.append, clock=clock)
    progress(Status(ClusterFacts("lab", "", "local", 1), Phase.RAY, nodes=(NODES[0],)))
    progress(Notice("READY: lab", "cloudrl down lab"))
    progress(Progress(2, 9, {"reward": 0.5}, 2.0, 14.0))
    assert said == [
        "rank 0 (10.0.0.1): fetch",
        "READY: lab",
        "  -> cloudrl down lab",
        "step 2/9  reward 0.500  2.0 s/step  ETA 14 s",
    ]
