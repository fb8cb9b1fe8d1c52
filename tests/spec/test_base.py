from __future__ import annotations

import copy
import pickle

import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, FrozenDict, Job


def cluster() -> Cluster:
    return Cluster(name="one", env={"A": "1"}, data=["gsm8k"])


def job() -> Job:
    return Job(name="one", overrides={"a.b": [1, "x y"], "+c": None}, env={"A": "1"})


@pytest.mark.parametrize("value", [cluster(), job()])
def test_a_spec_survives_copy_pickle_and_hash(value):
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert hash(copy.deepcopy(value)) == hash(value)


def test_nothing_in_a_spec_can_be_changed():
    made = cluster()
    with pytest.raises(ValueError, match="frozen"):
        made.nodes = 3
    with pytest.raises(TypeError, match="frozen"):
        made.env["B"] = "2"
    with pytest.raises(TypeError, match="frozen"):
        made.env.update(B="2")
    with pytest.raises(TypeError, match="frozen"):
        made.env |= {"B": "2"}
    assert made.data == ("gsm8k",)


def test_a_frozen_dict_is_a_dict():
    assert FrozenDict({"a": "b"}) == {"a": "b"}
    assert {**FrozenDict({"a": "b"}), "c": "d"} == {"a": "b", "c": "d"}


def test_load_takes_a_mapping():
    assert Cluster.load({"name": "one", "env": {"A": "1"}, "data": ["gsm8k"]}) == cluster()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1], "Cluster: expected fields with values, got [1]"),
        (None, "Cluster: expected fields with values, got None"),
        ({1: 2}, "Cluster: field name 1 is not text"),
    ],
)
def test_load_refuses_what_is_no_mapping(values, message):
    with pytest.raises(SpecError) as caught:
        Cluster.load(values)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "one", "gpus": "80GB:8"}, "Cluster: unknown field 'gpus'; did you mean 'gpu'?"),
        ({"name": "one", "zzzz": 1}, "Cluster: unknown field 'zzzz'"),
        ({}, "Cluster: field 'name' is missing"),
        ({"name": "one", "nodes": 0, "gpu": ""},
         "Cluster.nodes: 0 is not greater than or equal to 1\nCluster.gpu: '' is empty"),
    ],
)  # fmt: skip
def test_all_mistakes_are_reported_together_and_all_fields_listed(fields, message):
    with pytest.raises(SpecError) as caught:
        Cluster(**fields)
    assert caught.value.message == message
    assert caught.value.hint.startswith(
        "Fields of Cluster: name, nodes, " if "field" in message else "For example"
    )
    assert caught.value.exit_code == 2


def test_changed_gives_a_checked_copy():
    assert cluster().replace(nodes=2) == Cluster(name="one", env={"A": "1"}, data=["gsm8k"], nodes=2)
    with pytest.raises(SpecError, match="unknown field 'node'; did you mean 'nodes'"):
        cluster().replace(node=2)
