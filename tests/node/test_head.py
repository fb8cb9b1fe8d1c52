"""Rank 0, without a cluster."""

import time
from types import SimpleNamespace
from typing import Any

from cloudrl.node.head import Head


def test_a_clock_that_is_set_ends_no_start() -> None:
    """A fresh machine's clock jumps when it first hears of the time; here rank 1 is waited for since 1970."""
    options = SimpleNamespace(join_timeout_s=60.0)
    head: Any = SimpleNamespace(started_at=0.0, started_clock=time.monotonic(), options=options)
    Head._check_missing(head, {1})
