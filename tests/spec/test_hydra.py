"""Hydra text, read back by Hydra's own parser (it comes with verl)."""

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec import HydraText, hydra_text, override_argument, parse_override

PARSER = OverridesParser.create()

HOSTILE = [
    "", " ", "  x", "x  ", "a b", "a,b", "a=b", "a:b", "'", '"', "'\"", "\\", "\\'", "it's", 'say "x"',
    "\\\\'", "a\\", "[a]", "{a: b}", "(a)", "choices(a,b)", "$x", "%", "~", "#", "!", "&", ";", "a\nb",
    "\t", "é", "\u2028", "\U0001f600", "null", "NULL", "true", "False", "TRUE", "1", "-1", "1_000", "010",
    "0x1f", "1.", ".5", "1e-6", "1e-06", "1E5", "-.5e+3", "nan", "inf", "-Inf", "+1", "1.2.3", "1-2", "-",
    "+", ".", "..", "/", "/a/b.c", "a/b@c", "*", "?", "|", "~/x", "1,2", "--x", "=", "==", "a\\ b", "\\n",
    "'quoted'", '"quoted"', "'a',b", "@", "a.b", "0", "00", "1__0", "_1", "1_", "e5", "1e",
]  # fmt: skip


def read(argument: str) -> object:
    return PARSER.parse_override(argument).value()


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    if isinstance(one, (list, tuple)):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        pairs = isinstance(other, dict) and list(zip(one.items(), other.items(), strict=False))
        return len(one) == len(other) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    return type(one) is type(other) and one == other


# Hydra has no way to write a NUL, and a lone surrogate is not text.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
numbers = st.one_of(st.integers(), st.floats())
simple_keys = st.text(alphabet="ab1 _-./:,()[]{}=\\", min_size=1, max_size=6)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts, st.sampled_from(HOSTILE))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(simple_keys, inner, max_size=3)
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_string_stays_that_string(text):
    assert same(text, read(f"key={hydra_text(text)}"))


@given(values)
@example({"a b": ["x, y", None, {"c:d": "1e-6"}]})
def test_any_value_comes_back_from_hydra(value):
    try:
        written = hydra_text(value)
    except SpecError as error:
        assert "cannot be the key of a mapping" in error.message  # noqa: PT017
        return
    assert same(value, read(f"a.b={written}"))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"), (True, "True"), (2, "2"), (1e-6, "1e-06"), ((), "[]"), ({}, "{}"), ("", "''"),
        ("/root/data/gsm8k/train.parquet", "/root/data/gsm8k/train.parquet"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("1e-6", "'1e-6'"), ("null", "'null'"),
        ("it's", '"it\'s"'),
        (["console", "wandb"], "[console,wandb]"),
        ({"a": [1, {"b": "x y"}]}, "{a:[1,{b:'x y'}]}"),
    ],
)  # fmt: skip
def test_text_is_plain_where_it_can_be(value, written):
    assert hydra_text(value) == written
    assert isinstance(hydra_text(value), HydraText)


def test_hydra_text_is_taken_as_it_is():
    assert hydra_text(HydraText("[a, b]")) == "[a, b]"
    assert hydra_text([HydraText("1e-6"), "1e-6"]) == "[1e-6,'1e-6']"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object, "a value of type type cannot be written as a Hydra value"),
        (b"x", "a value of type bytes cannot be written as a Hydra value"),
        ("a\0", "the text holds a NUL character"),
        ({"é": 1}, "'é' cannot be the key of a mapping in a Hydra override"),
        ({"null": 1}, "'null' cannot be the key of a mapping in a Hydra override"),
        ({"1": 1}, "'1' cannot be the key of a mapping in a Hydra override"),
        ({"": 1}, "'' cannot be the key of a mapping in a Hydra override"),
        ({(1, 2): 1}, "(1, 2) cannot be the key of a mapping in a Hydra override"),
    ],
)
def test_what_hydra_cannot_read_is_refused(value, message):
    with pytest.raises(SpecError) as caught:
        hydra_text(value)
    assert caught.value.message == message


GOOD_KEYS = [
    "a", "trainer.nnodes", "+a.b", "++a.b-c", "~a", "~a.b", "model@actor.model",
    "+ray_kwargs.ray_init.num_cpus", "a.0.b", "db/engine", "+db/engine@x.y", "$a.$b", "_a", "a.b@",
    "hydra.run.dir", "a.10", "a-",
]  # fmt: skip
BAD_KEYS = [
    "", "a b", "1", "a..b", ".a", "a.", "+++a", "+~a", "a,b", "a[0]", "é", "-a", "a.01", "a.b/c", " a", "a\n",
]  # fmt: skip


@pytest.mark.parametrize("key", GOOD_KEYS)
def test_good_keys_are_keys_to_hydra(key):
    assert parse_override(f"{key}=1") == (key, "1")
    PARSER.parse_override(f"{key}=1")


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys_are_refused(key):
    with pytest.raises(SpecError, match="is not the key of an override"):
        parse_override(f"{key}=1")


@given(st.text(alphabet="ab01._-/@$+~ ", max_size=8))
def test_a_key_that_we_take_hydra_takes(key):
    try:
        parse_override(f"{key}=1")
    except SpecError:
        return
    PARSER.parse_override(f"{key}=1")


def test_parse_override_keeps_the_value_as_typed():
    assert parse_override("a.b= [1, 'x=y']") == ("a.b", " [1, 'x=y']")
    assert parse_override("a=") == ("a", "")
    assert isinstance(parse_override("a=1e-6")[1], HydraText)


def test_a_deletion_needs_no_value():
    assert parse_override("~a.b") == ("~a.b", "")
    assert override_argument("~a.b", "") == "~a.b"
    assert override_argument("~a.b", "x") == "~a.b=x"
    assert override_argument("a.b", "") == "a.b="


@pytest.mark.parametrize("text", ["trainer.nnodes", "", "--steps"])
def test_an_argument_without_equals_is_refused(text):
    with pytest.raises(SpecError) as caught:
        parse_override(text)
    assert caught.value.message == f"{text!r} is not key=value"
    assert caught.value.hint == "For example: trainer.total_epochs=15"
