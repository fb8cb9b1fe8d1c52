from __future__ import annotations

import re

import pytest
from dstack._internal.core.models.common import EntityReference
from dstack._internal.core.services import is_valid_dstack_resource_name
from dstack._internal.utils.interpolator import VariablesInterpolator
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec.names import fleet_name, host_name, login, resource_name, secret_name

ANY = st.text(alphabet="aZ9-_./:@$ \n\u00e9", max_size=8)


def taken(check, value):
    try:
        return check(value) == value
    except SpecError:
        return False


@given(ANY | st.from_regex(r"[a-z][a-z0-9-]{1,45}", fullmatch=True))
def test_a_name_is_one_of_dstacks(value):
    assert taken(resource_name, value) == (is_valid_dstack_resource_name(value) and "\n" not in value)


@given(ANY)
def test_a_fleet_that_we_take_is_a_reference_to_dstack(value):
    if taken(fleet_name, value):
        assert EntityReference.parse(value).format() == value


def test_a_fleet_of_another_project():
    assert fleet_name("main/gpu-fleet") == "main/gpu-fleet"
    with pytest.raises(SpecError, match="is not a name; did you mean 'a-b-c'"):
        fleet_name("a/b/c")


@given(ANY | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True))
def test_a_secret_that_we_take_can_be_filled_in(value):
    if taken(secret_name, value):
        fill = VariablesInterpolator({"secrets": {value: "x"}}).interpolate_or_error
        assert fill(f"${{{{ secrets.{value} }}}}") == "x"
        assert re.fullmatch(r"[A-Za-z0-9-_]{1,200}", value)


@pytest.mark.parametrize(
    "value", ["10.0.0.1", "gpu-1", "gpu_1.example.com", "::1", "fd00::1", "GPU1", "1.example.com"]
)
def test_a_host_is_a_name_or_an_address(value):
    assert host_name(value) == value


@pytest.mark.parametrize(
    ("value", "guess"),
    [
        ("ubuntu@gpu-1", "; did you mean {hostname: gpu-1, user: ubuntu}?"),
        ("gpu-1:22", "; did you mean {hostname: gpu-1, port: 22}?"),
        ("ssh://ubuntu@gpu-1:22/", "; did you mean {hostname: gpu-1, user: ubuntu, port: 22}?"),
        ("-oProxyCommand=x", ""),
        ("a b", ""),
        ("", ""),
        ("a;b", ""),
        ("fe80::1%eth0", ""),
        ("${{ x }}", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_what_is_no_host_is_refused(value, guess):
    with pytest.raises(SpecError) as caught:
        host_name(value)
    assert caught.value.message == f"{value!r} is not a host name or an IP address{guess}"
    assert caught.value.hint


@pytest.mark.parametrize("value", ["-l", "a b", "", "a:b", None, "$(id)", "a\n"])
def test_what_is_no_login_is_refused(value):
    with pytest.raises(SpecError) as caught:
        login(value)
    assert caught.value.message == f"{value!r} is not the name of a user"
    assert login("DOMAIN\\user.name-1@x") == "DOMAIN\\user.name-1@x"
