"""Rank 0, without a cluster."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from cloudrl.node.failure import NodeFailed
from cloudrl.node.head import Head
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.options import Ports
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import NodeReport


def test_a_clock_that_is_set_ends_no_start() -> None:
    """A fresh machine's clock jumps when it first hears of the time; here rank 1 is waited for since 1970."""
    options = SimpleNamespace(join_timeout_s=60.0)
    head: Any = SimpleNamespace(started_at=0.0, started_clock=time.monotonic(), options=options)
    Head._check_missing(head, {1})


def test_a_model_cache_that_nobody_may_write_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a site; all that is needed may be in it."""
    (tmp_path / "cache").write_text("a file, so that even root can write no marker in it")
    monkeypatch.setattr("cloudrl.node.head.models_dir", lambda *_: tmp_path / "cache")
    ran, head = MagicMock(), MagicMock()
    head.options = SimpleNamespace(data_dir=tmp_path / "data", models=["a/b"])
    head.identity.run_id = "run"
    monkeypatch.setattr("cloudrl.node.head.run_parallel", ran)
    Head.fetch(head, MagicMock())
    assert ran.called
    assert [*head.state.publish.call_args.kwargs["markers"]] == [str(tmp_path / "data")]
    assert "cannot be written" in head.log.line.call_args.args[0]


# -- many ranks ----------------------------------------------------------------------------------------------------


class Waiting:
    """Rank 0 of a cluster of 256, of which some ranks have been heard of."""

    def __init__(self, phases: dict[int, Phase]) -> None:
        self.identity: Any = SimpleNamespace(nodes=256, ip="10.0.0.1", rank=0)
        self.options = SimpleNamespace(join_timeout_s=60.0, ports=Ports())
        self.started_clock = time.monotonic() - 61
        self._gang, self._mirror_look = SimpleNamespace(is_over=False), SimpleNamespace(is_over=False)
        self.state = NodeState(NodeReport(0, "10.0.0.1", ray_up=True, fetched=True))
        for rank, phase in phases.items():
            self.state.record_heartbeat(NodeReport(rank, f"10.0.0.{rank}", phase=phase))

    failed = Head.failed
    _check_missing = Head._check_missing


def test_who_is_waited_for_and_who_did_not_join() -> None:
    head: Any = Waiting({rank: Phase.FETCH if rank % 2 else Phase.RAY for rank in range(1, 100)})
    with pytest.raises(NodeFailed) as raised:
        Head._all_done(head)
    reason = raised.value.failure.reason
    assert reason.startswith("ranks 100-255 did not join within 60 s: ")
    detail = head.state.own.detail
    assert detail.startswith("waiting for ranks 1, 3, 5, ")
    assert len(detail) < 300
    few: Any = Waiting(dict.fromkeys(range(1, 253), Phase.RAY) | {3: Phase.FETCH})
    with pytest.raises(NodeFailed, match="ranks 253-255 did not join"):
        Head._all_done(few)
    assert few.state.own.detail == "waiting for ranks 1-2, 4-252: ray; rank 3: fetch; ranks 253-255: not heard of"


def test_the_barrier_waits_for_what_all_nodes_do_together() -> None:
    head: Any = Waiting({})
    for rank in range(1, 256):
        head.state.record_heartbeat(NodeReport(rank, f"10.0.0.{rank}", ray_up=True, fetched=True))
    for look, detail in ((head._gang, "compute together"), (head._mirror_look, "look at the mirror")):
        assert not Head._all_done(head)
        assert head.state.own.detail == f"all nodes {detail}"
        look.is_over = True
    assert Head._all_done(head)


def test_ports_that_are_closed_between_many_nodes() -> None:
    """Asked side by side: one after the other took 33 minutes of 1,000 nodes."""
    head: Any = Waiting({})
    for rank in range(1, 256):
        blocked = ("10.0.0.1:8077 (Ray's object manager)",) if rank > 200 else ()
        head.state.record_heartbeat(NodeReport(rank, "127.0.0.1", blocked=blocked))
    text = Head._blocked_ports(head)
    assert text.startswith(": 10.0.0.1:8077 (Ray's object manager) from ranks 201-255, 127.0.0.1:")
    assert " more cannot be reached; is a firewall between the nodes?" in text
    assert len(text) < 350


def test_many_that_hang() -> None:
    head: Any = SimpleNamespace(_hang=lambda report: "hangs in phase ray" if report.rank > 100 else "")
    with pytest.raises(NodeFailed, match=r"rank 101 \(host, 10\.0\.0\.1\) hangs in phase ray; likewise ranks 102-255"):
        Head._check_hang(head, [NodeReport(rank, "10.0.0.1", "host") for rank in range(256)])
