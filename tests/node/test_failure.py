"""A failure as an exception."""

from __future__ import annotations

import pytest

from cloudrl.node.failure import NodeFailed, unforeseen
from cloudrl.protocol.failures import Failure, FailureKind


def test_an_error_that_nobody_has_foreseen() -> None:
    def inner() -> None:
        raise KeyError("two\nlines")

    with pytest.raises(KeyError) as caught:
        inner()
    failure = unforeseen(FailureKind.AGENT, 2, caught.value)
    assert (failure.kind, failure.rank, failure.reason) == ("agent", 2, "KeyError: 'two\\nlines'")
    assert "in inner\n" in failure.tail
    assert unforeseen(FailureKind.AGENT, 0, ValueError()).reason == "ValueError"
    assert unforeseen(FailureKind.AGENT, 0, ValueError("two\nlines")).reason == "ValueError: two lines"
    assert len(unforeseen(FailureKind.AGENT, 0, ValueError("x" * 10**6)).tail) == 16_384


def test_an_error_carries_its_failure() -> None:
    failure = Failure(FailureKind.RAY, 1, "it ended")
    assert NodeFailed(failure).failure is failure
    assert str(NodeFailed(failure)) == "it ended"
