"""Fleets as YAML, read by dstack's own models and judged by its server's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dstack._internal.server.services.backends  # noqa: F401  first: dstack's modules import each other in a circle
import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from dstack._internal.core.models.fleets import FleetConfiguration, SSHHostParams, SSHProxyParams
from dstack._internal.server.services import fleets as rules
from hostile import lines, names, tags
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.render import fleet_to_dstack
from cloudrl.spec import Duration, Fleet, Gpu, SshConfig, SshHost, SshProxy

FEW = max(20, settings().max_examples // 2)


def takes(field: str) -> Any:
    def check(value: Any) -> bool:
        try:
            Fleet(**{field: value})
        except SpecError:
            return False
        return True

    return check


words = st.lists(lines.filter(lambda text: takes("regions")([text])), max_size=3, unique=True)
hosts = st.sampled_from(["10.0.0.1", "gpu-1", "no", "1e3", "1.5", "0x1", "fd00::1", "null", "2024-01-01"])
users = st.sampled_from(["ubuntu", "no", "1000", "DOMAIN\\user", "a@b"])
keys = lines.filter(
    lambda text: takes("ssh_config")({"hosts": ["a"], "user": "u", "identity_file": text})
) | st.sampled_from(["~/.ssh/id", "C:\\Users\\me\\id", "key with spaces", "~"])
proxies = st.none() | st.fixed_dictionaries(
    {"hostname": hosts, "user": users, "identity_file": keys}, optional={"port": st.integers(1, 65535)}
)
ssh_hosts = hosts | st.fixed_dictionaries(
    {"hostname": hosts},
    optional={
        "port": st.integers(1, 65535),
        "user": users,
        "identity_file": keys,
        "proxy_jump": proxies,
        "blocks": st.sampled_from(["auto", 1, 4]),
    },
)
ssh_fleets = st.builds(
    lambda name, config, more: Fleet(name=name, ssh_config=config, **more),
    names,
    st.fixed_dictionaries(
        {
            "hosts": st.lists(
                ssh_hosts,
                min_size=1,
                max_size=3,
                unique_by=lambda host: host if isinstance(host, str) else host["hostname"],
            ),
            "user": users,
            "identity_file": keys,
        },
        optional={
            "port": st.integers(1, 65535),
            "proxy_jump": proxies,
            "network": st.sampled_from(["10.0.0.0/24", "fd00::/8"]),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "placement": st.sampled_from(["any", "cluster"]),
            "blocks": st.sampled_from(["auto", 1, 8]),
        },
    ),
)
cloud_fleets = st.builds(
    lambda fields: Fleet(**fields),
    st.fixed_dictionaries(
        {"name": names},
        optional={
            "nodes": st.sampled_from([1, 4, "0..", "1..2", {"min": 0, "target": 2, "max": 2}, {"target": 3}]),
            "placement": st.sampled_from(["any", "cluster"]),
            "gpu": st.sampled_from(["H100:8", "80GB:1..8", "0", "amd:192GB"]),
            "cpu": st.sampled_from(["8", "x86:8.."]),
            "memory": st.sampled_from(["64GB..", 16]),
            "disk": st.sampled_from(["1TB", "..2TB"]),
            "backends": st.sets(st.sampled_from(["aws", "gcp", "nebius"])).map(sorted),
            "regions": words,
            "availability_zones": words,
            "instance_types": words,
            "reservation": lines.filter(takes("reservation")),
            "spot_policy": st.sampled_from(["spot", "on-demand", "auto"]),
            "max_price": st.floats(0.001, 1e6),
            "idle_duration": st.sampled_from(["off", 0, "30m", "3 d"]),
            "retry": st.sampled_from([False, "1h", {"on_events": ["no-capacity"], "duration": "2d"}]),
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
    if configuration.ssh_config is not None:
        rules._validate_internal_ips(configuration.ssh_config)
    return configuration


def values(items: Any) -> tuple[str, ...]:
    return tuple(str(getattr(item, "value", item)) for item in items or ())


@settings(max_examples=FEW)
@given(cloud_fleets)
def test_a_rented_fleet_means_to_dstack_what_it_means_to_us(fleet):
    theirs, nodes = parsed(fleet), fleet.node_range
    assert theirs.name == fleet.name
    assert (theirs.nodes.min, theirs.nodes.target, theirs.nodes.max) == (nodes.min, nodes.target, nodes.max)
    assert (theirs.placement and theirs.placement.value) == fleet.placed
    assert theirs.idle_duration == (
        -1 if fleet.idle_after == "off" else Duration.parse(fleet.idle_after).seconds
    )
    for name in ("backends", "regions", "availability_zones", "instance_types"):
        assert values(getattr(theirs, name)) == getattr(fleet, name), name
    for name in ("reservation", "max_price", "blocks"):
        assert getattr(theirs, name) == getattr(fleet, name), name
    assert (theirs.spot_policy and theirs.spot_policy.value) == fleet.spot_policy
    assert (theirs.tags or {}) == fleet.tags
    if fleet.retry:
        assert values(theirs.retry.on_events) == fleet.retry.on_events
        assert theirs.retry.duration == Duration.parse(fleet.retry.duration).seconds
    else:
        assert theirs.retry is fleet.retry
    assert_same_resources(theirs, fleet)


def assert_same_resources(theirs: FleetConfiguration, fleet: Fleet) -> None:
    wanted = {
        name: str(getattr(fleet, name)) for name in ("gpu", "cpu", "memory", "disk") if getattr(fleet, name)
    }
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


def as_dstacks(host: SshHost) -> SSHHostParams | str:
    options = ("port", "user", "identity_file", "internal_ip", "blocks")
    given_ = {name: getattr(host, name) for name in options if getattr(host, name) is not None}
    if host.proxy_jump:
        given_["proxy_jump"] = proxy(host.proxy_jump)
    return SSHHostParams(hostname=host.hostname, **given_) if given_ else host.hostname


def proxy(ours: SshProxy | None) -> SSHProxyParams | None:
    return ours and SSHProxyParams(
        hostname=ours.hostname, user=ours.user, identity_file=ours.identity_file, port=ours.port
    )


@settings(max_examples=FEW)
@given(ssh_fleets)
def test_a_fleet_of_ones_own_means_to_dstack_what_it_means_to_us(fleet):
    theirs, ours = parsed(fleet), fleet.ssh_config
    assert (theirs.name, theirs.blocks) == (fleet.name, fleet.blocks)
    assert (theirs.placement and theirs.placement.value) == fleet.placed
    for name in ("user", "port", "identity_file", "network"):
        assert getattr(theirs.ssh_config, name) == getattr(ours, name), name
    assert theirs.ssh_config.proxy_jump == proxy(ours.proxy_jump)
    assert theirs.ssh_config.hosts == [as_dstacks(host) for host in ours.hosts]


GOLDEN = {
    "fleet": Fleet(),
    "fleet-cloud": Fleet(
        name="fleet-cloud",
        nodes="1..4",
        gpu="A100,H100:80GB:8",
        cpu="x86:64..",
        memory="512GB..",
        disk="1TB..",
        backends=["aws", "gcp"],
        regions=["us-east-1"],
        availability_zones=["us-east-1a"],
        instance_types=["p5.48xlarge"],
        reservation="cr-0123",
        spot_policy="spot",
        max_price=98.5,
        idle_duration="30m",
        retry="2h",
        blocks="auto",
        tags={"team": "rl"},
    ),
    "fleet-ssh": Fleet(
        name="fleet-ssh",
        ssh_config=SshConfig(
            user="ubuntu",
            port=2222,
            identity_file="~/.ssh/id_ed25519",
            proxy_jump=SshProxy(hostname="jump.example.com", user="me", identity_file="~/.ssh/jump"),
            hosts=[
                SshHost(hostname="192.168.0.10", internal_ip="10.0.0.10"),
                SshHost(hostname="192.168.0.11", internal_ip="10.0.0.11", user="root", port=22, blocks=4),
            ],
        ),
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


# What dstack has and a fleet does not, and why.
LEFT_OUT = {
    "env": "variables of dstack's own program on the hosts; a cluster's are in its env",
    "backend_options": "one of its own for each backend",
    "type": "always fleet",
    "resources": "its parts stand beside the other fields, as in a cluster",
}


def test_a_fleet_has_every_field_of_dstacks_but_these():
    assert set(FleetConfiguration.model_fields) - set(Fleet.model_fields) == set(LEFT_OUT)
    assert set(Fleet.model_fields) - set(FleetConfiguration.model_fields) == {"gpu", "cpu", "memory", "disk"}
