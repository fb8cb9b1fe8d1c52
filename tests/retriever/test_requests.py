"""A body means what it means to Search-R1's server, whose model this is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Optional

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cloudrl.retriever.requests import InvalidRequest, parse_request


class QueryRequest(BaseModel):
    """Search-R1 a14dc3a, search_r1/search/retrieval_server.py."""

    queries: list[str]
    topk: Optional[int] = None  # noqa: UP045 - as it stands there
    return_scores: bool = False


values = st.one_of(
    st.none(), st.booleans(), st.integers(0, 9), st.floats(0, 3), st.text(max_size=3),
    st.sampled_from(["3", "yes", "off", "1.0", [], {}, ["a"], ["a", 1], [None], "\ud800"]),
)  # fmt: skip
bodies = st.one_of(
    st.fixed_dictionaries(
        {"queries": st.lists(st.text(max_size=4), max_size=3)}, optional={"topk": values, "return_scores": values}
    ),
    st.fixed_dictionaries({}, optional={"queries": values, "topk": values, "other": values}),
    values,
)


@given(bodies)
def test_it_is_read_as_the_reference_reads_it(body: Any) -> None:
    content = json.dumps(body).encode()
    theirs, ours = _read(QueryRequest.model_validate_json, content), _read(parse_request, content)
    assert ours == theirs


def _read(read: Callable[[bytes], BaseModel], content: bytes) -> Any:
    """What it holds, or where it is wrong."""
    try:
        return read(content).model_dump()
    except ValidationError as error:
        return [["body", *each["loc"]] for each in error.errors()]
    except InvalidRequest as error:
        return [each["loc"] for each in error.detail]
