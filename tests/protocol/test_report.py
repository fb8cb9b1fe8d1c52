"""What travels between the agents, and to the client, comes back as it was."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.report import ClusterStatus, HeartbeatReply, NodeReport
from cloudrl.protocol.wire import from_json, to_json

KINDS = (NodeReport, HeartbeatReply, ClusterStatus, Outcome)
st.register_type_strategy(float, st.floats(allow_nan=False))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MORE = st.dictionaries(st.text(min_size=1).map(lambda key: f"new_{key}"), JSON, max_size=3)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(st.data())
def test_what_is_written_is_what_is_read_also_of_a_newer_agent(kind: type[Any], data: st.DataObject) -> None:
    value, more = data.draw(st.from_type(kind)), data.draw(MORE)
    assert from_json(kind, json.loads(json.dumps({**more, **to_json(value)}))) == value


@pytest.mark.parametrize("kind", KINDS)
@given(JSON)
def test_what_is_none_of_it_is_refused(kind: type[Any], value: object) -> None:
    if kind is not HeartbeatReply or not isinstance(value, dict):  # which may say nothing
        with pytest.raises(ValueError, match=kind.__name__):
            from_json(kind, value)


REPORT = to_json(NodeReport(rank=1, ip="10.0.0.2"))


@given(st.sampled_from(sorted(REPORT)), JSON)
def test_a_field_of_another_type_is_refused_or_taken_as_it_is(key: str, value: Any) -> None:
    """Whatever comes through: the head can compare, sort and show it."""
    try:
        report = from_json(NodeReport, {**REPORT, key: value})
    except ValueError:
        return
    sorted([report.rank, 0])
    assert isinstance(report.models.get("m"), (str, type(None)))
    assert report.phase in json.dumps(to_json(report))
    assert not report.ray_up or report.ray_up is True


def test_an_older_agent_says_less() -> None:
    assert from_json(NodeReport, {"rank": 1, "ip": "10.0.0.2"}) == NodeReport(1, "10.0.0.2")
    with pytest.raises(ValueError, match=r"NodeReport\.ip is missing"):
        from_json(NodeReport, {"rank": 1})
    with pytest.raises(ValueError, match=r"NodeReport\.models\[m\] is 1"):
        from_json(NodeReport, {**REPORT, "models": {"m": 1}})
