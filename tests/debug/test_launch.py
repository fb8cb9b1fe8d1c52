"""Entries in a file that its user has written."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.debug import launch
from cloudrl.debug.launch import EMPTY, OURS, entry, port_of
from cloudrl.protocol.stops import Stop

ONE, TWO = (
    entry(Stop(str(rank), 0, 100 + rank, 5678, actor="WorkerDict", rank=rank), 4000 + rank, "local/lab")
    for rank in range(2)
)


def is_ours(value: object) -> bool:
    return port_of(value, "local/lab") is not None


def merged(text: str, entries: Sequence[dict[str, Any]]) -> str | None:
    return launch.merged(text, entries, is_ours)


def test_what_an_entry_says() -> None:
    assert ONE == {
        "name": "cloudrl: local/lab, WorkerDict rank 0, node 0, pid 100", "type": "debugpy", "request": "attach",
        "connect": {"host": "127.0.0.1", "port": 4000}, "justMyCode": False,
        "pathMappings": [{"localRoot": "${workspaceFolder}", "remoteRoot": "."}],
    }  # fmt: skip
    assert entry(Stop("1", 3, 77, 5, actor="driver"), 9, "a")["name"] == "cloudrl: a, driver, node 3, pid 77"


@pytest.mark.parametrize(
    "other",
    [
        {}, {"name": "cloudrl: my own launcher"}, {"name": "cloudrl: local/lab2, driver, node 0, pid 1"},
        {"request": "launch"}, {"connect": 4000}, {"connect": {"host": "10.0.0.1", "port": 4000}},
        {"connect": {"host": "127.0.0.1", "port": "4000"}}, {"connect": {"host": "127.0.0.1", "port": 70000}},
    ],
)  # fmt: skip
def test_which_entries_are_ours(other: dict[str, object]) -> None:
    assert port_of({**ONE, **other}, "local/lab") == (None if other else 4000)
    assert port_of("cloudrl: local/lab, x", "local/lab") is None


def test_there_is_no_file_yet() -> None:
    text = merged("", [ONE])
    assert text is not None
    assert json.loads(text) == {"version": "0.2.0", "configurations": [ONE]}
    assert merged(text, []) == EMPTY


@pytest.mark.parametrize("text", ["", " \n", "{}", '{"version": "0.2.0"} // mine', '{"configurations": [ ]}'])
def test_without_entries_nothing_changes(text: str) -> None:
    assert merged(text, []) == text


MINE = """\
// Use IntelliSense to learn about possible attributes.
{
    "version": "0.2.0", // "configurations": [
    /* mine, {"name": "cloudrl: x"} */
    "configurations": [
        {"name": "Run, [file]", "type": "debugpy", "args": ["a // b", "\\"/*"]}, // the usual one
        {
            "name": "Other",
            "type": "node", // last
        },
    ],
    "compounds": []
}
"""


def test_comments_and_layout_stay_and_the_entries_come_and_go() -> None:
    with_one = merged(MINE, [ONE])
    assert with_one is not None
    assert '"name": "cloudrl: local/lab, WorkerDict rank 0' in with_one
    for line in MINE.splitlines():
        assert line.strip(" ,") in with_one, line
    with_two = merged(with_one, [TWO, ONE])
    assert with_two is not None
    assert with_two.count(OURS) == 3  # of which one stands in a comment
    assert merged(with_two, []) == MINE


@pytest.mark.parametrize(
    ("around", "after"),
    [
        ('{"name": "y"}, // keep\nOURS ]', '{"name": "y"} // keep\n ]'),
        ('{"name": "y"}, // keep\nOURS // tail\n]', '{"name": "y"} // keep\n // tail\n]'),
        ('{"name": "y"}, /* keep */\nOURS ]', '{"name": "y"} /* keep */ ]'),
        ("\n // mine\nOURS]", "\n // mine\n]"),
        ('// mine\nOURS, {"name": "y"}]', '// mine\n {"name": "y"}]'),
        ('OURS // mine\n, {"name": "y"}]', ' // mine\n {"name": "y"}]'),
        ("OURS, // mine\n]", " // mine\n]"),
    ],
)
def test_comments_around_our_entries_stay(around: str, after: str) -> None:
    text = '{"configurations": [' + around.replace("OURS", json.dumps(TWO)) + "}"
    without = merged(text, [])
    assert without == '{"configurations": [' + after + "}"
    with_one = merged(text, [ONE])
    assert with_one is not None
    assert merged(with_one, []) == without


@pytest.mark.parametrize(
    "text",
    [
        "{}", "{ }\n", '{"version": "0.2.0"}', '{"configurations": []}', '{"configurations": [\n]}', '\ufeff{"a": [1]}',
        '{"configurations": [{"name": "x"}]}', '{"configurations": [{"name": "x"},]}', '{"configurations": [1, "a"],}',
        '{"configurations": [1], "configurations": [2]}', '{"configurations": [// c\n]}', "  \n\t",
        '{\r\n  "configurations": [\r\n    {"name": "x"}\r\n  ]\r\n}\r\n',
    ],
)  # fmt: skip
def test_any_form_of_it(text: str) -> None:
    new = merged(text, [ONE, TWO])
    assert new is not None
    again = merged(new, [TWO])
    assert again is not None
    assert '"port": 4001' in again
    assert '"port": 4000' not in again
    assert ("\r\n" in again) == ("\r\n" in text)
    assert again.replace("\r\n", "").count("\r") == 0


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{",
        '{"configurations": {}}',
        '{"a": 1 "b": 2}',
        "{'a': 1}",
        "x",
        '{"configurations": "a"}',
        "[" * 99999,
    ],
)
def test_what_cannot_be_read_is_left_alone(text: str) -> None:
    assert merged(text, [ONE]) is None


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["//", "/*", "*/", ",]", '"', "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["x", ONE["name"], f"{OURS}mine", "y // z"])
configurations = st.lists(st.builds(lambda name, more: {**ONE, "more": more, "name": name}, names, values), max_size=4)


@given(
    others=st.dictionaries(st.text(max_size=5), values, max_size=3), mine=configurations,
    indent=st.sampled_from([None, 2, 4]), is_first=st.booleans(),
)  # fmt: skip
def test_whatever_else_is_in_it_stays(
    others: dict[str, object], mine: list[dict[str, object]], indent: int | None, is_first: bool
) -> None:
    others = {key: value for key, value in others.items() if key != "configurations"}
    own = {"configurations": mine}
    text = json.dumps({**own, **others} if is_first else {**others, **own}, indent=indent)
    new = merged(text, [ONE])
    assert new is not None
    kept = [each for each in mine if each["name"] != ONE["name"]]
    assert json.loads(new) == {**others, "configurations": [*kept, ONE]}
