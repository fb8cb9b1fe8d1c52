"""What others have written is read within bounds, and no message quotes it."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl import foreign
from cloudrl.errors import without_login
from cloudrl.foreign import (
    MAX_DEPTH,
    Malformed,
    Patience,
    as_list,
    as_object,
    checked_time,
    number_of,
    parse_json,
    parse_object,
    read_all,
    read_file,
    text_of,
    whole_number,
)  # fmt: skip


class Clock:
    """Seconds, which reading takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_stream_up_to_its_limit(size: int) -> None:
    assert read_all(io.BytesIO(b"x" * size), 100) == b"x" * size


def test_a_stream_beyond_its_limit_is_not_read_on(tmp_path: Path) -> None:
    stream = io.BytesIO(b"x" * 1_000_000)
    with pytest.raises(Malformed, match="it has more than 100 B"):
        read_all(stream, 100)
    assert stream.tell() == 101
    (tmp_path / "state").write_bytes(b"x" * 101)
    with pytest.raises(Malformed):
        read_file(tmp_path / "state", 100)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested more than 64 deep"),
        ("[" * 5000 + "]" * 5000, "nested more than 64 deep"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested more than 64 deep"),
        ("[" * 200_000, "nested more than 64 deep|not JSON"),
        ("9" * 10_000, "a number of 10,000 digits"),
        ("-" + "9" * 21, "a number of"),
        ("1e999", "a number that is too large"),
        ("NaN", "NaN, which is not JSON"),
        ("[-Infinity]", "-Infinity, which is not JSON"),
        ("secret", "not JSON"),
        ("", "not JSON"),
        ("[" + "0," * 4_000_000 + "0]", "more than 4,000,000 values"),
    ],
    ids=range(12),
)
def test_json_out_of_bounds(text: str, says: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(Malformed, match=says) as caught:
            parse_json(data)
        assert "secret" not in str(caught.value)
        assert len(str(caught.value)) < 200


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(-1e29, 1e29) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_json_within_bounds_is_as_usual(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'["\ud800"]', ["\ufffd"]),
        (r'{"\udfff": {"a": ["x\ud800y"]}}', {"\ufffd": {"a": ["x\ufffdy"]}}),
        (r'["\ud83d\ude00", "\\ud800"]', ["\U0001f600", "\\ud800"]),
        (r'["caf\udce9.pt"]', ["caf\udce9.pt"]),
    ],
)
def test_lone_surrogates(text: str, value: object) -> None:
    """Those of names of files stay: the file is asked for by its bytes."""
    assert parse_json(text) == value


@pytest.mark.parametrize("data", [b"[1]", b"null", b"5", b'"x"'])
def test_what_is_no_object(data: bytes) -> None:
    with pytest.raises(Malformed, match="not an object"):
        parse_object(data)


def test_typed_parts() -> None:
    row = {"a": "x", "n": 5, "none": None, "list": [1]}
    assert (text_of(row, "a"), text_of(row, "none"), text_of(row, "gone")) == ("x", "", "")
    assert (number_of(row, "n"), number_of(row, "none")) == (5, None)
    assert (as_list(row["list"]), as_object(row)) == ([1], row)
    for wrong in (lambda: text_of(row, "n"), lambda: number_of(row, "a"), lambda: number_of({"b": True}, "b")):
        with pytest.raises(Malformed):
            wrong()


@pytest.mark.parametrize("seconds", [-1.0, 1e12, float("nan"), float("inf")])
def test_no_time(seconds: float) -> None:
    with pytest.raises(Malformed):
        checked_time(seconds)


@pytest.mark.parametrize(("text", "number"), [("5", 5), (None, None), ("-1", None), ("9" * 30, None), ("٣", None)])
def test_numbers_of_headers(text: str | None, number: int | None) -> None:
    assert whole_number(text) == number


def test_patience_is_used_up_by_what_dribbles_in() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)

    def receive(left_s: float) -> bytes:
        assert 0 < left_s <= 10
        clock.now += 0.5
        return b"x"

    for _ in range(20):
        patience.receive(receive, len)
    clock.now += 1000.0  # the reader's own work costs none
    patience.receive(receive, len)
    with pytest.raises(TimeoutError, match="too slowly"):
        patience.receive(receive, len)


def test_patience_is_renewed_by_what_flows() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)

    def receive(_left_s: float) -> bytes:
        clock.now += 3.0
        return b"x" * 65_536

    for _ in range(1000):
        patience.receive(receive, len)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:secret@host:1/path", "http://host:1/path"),
        ("me:secret@host:1", "host:1"),
        ("http://host/?token=secret", "http://host/"),
        ("http://a@b:secret@host", "http://host"),
        ("http://[::1]:8265", "http://[::1]:8265"),
    ],
)
def test_urls_in_messages(url: str, shown: str) -> None:
    assert without_login(url) == shown


def test_limits_are_in_order() -> None:
    assert foreign.STATE_BYTES < foreign.LIMIT_BYTES < foreign.LISTING_BYTES
