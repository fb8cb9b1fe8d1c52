"""`--set a.b=YAML`: what it sets, and what it refuses."""

from __future__ import annotations

import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, Fleet, Volume

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
        ("slurm.partition=a", "Cluster: section 'slurm' is for a provider that cloudrl does not have yet"),
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
