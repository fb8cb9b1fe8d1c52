"""What the checks of nodes warn of reaches people: `up` and `run`, `status`, and `watch`."""

import time
from dataclasses import replace

from cloudrl.cli import cluster
from cloudrl.jobs.look import JobRecord
from cloudrl.jobs.node_warnings import interruption_notice, node_warnings
from cloudrl.protocol.compute import NodeCheck
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.interruptions import Interruption
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.report import NodeReport, NodeWarning, WarningKind
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.providers.model import Status
from cloudrl.sdk.cluster import report_warnings

EFA = NodeWarning("rdmap16s27: EFA without a plug-in", "an image with aws-ofi-nccl", WarningKind.NETWORK)
FILES = NodeWarning("`ulimit -n` is 1024")
NODES = tuple(
    NodeReport(rank, f"10.0.0.{rank}", phase=Phase.READY, warnings=warnings)
    for rank, warnings in enumerate([(EFA,), (FILES, EFA), (EFA,), ()])
)
STATUS = Status(ClusterFacts("lab", "", "dstack", 4, device="gpu"), Phase.READY, nodes=NODES)
SAID = "ranks 0-2: rdmap16s27: EFA without a plug-in"


def test_equal_warnings_of_several_nodes_are_one_sentence() -> None:
    assert node_warnings(NODES) == {
        WarningKind.NETWORK: Notice(SAID, EFA.remedy),
        WarningKind.MACHINE: Notice("rank 1: `ulimit -n` is 1024"),
    }


def test_an_older_agents_report_has_none_and_a_newer_kind_is_read() -> None:
    old = {key: value for key, value in to_json(NODES[0]).items() if key != "warnings"}
    assert from_json(NodeReport, old).warnings == ()
    new = {**old, "warnings": [{"text": "a", "kind": "of a later release"}]}
    assert from_json(NodeReport, new).warnings == (NodeWarning("a"),)


def test_up_and_run() -> None:
    said: list[object] = []
    report_warnings(STATUS, said.append)
    assert said == [Notice(f"warning: {SAID}", EFA.remedy), Notice("warning: rank 1: `ulimit -n` is 1024")]


def test_status(capsys) -> None:
    cluster._show(STATUS)
    err = capsys.readouterr().err
    assert f"warning: {SAID}\n  → an image with aws-ofi-nccl\nwarning: rank 1: `ulimit -n` is 1024\n" in err


def test_status_has_the_speed_between_nodes(capsys) -> None:
    rates = (40.0, 41.5, 3.25)
    nodes = [NodeReport(rank, "", check=NodeCheck(received_gb_per_s=rate)) for rank, rate in enumerate(rates)]
    cluster._show(Status(ClusterFacts("lab", "", "dstack", 3), Phase.READY, nodes=[*nodes, NodeReport(3, "")]))
    assert "between nodes up to 41.5 GB/s, the slowest from rank 1 to rank 2 3.2 GB/s" in capsys.readouterr().err


def test_watch() -> None:
    record = JobRecord("ray://lab/one")
    record.add_nodes(NODES)
    assert [(each.kind, each.seen) for each in record.look(0.0).warnings] == [
        ("network", SAID),
        ("machine", "rank 1: `ulimit -n` is 1024"),
    ]


def test_a_machine_that_is_taken_back_comes_first(capsys) -> None:
    soon = Interruption("AWS", "spot", time.time() + 3600)
    nodes = [replace(NODES[0], interruption=soon), *NODES[1:]]
    cluster._show(replace(STATUS, nodes=nodes))
    [first, hint, *_] = [line for line in capsys.readouterr().err.splitlines() if "warning" in line or "→" in line]
    assert first.startswith("warning: node 0 is taken back in ")
    assert first.endswith(": spot notice of AWS")
    assert "--name RUN" in hint
    record = JobRecord("ray://lab/one")
    record.add_nodes(nodes)
    warning, *_ = record.look(soon.ends_at - 110).warnings
    assert (warning.kind, warning.seen) == ("spot", "node 0 is taken back in 1 min 50 s: spot notice of AWS")
    assert interruption_notice(NODES, 0.0) is None
