import copy
import pickle

import pytest

from cloudrl.errors import SpecError
from cloudrl.providers.dstack.fleet import Fleet
from cloudrl.spec import Cluster, FrozenDict, Job, Volume


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
    assert caught.value.hint.startswith("Fields of Cluster: name, nodes, " if "field" in message else "For example")


def test_changed_gives_a_checked_copy():
    assert cluster().replace(nodes=2) == Cluster(name="one", env={"A": "1"}, data=["gsm8k"], nodes=2)
    with pytest.raises(SpecError, match="unknown field 'node'; did you mean 'nodes'"):
        cluster().replace(node=2)


BASE = Cluster(name="one", env={"A": "1"}, dstack={"retry": {"duration": "4h"}, "priority": 5})


@pytest.mark.parametrize(
    ("assignments", "fields"),
    [
        (["gpu=H100:8"], {"gpu": "H100:8"}),
        (["nodes=2", "nodes=4"], {"nodes": 4}),
        (["gpu="], {"gpu": None}),
        (["env.B=x=y"], {"env": {"A": "1", "B": "x=y"}}),
        (["dstack.backends=[aws, gcp]"], {"dstack": {**BASE.dstack, "backends": ["aws", "gcp"]}}),
        (["dstack.retry.on_events=[error]"],
         {"dstack": {**BASE.dstack, "retry": {"duration": "4h", "on_events": ["error"]}}}),
        (["dstack.retry=false", "dstack.tags.no=on"],
         {"dstack": {"priority": 5, "retry": False, "tags": {"no": "on"}}}),
        (["dstack={max_price: 1e1}"], {"dstack": {"max_price": 10.0}}),
        (["volumes=[{instance_path: /a, path: /checkpoints}]"],
         {"volumes": [Volume(instance_path="/a", path="/checkpoints")]}),
    ],
)  # fmt: skip
def test_a_path_sets_what_the_field_would(assignments, fields):
    assert BASE.with_set(*assignments) == BASE.replace(**fields)
    assert BASE.dstack["priority"] == 5


def test_a_path_leads_into_nested_values():
    fleet = Fleet(nodes={"min": 1, "max": 4}).with_set("nodes.max=8", "ssh_config=")
    assert (fleet.node_range.min, fleet.node_range.max) == (1, 8)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("gpu", "'gpu' has no value"),
        ("gpus=8", "Cluster: unknown field 'gpus'; did you mean 'gpu'?"),
        ("backends=[aws]", "Cluster: unknown field 'backends'"),
        ("dsatck.backends=[aws]", "Cluster: unknown field 'dsatck'; did you mean 'dstack'?"),
        ("=1", "'=1' has an empty name in its path"),
        ("dstack..a=1", "'dstack..a=1' has an empty name in its path"),
        ("dstack.priority.a=1", "'dstack.priority.a=1': priority is 5, which has no 'a'"),
        ("nodes=two", "Cluster.nodes: 'two' is not a valid integer"),
        ("dstack.regions=[a", "dstack.regions=[a: expected ',' or ']', but got '<stream end>'"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused(assignment, message):
    with pytest.raises(SpecError) as caught:
        BASE.with_set(assignment)
    assert caught.value.message == message
