"""Data sets as they are declared: every wrong value has a message that names field, value and the nearest right one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, DataSet, data_argument


def mine(**fields):
    return DataSet(**{"name": "mine", "source": "owner/name", **fields})


def test_a_cluster_takes_names_descriptions_and_mappings():
    described = mine(prompt_field="question", answer_field="answer")
    cluster = Cluster(name="one", data=["gsm8k", "owner/other", "/data/x.csv", described])
    assert cluster.data == ("gsm8k", "owner/other", "/data/x.csv", described)
    mapping = {"name": "mine", "source": "owner/name", "prompt_field": "question", "answer_field": "answer"}
    assert Cluster.load({"name": "one", "data": [mapping]}).data == (described,)
    assert hash(cluster)
    assert cluster.replace(nodes=2).data == cluster.data


def test_one_argument_carries_what_was_said():
    assert data_argument("gsm8k") == "gsm8k"
    assert DataSet(name="gsm8k").argument() == "gsm8k"
    assert DataSet(name="owner/name", skip_bad=False, split=None).argument() == "owner/name"
    text = mine(system="Antworte kurz.\n“ü”", test_rows=7, skip_bad=True).argument()
    assert json.loads(text) == {
        "name": "mine", "source": "owner/name", "system": "Antworte kurz.\n“ü”", "test_rows": 7, "skip_bad": True,
    }  # fmt: skip
    assert "ü" in text
    assert "\n" not in text


WRONG = [
    ("name", "my data", "'my data' is not the name of a data set; did you mean 'my-data'?"),
    ("name", "-x", "'-x' is not the name of a data set; did you mean 'x'?"),
    ("name", "a/b/c", "'a/b/c' is not the name of a data set; did you mean 'a-b-c'?"),
    ("name", "hf://datasets/a/b", "'hf://datasets/a/b' is not the name of a data set; did you mean 'a/b'?"),
    ("name", 7, "7 is not the name of a data set; did you mean '7', in quotes?"),
    ("name", "/data/../x", "'/data/../x' has '..' in it"),
    ("source", "https://huggingface.co/datasets/a/b", "is an address; did you mean 'a/b'?"),
    ("source", "hf://datasets/a/b", "'hf://datasets/a/b' is an address; did you mean 'a/b'?"),
    ("source", "datasets/a/b/tree/main", "'datasets/a/b/tree/main' is an address; did you mean 'a/b'?"),
    ("source", "./x.csv", "'./x.csv' is not an absolute path"),
    ("source", "data/x.csv", "'data/x.csv' is not an absolute path"),
    ("source", "~/x", "'~/x' is not an absolute path"),
    ("source", "gsm 8k", "'gsm 8k' is not the name of a data set; did you mean 'gsm8k'?"),
    ("source", "", "'' is not the name of a data set"),
    ("source", 7, "7 is not the name of a data set"),
    ("prompt_field", "a..b", "'a..b' is not a field"),
    ("prompt_field", "", "'' is not a field"),
    ("prompt_field", "a\nb", "'a\\nb' is not a field"),
    ("answer_field", ".a", "'.a' is not a field"),
    ("answer_field", ["a"], "['a'] is not a field"),
    ("system", " \n", "' \\n' is empty"),
    ("system", "a\0", "'a\\x00' holds a NUL character"),
    ("system", 7, "7 is not text"),
    ("config", "", "'' is empty"),
    ("config", ["main"], "['main'] is not text"),
    ("split", "train[:10%]", "'train[:10%]' is not the name of a split"),
    ("split", "", "'' is not the name of a split"),
    ("test_split", "a b", "'a b' is not the name of a split"),
    ("test_rows", 0, "0 is not a number of rows"),
    ("test_rows", "48", "'48' is not a number of rows; did you mean 48?"),
    ("test_rows", True, "True is not a number of rows"),
    ("test_rows", 0.1, "0.1 is not a number of rows"),
    ("data_source", "", "'' is empty"),
    ("data_source", 7, "7 is not text"),
    ("skip_bad", "true", "'true' is neither True nor False; did you mean 'True'?"),
    ("skip_bad", 1, "1 is neither True nor False"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_wrong_value_is_refused_with_its_field(field, value, message):
    with pytest.raises(SpecError) as caught:
        mine(**{field: value})
    assert caught.value.message.startswith(f"DataSet.{field}: ")
    assert caught.value.message.endswith(message)


def test_each_field_has_a_test_of_a_wrong_value():
    assert {field for field, _, _ in WRONG} == set(DataSet.model_fields)


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"name": "gsm9k"}, "there is no data set 'gsm9k'; did you mean 'gsm8k'?", "owner/name"),
        ({"name": "mine"}, "there is no data set 'mine'", "an absolute path of the nodes"),
        (
            {"name": "math", "system": "S", "test_rows": 7},
            "'math' is built in and makes its own rows, so it has no system, test_rows",
            "name='my-math'",
        ),
        (
            {"name": "addition", "source": "/x"},
            "'addition' is built in and makes its own rows, so it has no source",
            "",
        ),
        (
            {"name": "a/b", "test_rows": 7, "test_split": "test"},
            "test_rows 7 and test_split 'test' exclude each other",
            "leave one of the two out",
        ),
        (
            {"name": "a/b", "test_split": "train"},
            "test_split 'train' is the split that is trained on",
            "test_rows=",
        ),
        (
            {"name": "a/b", "split": "x", "test_split": "x"},
            "test_split 'x' is the split that is trained on",
            "",
        ),
        ({"source": "a/b"}, "field 'name' is missing", "Fields of DataSet: name, source, prompt_field"),
        (
            {"name": "a/b", "promt_field": "q"},
            "unknown field 'promt_field'; did you mean 'prompt_field'?",
            "",
        ),
    ],
)
def test_fields_that_do_not_go_together(fields, message, hint):
    with pytest.raises(SpecError) as caught:
        DataSet(**fields)
    assert caught.value.message == f"DataSet: {message}"
    assert hint in str(caught.value.hint)


def test_a_cluster_says_which_data_set_is_wrong():
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", data=["gsm8k", {"name": "mine", "source": "x"}])
    assert caught.value.message == "Cluster.data: DataSet.source: 'x' is not the name of a data set"
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", data=["a/b", DataSet(name="a/b", system="S")])
    assert caught.value.message == "Cluster.data: 'a/b' stands twice"
    with pytest.raises(SpecError, match="is not a list"):
        Cluster(name="one", data=mine())


@given(st.text() | st.integers() | st.none() | st.lists(st.text(), max_size=2))
def test_any_value_is_taken_or_refused_with_a_message(value):
    for field in DataSet.model_fields:
        try:
            mine(**{field: value})
        except SpecError as error:
            assert "DataSet" in error.message  # noqa: PT017
