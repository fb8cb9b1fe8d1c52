"""A failure as an exception."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from cloudrl.errors import InputError
from cloudrl.node.failure import NodeFailed, error_code, unforeseen
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


def _refused(status: int) -> Exception:
    error = RuntimeError(f"request {status * 7} was refused")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]  as those of requests and httpx
    return error


def _wrapped(cause: Exception) -> Exception:
    error = InputError("owner/name cannot be read")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("name"), "KeyError"),
        (OSError(errno.ENOSPC, "No space left", "/data/a"), "OSError ENOSPC"),
        (TimeoutError("after 10.2 s"), "TimeoutError"),
        (_refused(503), "RuntimeError 503"),
        (RuntimeError("Reqwest: Connection reset by peer, os error 104"), "RuntimeError connection reset"),
        (RuntimeError("operation timed out after 31 s"), "RuntimeError timed out"),
        (_wrapped(RuntimeError("error sending request for url")), "RuntimeError error sending request"),
        (RuntimeError("the shard 17 is corrupt"), "RuntimeError"),
        (_wrapped(_refused(404)), "RuntimeError 404"),
        (InputError("there is no such data set"), "InputError"),
    ],
)
def test_the_code_of_an_error_has_nothing_that_changes(error: Exception, code: str) -> None:
    assert error_code(error) == code
    assert unforeseen(FailureKind.AGENT, 0, error).signature == f"agent||{code}"


def test_an_error_carries_its_failure() -> None:
    failure = Failure(FailureKind.RAY, 1, "it ended")
    assert NodeFailed(failure).failure is failure
    assert str(NodeFailed(failure)) == "it ended"
