"""Machines of one's own, and the same values read by dstack's own models."""

from __future__ import annotations

import pytest
from dstack._internal.core.models.fleets import SSHHostParams, SSHParams
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec import SshConfig, SshHost, SshProxy

BASE = {"hosts": ["a", "b"], "user": "ubuntu", "identity_file": "~/.ssh/id"}
PROXY = {"hostname": "jump", "user": "me", "identity_file": "~/.ssh/jump"}


@given(st.ip_addresses().map(str))
def test_an_internal_address_is_one_that_dstack_takes(address):
    try:
        kept = SshHost(hostname="a", internal_ip=address).internal_ip
    except SpecError as error:
        assert "is not a private address" in error.message  # noqa: PT017
        with pytest.raises(ValueError, match="not private"):
            SSHHostParams(hostname="a", internal_ip=address)
        return
    assert SSHHostParams(hostname="a", internal_ip=kept).internal_ip == kept


@pytest.mark.parametrize("network", ["10.0.0.0/8", "192.168.1.5/24", "fd00::/8"])
def test_a_network_is_one_that_dstack_takes(network):
    assert SSHParams(hosts=["a"], network=SshConfig(**BASE, network=network).network).network == network


WRONG = [
    ("hosts", "gpu-1", "'gpu-1' is one text where a list is expected; write ['gpu-1']"),
    ("hosts", [], "there is no host"),
    ("hosts", ["me@gpu-1"],
     "SshHost.hostname: 'me@gpu-1' is not a host name or an IP address; did you mean {hostname: gpu-1, user: me}?"),
    ("hosts", ["a", "a"], "'a' stands twice"),
    ("hosts", [{"host": "a"}],
     "SshHost: field 'hostname' is missing\nSshHost: unknown field 'host'; did you mean 'hostname'?"),
    ("hosts", [7], "SshHost: expected fields with values, got 7"),
    ("user", "-l root", "'-l root' is not the name of a user"),
    ("port", "22", "'22' is not a port"),
    ("port", 70000, "70000 is not a port"),
    ("identity_file", "~/.ssh/id.pub", "'~/.ssh/id.pub' is a public key; did you mean '~/.ssh/id'?"),
    ("identity_file", "", "'' is empty"),
    ("network", "10.0.0.5", "'10.0.0.5' is one address, not a network"),
    ("network", "8.8.8.0/24", "'8.8.8.0/24' is not a private network"),
    ("network", "eth0", "'eth0' is not a network"),
    ("proxy_jump", "me@jump", "SshProxy: expected fields with values, got 'me@jump'"),
    ("proxy_jump", {"hostname": "jump", "user": "me"}, "SshProxy: field 'identity_file' is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_wrong_value_is_refused_with_its_field(field, value, message):
    with pytest.raises(SpecError) as caught:
        SshConfig(**{**BASE, field: value})
    assert caught.value.message == f"SshConfig.{field}: {message}"


WRONG_HOST = [
    ("hostname", "-oProxyCommand=id", "'-oProxyCommand=id' is not a host name or an IP address"),
    ("port", 0, "0 is not a port"),
    ("user", "a b", "'a b' is not the name of a user"),
    ("identity_file", "a\nb", "'a\\nb' holds a line break or a control character"),
    ("proxy_jump", {**PROXY, "port": -1}, "SshProxy.port: -1 is not a port"),
    ("internal_ip", "8.8.8.8", "'8.8.8.8' is not a private address"),
    ("internal_ip", "10.0.0", "'10.0.0' is not an IP address"),
    ("blocks", "auto8", "'auto8' is not a number of blocks"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG_HOST)
def test_a_wrong_option_of_a_host_is_refused_with_its_field(field, value, message):
    with pytest.raises(SpecError) as caught:
        SshHost(**{"hostname": "a", field: value})
    assert caught.value.message == f"SshHost.{field}: {message}"


WRONG_PROXY = [
    ("hostname", "jump:22",
     "'jump:22' is not a host name or an IP address; did you mean {hostname: jump, port: 22}?"),
    ("user", None, "None is not the name of a user"),
    ("identity_file", 7, "7 is not text"),
    ("port", "ssh", "'ssh' is not a port"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), WRONG_PROXY)
def test_a_wrong_value_of_a_proxy_is_refused_with_its_field(field, value, message):
    with pytest.raises(SpecError) as caught:
        SshProxy(**{**PROXY, field: value})
    assert caught.value.message == f"SshProxy.{field}: {message}"


def test_each_field_has_a_test_of_a_wrong_value():
    for table, kind in ((WRONG, SshConfig), (WRONG_HOST, SshHost), (WRONG_PROXY, SshProxy)):
        assert {field for field, _, _ in table} == set(kind.model_fields)


def wrong(**fields: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        SshConfig(**{**BASE, **fields})
    return caught.value


def test_each_host_needs_a_user_and_a_key():
    assert wrong(user=None).message == "SshConfig: there is no user for host 'a'"
    error = wrong(identity_file=None, hosts=[{"hostname": "a", "identity_file": "x"}, "b"])
    assert error.message == "SshConfig: there is no identity_file for host 'b'"
    assert error.hint == "identity_file: ~/.ssh/id_ed25519"
    assert SshConfig(hosts=[{"hostname": "a", "user": "u", "identity_file": "k"}]).user is None


def test_internal_addresses_are_given_for_all_or_none_and_without_a_network():
    inside = [{"hostname": "a", "internal_ip": "10.0.0.1"}, {"hostname": "b", "internal_ip": "10.0.0.2"}]
    assert (
        wrong(hosts=[inside[0], "b"]).message
        == "SshConfig: internal_ip is given for some hosts and not for b"
    )
    error = wrong(hosts=inside, network="10.0.0.0/24")
    assert error.message == "SshConfig: network '10.0.0.0/24' and the hosts' internal_ip exclude each other"
    assert SshConfig(**{**BASE, "hosts": inside}).hosts[1].internal_ip == "10.0.0.2"


def test_one_machine_may_stand_twice_behind_two_ports():
    hosts = [{"hostname": "gate", "port": 2201}, {"hostname": "gate", "port": 2202}]
    assert len(SshConfig(**{**BASE, "hosts": hosts}).hosts) == 2
