"""Rank 0, without a cluster."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from cloudrl.node.head import Head


def waiting(started_at: float, started_clock: float) -> Any:
    """A head that waits for 60 s for rank 1."""
    return SimpleNamespace(
        started_at=started_at,
        started_clock=started_clock,
        identity=SimpleNamespace(ip="10.0.0.1"),
        options=SimpleNamespace(join_timeout_s=60.0, ports=SimpleNamespace(agent=8266)),
        failed=lambda kind, reason, subject: RuntimeError(f"{kind}: {reason}"),
    )


def test_a_clock_that_is_set_ends_no_start() -> None:
    """A fresh machine's clock jumps when it first hears of the time."""
    Head._look_for_missing(waiting(0.0, time.monotonic()), {1})


def test_a_rank_that_never_comes() -> None:
    with pytest.raises(RuntimeError, match="join: rank 1 never came within 60 s"):
        Head._look_for_missing(waiting(time.time(), time.monotonic() - 61), {1})
