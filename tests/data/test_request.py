"""What a `--data` argument says, and which data sets there are."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl import data
from cloudrl.data.request import FIELDS, Request, built_in, folder_name, parse_request
from cloudrl.errors import InputError
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.spec import DataSet


def test_a_text_is_a_name_and_json_says_more() -> None:
    assert parse_request("gsm8k") == Request("gsm8k")
    assert parse_request("owner/name").place == "owner/name"
    text = '{"name": "mine", "source": "/a/b.csv", "test_rows": 7, "skip_bad": true, "system": null}'
    assert parse_request(text) == Request("mine", "/a/b.csv", test_rows=7, skip_bad=True)
    assert parse_request(text).explicit_fields == ["source", "test_rows", "skip_bad"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a data set"),
        ("  ", "'  ' is not a data set"),
        ("{", "'{' is not the JSON of a data set: "),
        ("{}", "'{}': field 'name' is missing"),
        ('{"name": ""}', "field 'name' is missing"),
        ('{"name": "x", "promt_field": "q"}', "unknown field 'promt_field'; did you mean 'prompt_field'?"),
        ('{"name": 7}', "data set: name is 7, which is not of type str"),
        ('{"name": "x", "test_rows": "7"}', "data set: test_rows is '7', which is not of type int"),
        ('{"name": "x", "test_rows": true}', "data set: test_rows is True, which is not of type int"),
        ('{"name": "x", "skip_bad": 1}', "data set: skip_bad is 1, which is not of type bool"),
        ('{"name": "x", "system": ["a"]}', "data set: system is ['a'], which is not of type str"),
    ],
)
def test_a_wrong_argument_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_request(text)


def test_nodes_and_laptop_know_the_same_fields_and_names() -> None:
    """They cannot import each other: the one wants pydantic, the other travels without."""
    assert tuple(DataSet.model_fields) == FIELDS
    for field in dataclasses.fields(Request)[1:]:
        assert DataSet.model_fields[field.name].default == field.default
    for name in BUILT_IN:
        assert DataSet(name=name).argument() == name
        assert built_in(parse_request(name)) is BUILT_IN[name]


fields = st.fixed_dictionaries(
    {"name": st.just("mine"), "source": st.sampled_from(["owner/name", "/data/it's 'mine'.csv"])},
    optional={
        "prompt_field": st.sampled_from(["q", "a.b.0", "Frage ü lang", '"q"']),
        "answer_field": st.sampled_from(["a", "$a", "${{ a }}"]),
        "system": st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        "config": st.just("main"),
        "split": st.just("train_sft"),
        "test_split": st.just("test_sft"),
        "data_source": st.just("openai/gsm8k"),
        "skip_bad": st.booleans(),
    },
)


@given(fields)
def test_what_is_declared_arrives(values: dict[str, object]) -> None:
    try:
        declared = DataSet(**values)
    except InputError:  # a blank or unprintable text
        return
    argument = declared.argument()
    assert "\n" not in argument
    arrived = parse_request(argument)
    assert {name: getattr(arrived, name) for name in FIELDS} == {name: getattr(declared, name) for name in FIELDS}


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("gsm8k", "gsm8k"), ("My.data-2_x", "My.data-2_x"), ("owner/name", "owner--name"),
        ("/data/mine.jsonl", r"mine-[0-9a-f]{8}"), ("/other/mine.jsonl", r"mine-[0-9a-f]{8}"),
        ("/data/a b ü.csv", r"a-b-[0-9a-f]{8}"), ("/", r"data-[0-9a-f]{8}"), ("..", r"data-[0-9a-f]{8}"),
        ("../../etc", r"etc-[0-9a-f]{8}"),
    ],
)  # fmt: skip
def test_a_name_has_a_folder_of_its_own(name: str, folder: str) -> None:
    assert re.fullmatch(folder, folder_name(name))
    assert folder_name("/data/mine.jsonl") != folder_name("/other/mine.jsonl")


@given(st.text())
def test_no_name_leaves_the_data_folder(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", folder_name(name))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("math", "math"),
        ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ('{"name": "openai/gsm8k", "source": "/copy"}', "gsm8k"),
        ('{"name": "x", "source": "openai/gsm8k"}', "gsm8k"),
        ('{"name": "x", "source": "openai/gsm8k", "prompt_field": "question"}', None),
        *((each, None) for each in ("owner/name", "/x.csv", "./x.csv", '{"name": "x", "source": "~/x"}')),
    ],
)
def test_a_built_in_data_set_is_known_by_its_hub_id_too(text: str, meant: str | None) -> None:
    """As rows of an unknown kind, gsm8k's answers would be whole solutions, and every reward zero."""
    found = built_in(parse_request(text))
    assert (found and found.name) == meant


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("additon", "there is no data set 'additon'; did you mean 'addition'?", "Known data sets"),
        ("zzz", "there is no data set 'zzz'",
         "Known data sets: addition, capitals, gsm8k, math, nq_search, nq_search_tool; "),
        ('{"name": "mine"}', "there is no data set 'mine'", "Known data sets"),
        ('{"name": "gsm8k", "system": "S", "source": "/x"}',
         "gsm8k is built in and makes its own rows: it has no system",
         "DataSet(name='my-gsm8k', source='openai/gsm8k', ...)"),
        ('{"name": "addition", "source": "/x"}', "addition is built in and makes its own rows: it has no source",
         "DataSet(name=..., ...)"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_data_set_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        data.prepare(text, "/nowhere")
    assert caught.value.message == message
    assert hint in str(caught.value.hint)


def test_rows_are_as_many_as_the_catalog_says() -> None:
    assert BUILT_IN["addition"].rows == {"train": 2400, "test": 100}  # the others come from the Hub
