"""What travels between the agents comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.node.failure import Failure, NodeFailed, unforeseen
from cloudrl.node.report import Report
from cloudrl.protocol.phases import AGENT_PHASES

NUMBERS = st.integers(min_value=0, max_value=2**31)
FAILURES = st.builds(Failure, st.text(), NUMBERS, st.text(), st.text(), st.booleans(), st.booleans())
REPORTS = st.builds(
    Report,
    rank=NUMBERS,
    ip=st.text(),
    hostname=st.text(),
    agent_port=NUMBERS,
    phase=st.sampled_from(AGENT_PHASES),
    detail=st.text(),
    ray_version=st.none() | st.text(),
    python_version=st.text(),
    verl_version=st.none() | st.text(),
    rollouts=st.lists(st.text()),
    gpus=NUMBERS,
    cpus=NUMBERS,
    ray_up=st.booleans(),
    fetched=st.booleans(),
    models=st.dictionaries(st.text(), st.text()),
    seconds=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    blocked=st.lists(st.text()),
    failure=st.none() | FAILURES,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(FAILURES)
def test_a_failure(failure: Failure) -> None:
    assert Failure.from_json(json.loads(json.dumps(failure.to_json()))) == failure


@given(REPORTS, st.dictionaries(st.text(min_size=1).map(lambda key: f"new_{key}"), JSON, max_size=3))
def test_a_report_with_keys_of_a_newer_agent(report: Report, more: dict[str, Any]) -> None:
    assert Report.from_json(json.loads(json.dumps({**more, **report.to_json()}))) == report


@given(JSON)
def test_what_is_no_report_is_refused(value: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Report.from_json(value)  # type: ignore[arg-type]


COMPLETE = Report(rank=1, ip="10.0.0.2", hostname="host", agent_port=8266).to_json()


@given(st.sampled_from(sorted(COMPLETE)), JSON)
def test_a_field_of_another_type_is_refused_or_taken_as_it_is(key: str, value: Any) -> None:
    """Whatever comes through: the head can compare, sort and show it."""
    try:
        report = Report.from_json({**COMPLETE, key: value})
    except (KeyError, TypeError, ValueError):
        return
    sorted([report.rank, 0])
    assert isinstance(report.models.get("m"), (str, type(None)))
    assert report.phase in json.dumps(report.to_json())
    assert not report.ray_up or report.ray_up is True


def test_permanent_is_a_matter_of_kind() -> None:
    assert Failure("setup", 0, "x").permanent
    assert not Failure("ray", 0, "x").permanent
    assert Failure("setup", 0, "x").to_json()["permanent"] is True
    assert not Failure("model", 0, "x", transient=True).permanent


def test_an_older_agent_says_less() -> None:
    assert Failure.from_json({"kind": "ray", "rank": 1, "reason": "x"}) == Failure("ray", 1, "x")
    assert Failure.from_json(None) is None


def test_an_error_that_nobody_has_foreseen() -> None:
    def inner() -> None:
        raise KeyError("two\nlines")

    with pytest.raises(KeyError) as caught:
        inner()
    failure = unforeseen("agent", 2, caught.value)
    assert (failure.kind, failure.rank, failure.reason) == ("agent", 2, "KeyError: 'two\\nlines'")
    assert "in inner\n" in failure.tail
    assert unforeseen("agent", 0, ValueError()).reason == "ValueError"
    assert unforeseen("agent", 0, ValueError("two\nlines")).reason == "ValueError: two lines"
    assert len(unforeseen("agent", 0, ValueError("x" * 10**6)).tail) == 16_384


def test_an_error_carries_its_failure() -> None:
    failure = Failure("ray", 1, "it ended")
    assert NodeFailed(failure).failure is failure
    assert str(NodeFailed(failure)) == "it ended"
