"""verl's checks, followed without running them: what is certain is refused, and nothing else."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from cloudrl.verl.source.interpreter import Interpreter
from cloudrl.verl.source.shapes import Field, Shape, Source
from cloudrl.verl.source.values import UNKNOWN, Instance, NotTold, RefusedByVerl, Section

FIELDS = {name: Field("any", optional=True) for name in ("a", "b", "made")} | {"count": Field("int", default=4)}


def source(body: str, **more: Any) -> Source:
    code = f"def __post_init__(self):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    base = Shape(
        "verl.Base", "base.py", (), FIELDS, {"__post_init__": "def __post_init__(self):\n    self.made = 'base'"}
    )
    mine = Shape("verl.Mine", "mine.py", ("verl.Base",), FIELDS, {"__post_init__": code, **more})
    return Source("1", {"verl.Base": base, "verl.Mine": mine}, {"verl.Alias": "verl.Mine"}, {}, {},
                  {"mine.py": {"KINDS": ["one", "two"]}})  # fmt: skip


def build(body: str, **values: Any) -> Any:
    return Interpreter(source(body)).build({"_target_": "verl.Alias", **values}, "section")


@pytest.mark.parametrize(
    ("body", "values", "text"),
    [
        ("assert self.a in KINDS, f'{self.a!r} of {KINDS}'", {"a": "three"}, "'three' of ['one', 'two']"),
        ("assert self.a > 0", {"a": 0}, "self.a > 0"),
        ("if self.a < 1:\n    raise ValueError(f'a={self.a}')", {"a": 0}, "a=0"),
        ("x = self.a % 3\nassert x == 0, str(x)", {"a": 4}, "1"),
        ("self.a > 1", {"a": "abc"}, "TypeError: '>' not supported between instances of 'str' and 'int'"),
        ("self.a // self.b", {"a": 1, "b": 0}, "ZeroDivisionError: integer division or modulo by zero"),
        ("self.a.b", {"a": None}, "AttributeError: 'NoneType' object has no attribute 'b'"),
        ("for each in self.a:\n    assert isinstance(each, int), each", {"a": [1, "x"]}, "x"),
        ("for each in self.a:\n    pass", {"a": 3}, "TypeError: 'int' object is not iterable"),
        ("assert all(isinstance(x, int) for x in self.a), 'ints'", {"a": [1, "2"]}, "ints"),
        ("super().__post_init__()\nassert self.made == 'x', self.made", {}, "base"),
        ("assert unknown() or self.a, 'no'\nassert self.a, 'a'", {"a": False}, "a"),
        ("if helper(self):\n    self.b = 3\nassert self.a", {"a": 0}, "self.a"),
        ("if helper(self):\n    raise ValueError()\nassert self.a", {"a": 0}, "self.a"),
        ("def inner(x):\n    assert x, 'inner'\ninner(self.a)", {"a": 0}, "inner"),
        ("match self.a:\n case 'one':\n  pass\n case _:\n  raise ValueError('other')", {"a": 2}, "other"),
        ("assert isinstance(self.a, str | list)", {"a": 3}, "isinstance(self.a, str | list)"),
        ("self.b = {**self.a}", {"a": 3}, None),
        ("assert helper(self), 'x'", {}, None),
        ("assert helper(self) and self.a > 1", {"a": "abc"}, None),
        ("if helper(self):\n    return\nassert self.a", {"a": 0}, None),
        ("if helper(self):\n    self.a = 1\nassert self.a", {"a": 0}, None),
        ("try:\n    self.a > 1\nexcept TypeError:\n    pass", {"a": "abc"}, None),
        ("while True:\n    pass", {}, None),
        ("for x in range(10**9):\n    pass", {}, None),
        ("assert len('ab' * self.a) < 10", {"a": 10**12}, None),
        ("assert self.a.lower() == 'x'", {"a": "X"}, None),
        ("assert (self.a or 'x') == 'x'", {"a": None}, None),
        ("print(self.a > 1)", {"a": 3}, None),
        ("x = {}\nx[helper(self)] = 1\nassert len(x) == 0", {}, None),
        ("x = []\nx.append(helper(self))\nassert len(x) == 1, 'none'", {}, None),
        ("x = []\nif helper(self):\n    x.append(1)\nassert len(x) == 1, 'none'", {}, None),
        ("x = {}\nif helper(self):\n    x['a'] = 1\nassert len(x) == 1, 'none'", {}, None),
        ("x = {}\nx['a'] = 1\nassert len(x) == 0, 'one'", {}, "one"),
    ],
)  # fmt: skip
def test_what_is_refused(body: str, values: dict[str, Any], text: str | None) -> None:
    if text is None:
        try:
            assert isinstance(build(body, **values), Instance)
        except NotTold:
            return
    else:
        with pytest.raises(RefusedByVerl) as caught:
            build(body, **values)
        assert caught.value.text == text
        assert (caught.value.at, caught.value.path) == ("mine.py: Mine.__post_init__", "section")


def test_keys_that_are_no_fields() -> None:
    with pytest.raises(RefusedByVerl, match=r"section\.x: mine\.py: Mine has no such field"):
        build("pass", x=3)


def test_what_hydra_would_make_of_it() -> None:
    made = Interpreter(source("pass")).build({"x": [{"_target_": "verl.Alias"}], "y": {"_target_": "my.Own"}, "z": 3})
    assert [type(each) for each in made["x"]] == [Instance]
    assert (made["y"], made["z"], made["x"][0].attributes["count"]) == (UNKNOWN, 3, 4)


def test_values_that_are_missing() -> None:
    with pytest.raises(RefusedByVerl, match=r"section\.a is not set"):
        build("pass", a="???")


def test_a_section_has_no_other_keys() -> None:
    section = Section({"a": {"b": 3}, "c": "???"}, "top")
    assert section.read("a").read("b") == 3
    assert section.get("x", 4) == section.get("c", 4) == 4
    for key in ("x", "c"):
        with pytest.raises(RefusedByVerl):
            section.read(key)


def test_choices_are_named() -> None:
    with pytest.raises(RefusedByVerl) as caught:
        build("assert self.a in ['one', 'two']", a="on")
    assert caught.value.choices == ("one", "two")
    assert "a" in caught.value.names
