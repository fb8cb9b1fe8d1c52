"""Rank 0, without a cluster."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from cloudrl.node.agent import Agent
from cloudrl.node.head import Head


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


def test_a_volume_that_hangs_while_the_cost_is_written_holds_up_no_limit() -> None:
    over = threading.Event()
    writes, looks = [], []
    agent: Any = MagicMock(_persisted_at=-1e9, _writing_cost=threading.Lock())
    agent.supervise.side_effect = lambda: looks.append(1)
    agent.attempts.write_cost.side_effect = lambda _: (writes.append(1), over.wait(60))
    agent.persist_cost = lambda: Agent.persist_cost(agent)
    before = time.monotonic()
    for _ in range(2):
        Agent.tick(agent, 0.0)
        agent._persisted_at = -1e9
        while not writes:
            time.sleep(0.01)
    assert time.monotonic() - before < 30
    assert (writes, looks) == ([1], [1, 1])  # no second one beside the first
    over.set()
