"""Rank 0, without a cluster."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

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
