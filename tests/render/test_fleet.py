"""Fleets as YAML, read by dstack's own models and judged by its server's rules."""

from pathlib import Path
from typing import Any

import dstack._internal.server.services.backends  # noqa: F401  first: dstack's modules import each other in a circle
import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from dstack._internal.core.models.fleets import FleetConfiguration
from dstack._internal.server.services import fleets as rules
from hostile import lines, names, tags
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.providers.dstack.fleet import Fleet
from cloudrl.providers.dstack.machine_files import fleet_to_dstack
from cloudrl.spec import Gpu
from cloudrl.spec.sizes import seconds_of

FEW = max(20, settings().max_examples // 2)

words = st.lists(lines, max_size=3)
keys = lines | st.sampled_from(["~/.ssh/id", "C:\\Users\\me\\id", "key with spaces", "~"])
hosts = st.sampled_from(["10.0.0.1", "gpu-1", "no", "1e3", "1.5", "0x1", "fd00::1", "null", "2024-01-01"])
ssh_fleets = st.builds(
    Fleet,
    name=names,
    ssh_config=st.fixed_dictionaries(
        {
            "user": st.sampled_from(["ubuntu", "no", "1000", "DOMAIN\\user", "a@b"]),
            "identity_file": keys,
            "hosts": st.lists(hosts | st.builds(lambda host: {"hostname": host, "blocks": 4}, hosts), min_size=1),
        },
        optional={"port": st.integers(1, 65535), "network": st.sampled_from(["10.0.0.0/24", "fd00::/8"])},
    ),
    placement=st.sampled_from([None, "any", "cluster"]),
    dstack=st.sampled_from([{}, {"blocks": "auto"}, {"blocks": 8}]),
)
cloud_fleets = st.builds(
    Fleet,
    name=names,
    nodes=st.sampled_from([None, 1, 4, "0..", "1..2", {"min": 0, "target": 2, "max": 2}, {"target": 3}]),
    placement=st.sampled_from([None, "any", "cluster"]),
    gpu=st.sampled_from([None, "H100:8", "80GB:1..8", "0", "amd:192GB"]),
    cpu=st.sampled_from([None, "8", "x86:8.."]),
    memory=st.sampled_from([None, "64GB..", "16GB"]),
    disk=st.sampled_from([None, "1TB", "..2TB"]),
    idle_duration=st.sampled_from([None, "off", 0, "30m", "3 d"]),
    dstack=st.fixed_dictionaries(
        {},
        optional={
            "backends": st.lists(st.sampled_from(["aws", "gcp", "nebius"])),
            "regions": words,
            "instance_types": words,
            "reservation": lines,
            "spot_policy": st.sampled_from(["spot", "on-demand", "auto"]),
            "max_price": st.floats(0.001, 1e6),
            "retry": st.sampled_from([False, True, {"on_events": ["no-capacity"], "duration": "2d"}]),
            "blocks": st.sampled_from(["auto", 2]),
            "tags": tags,
        },
    ),
)


def parsed(fleet: Fleet) -> FleetConfiguration:
    """As dstack reads it, after its server's rules for the two kinds of fleets."""
    configuration = parse_apply_configuration(yaml.safe_load(fleet_to_dstack(fleet)))
    assert isinstance(configuration, FleetConfiguration)
    rules._validate_fleet_configuration_subtype_specific_fields(configuration)
    return configuration


def assert_passed_on(theirs: FleetConfiguration, fields: dict[str, Any]) -> None:
    """What the user has written is to dstack what it would be in a file of its own."""
    plain = FleetConfiguration.model_validate(fields)
    for name in fields:
        assert getattr(theirs, name) == getattr(plain, name), name


@settings(max_examples=FEW)
@given(cloud_fleets)
def test_a_rented_fleet_means_to_dstack_what_it_means_to_us(fleet):
    theirs, nodes = parsed(fleet), fleet.node_range
    assert theirs.name == fleet.name
    assert (theirs.nodes.min, theirs.nodes.target, theirs.nodes.max) == (nodes.min, nodes.target, nodes.max)
    assert (theirs.placement and theirs.placement.value) == fleet.placed
    if fleet.idle_after is not None:  # dstack's default, without effect: nothing is ever given back
        assert theirs.idle_duration == (-1 if fleet.idle_after == "off" else seconds_of(fleet.idle_after))
    assert_passed_on(theirs, dict(fleet.dstack))
    assert_same_resources(theirs, fleet)


def assert_same_resources(theirs: FleetConfiguration, fleet: Fleet) -> None:
    parts = {"gpu": fleet.gpu, "cpu": fleet.cpu, "memory": fleet.memory, "disk": fleet.disk_asked}
    wanted = {name: str(value) for name, value in parts.items() if value}
    if not wanted:
        assert theirs.resources is None
        return
    plain = FleetConfiguration.model_validate({"nodes": 1, "resources": wanted}).resources
    assert theirs.resources == plain
    if fleet.gpu:
        count = Gpu.parse(fleet.gpu).count
        assert (theirs.resources.gpu.count.min, theirs.resources.gpu.count.max) == (
            (count.min, count.max) if count else (1, None)
        )


@settings(max_examples=FEW)
@given(ssh_fleets)
def test_a_fleet_of_ones_own_means_to_dstack_what_it_means_to_us(fleet):
    theirs = parsed(fleet)
    assert theirs.name == fleet.name
    assert (theirs.placement and theirs.placement.value) == fleet.placed
    assert_passed_on(theirs, {"ssh_config": fleet.ssh_config, **fleet.dstack})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ssh_config": {"user": "ubuntu"}}, "ssh_config.hosts: Field required"),
        ({"ssh_config": {"hosts": ["a"], "key": "x"}}, "ssh_config.key: dstack knows no 'key' of a fleet"),
        ({"dstack": {"spot_policy": "spt"}}, "dstack.spot_policy: 'spt': Input should be 'spot', "),
        ({"dstack": {"regoins": ["a"]}},
         "dstack.regoins: dstack knows no 'regoins' of a fleet; did you mean 'regions'?"),
        ({"nodes": {"min": 3, "max": 2}}, "nodes: "),
        ({"nodes": {"minimum": 1}}, "nodes.minimum: dstack knows no 'minimum' of a fleet"),
        ({"gpu": "8xGB"}, "resources.gpu"),
        ({"memory": "512G"}, "Fleet.memory: '512G' is not a size; did you mean '512GB'?"),
        ({"disk": 500}, "Fleet.disk: '500' has no unit"),
        ({"idle_duration": 5}, "Fleet.idle_duration: '5' has no unit"),
        ({"placement": "clustered"}, "placement: 'clustered': Input should be 'any' or 'cluster'"),
        ({"idle_duration": "1 hour"}, "idle_duration: '1 hour': Cannot parse the duration 1 hour"),
        ({"dstack": {"nodes": 2}}, "dstack.nodes: cloudrl writes 'nodes' itself"),
    ],
)  # fmt: skip
def test_what_dstack_refuses_is_refused_with_its_field(fields, message):
    with pytest.raises(SpecError) as caught:
        fleet_to_dstack(Fleet(**fields))
    assert caught.value.message.startswith(message)


GOLDEN = {
    "fleet": Fleet(),
    "fleet-cloud": Fleet(
        name="fleet-cloud",
        nodes="1..4",
        gpu="A100,H100:80GB:8",
        cpu="x86:64..",
        memory="512GB..",
        disk="1TB..",
        idle_duration="30m",
        dstack={
            "backends": ["aws", "gcp"],
            "regions": ["us-east-1"],
            "availability_zones": ["us-east-1a"],
            "instance_types": ["p5.48xlarge"],
            "reservation": "cr-0123",
            "spot_policy": "spot",
            "max_price": 98.5,
            "retry": {"on_events": ["no-capacity", "interruption", "error"], "duration": "2h"},
            "blocks": "auto",
            "tags": {"team": "rl"},
        },
    ),
    "fleet-ssh": Fleet(
        name="fleet-ssh",
        ssh_config={
            "user": "ubuntu",
            "port": 2222,
            "identity_file": "~/.ssh/id_ed25519",
            "proxy_jump": {"hostname": "jump.example.com", "user": "me", "identity_file": "~/.ssh/jump"},
            "hosts": [
                {"hostname": "192.168.0.10", "internal_ip": "10.0.0.10"},
                {"hostname": "192.168.0.11", "port": 22, "user": "root", "internal_ip": "10.0.0.11", "blocks": 4},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_bytes(name, golden, repository: Path):
    golden(repository / "tests" / "golden" / f"{name}.dstack.yml", fleet_to_dstack(GOLDEN[name]))
    assert fleet_to_dstack(GOLDEN[name]) == fleet_to_dstack(GOLDEN[name].replace())
    parsed(GOLDEN[name])


@pytest.mark.parametrize(
    ("fields", "rendered", "comment"),
    [
        ({}, "nodes: 0..", "None before a run needs it; given back after 1h without a run."),
        ({"nodes": 2}, "nodes: 0..2",
         "None before a run needs it, at most 2 together; given back after 1h without a run."),
        ({"nodes": "1..", "idle_duration": "off"}, "nodes: 1..", "1 at once; never given back (1 always stays)."),
        ({"nodes": "2..2"}, "nodes: 2", "A fixed number: rented at once, and paid for until the fleet is deleted."),
    ],
)  # fmt: skip
def test_the_comment_says_what_the_nodes_cost(fields, rendered, comment):
    assert f"# {comment}\n{rendered}\n" in fleet_to_dstack(Fleet(**fields))
