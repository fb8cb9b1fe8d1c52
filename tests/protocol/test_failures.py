"""Failures, the line in which an agent says why it ends, and codes of refused calls."""

import http.client
import json

import pytest

from cloudrl.protocol import wire
from cloudrl.protocol.failures import ApiError, ErrorCode, Failure, FailureKind


def test_permanent_is_a_matter_of_kind() -> None:
    permanent = {kind.value for kind in FailureKind if Failure(kind, 0, "x").permanent}
    assert permanent == {"setup", "preflight", "data", "model", "artifact", "service", "agent"}
    assert not Failure(FailureKind.MODEL, 0, "x", transient=True).permanent
    assert FailureKind("of next year") is FailureKind.UNKNOWN


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (Failure(FailureKind.SETUP, 1, "`x` failed"), "rank 1, setup: `x` failed"),
        (Failure(FailureKind.LOST, 1, "rank 1 was lost"), "rank 1 was lost"),
        (Failure(FailureKind.DOWN, 0, "idle for 30m"), "idle for 30m"),
    ],
)
def test_the_text_says_where(failure: Failure, text: str) -> None:
    assert failure.text == text


def test_the_signature_travels_and_has_no_words() -> None:
    one = Failure(FailureKind.DATA, 1, "/a on 10.0.0.7", "log", subject="gsm8k", code="OSError ENOSPC")
    other = Failure(FailureKind.DATA, 0, "/b on 10.0.0.8", subject="gsm8k", code="OSError ENOSPC")
    again = wire.from_json(Failure, json.loads(json.dumps(wire.to_json(one))))
    assert again == one
    assert again.signature == other.signature == "data|gsm8k|OSError ENOSPC"
    assert Failure(FailureKind.MODEL, 1, "", subject="gsm8k", code=one.code).signature != one.signature


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_has_one_status_and_travels(code: ErrorCode) -> None:
    assert http.client.responses[code.status]
    value = json.loads(json.dumps(ApiError(code, "why").to_json()))
    assert (value["error"], ErrorCode(value["code"])) == ("why", code)
