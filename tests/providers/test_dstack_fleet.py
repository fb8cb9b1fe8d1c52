import pytest
from dstack._internal.core.models.fleets import FleetConfiguration

from cloudrl.providers.dstack.fleet import Fleet, NodeRange

HOSTS = {"hosts": ["a", "b"], "user": "ubuntu", "identity_file": "~/.ssh/id_ed25519"}


def test_without_a_word_nothing_is_rented_before_a_run_asks_for_it():
    fleet = Fleet()
    assert fleet.name == "gpu-fleet"
    assert fleet.node_range == NodeRange(min=0, target=0, max=None)
    assert (fleet.idle_after, fleet.placed) == ("1h", "cluster")


@pytest.mark.parametrize(
    ("written", "low", "now", "most"),
    [
        (2, 0, 0, 2), ("2", 0, 0, 2), ("0..2", 0, 0, 2), ("..2", 0, 0, 2), ("1 .. 4", 1, 1, 4),
        ("2..2", 2, 2, 2), ("2..", 2, 2, None), ({"target": 2}, 0, 2, None), ({"min": 1, "max": 3}, 1, 1, 3),
        ({"min": 0, "target": 2, "max": 2}, 0, 2, 2),
    ],
)  # fmt: skip
def test_nodes_in_each_of_their_spellings(written, low, now, most):
    fleet = Fleet(nodes=written)
    assert fleet.node_range == fleet.replace(gpu="H100:8").node_range == NodeRange(low, now, most)


@pytest.mark.parametrize("text", ["0..2", "2..2", "1..", "..3"])
def test_a_range_means_to_dstack_what_it_means_to_us(text):
    theirs, ours = FleetConfiguration(nodes=text).nodes, NodeRange.parse(text)
    assert (theirs.min, theirs.target, theirs.max) == (ours.min, ours.target, ours.max)


def test_a_plain_number_is_fixed_to_dstack_and_a_limit_to_us():
    assert FleetConfiguration(nodes=2).nodes.min == 2
    assert Fleet(nodes=2).node_range.min == 0
    assert not Fleet(nodes=2).node_range.is_fixed


@pytest.mark.parametrize(
    ("fields", "placed"),
    [
        ({"nodes": 1}, None),
        ({"nodes": 2}, "cluster"),
        ({"nodes": "1.."}, "cluster"),
        ({"nodes": 4, "placement": "any"}, "any"),
        ({"nodes": 1, "placement": "cluster"}, "cluster"),
        ({"ssh_config": HOSTS}, "cluster"),
        ({"ssh_config": {**HOSTS, "hosts": ["a"]}}, None),
    ],
)
def test_several_machines_stand_together(fields, placed):
    assert Fleet(**fields).placed == placed


def test_ones_own_machines_are_not_given_back():
    fleet = Fleet(ssh_config=HOSTS)
    assert fleet.node_range is None
    assert fleet.idle_after is None
    assert Fleet(nodes="2..2").idle_after is None
    assert Fleet(nodes="2..4", idle_duration="off").idle_after == "off"
