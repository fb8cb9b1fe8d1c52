"""Data sets as they are declared: every wrong value has a message that names field, value and the nearest right one."""

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
