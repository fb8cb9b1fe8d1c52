"""What a cluster's `services` may be."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.protocol.options import Ports
from cloudrl.protocol.options import parse_service as as_the_agent_reads
from cloudrl.spec import Cluster
from cloudrl.spec.ports import parse_service


def refusal(services: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Cluster.load({"name": "one", "services": services})
    plain = ("is not a list", "list is expected", "is empty")
    assert caught.value.hint or any(words in caught.value.message for words in plain)
    return caught.value


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("8000:bash launch.sh", "8000:bash launch.sh"),
        (" 8000 : bash launch.sh ", "8000:bash launch.sh"),
        ("08000:a:b", "8000:a:b"),
        ("8000:cd /x &&\n  bash y", "8000:cd /x &&\n  bash y"),
    ],
)
def test_a_port_and_a_command(written: str, kept: str) -> None:
    assert Cluster(name="one", services=[written]).services == (kept,)


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ("8000:a", "'8000:a' is one text where a list is expected; write ['8000:a']"),
        ({8000: "a"}, "{8000: 'a'} is not a list"),
        (["bash launch.sh"], "'bash launch.sh' is not a service"),
        ([8000], "8000 is not a service"),
        (["x:a"], "'x:a' is not a service"),
        (["8000: "], "a command is empty"),
        (["0:a"], "0 is not a port"),
        (["65536:a"], "65536 is not a port"),
        (["8265:a"], "'8265:a': port 8265 belongs to Ray's dashboard"),
        (["8266:a"], "'8266:a': port 8266 belongs to the node agent"),
        (["20500:a"], "'20500:a': port 20500 belongs to Ray's workers"),
        (["10999:a"], "'10999:a': port 10999 belongs to dstack's runner"),
        (["8000:a", "8001:b", "8000:c"], "two services have port 8000"),
    ],
)
def test_what_is_none(services: object, message: str) -> None:
    assert refusal(services).message == f"Cluster.services: {message}"


def test_every_port_of_ray_and_the_agent_is_refused() -> None:
    ports = Ports()
    numbers = [port for each in astuple(ports) for port in (each if isinstance(each, tuple) else [each])]
    assert len(numbers) == 10
    for port in numbers:
        assert "belongs to" in refusal([f"{port}:a"]).message


@given(st.integers(1, 9999).filter(lambda port: port not in (6379, 8265, 8266)), st.text(min_size=1))
def test_the_agent_reads_what_is_kept(port: int, text: str) -> None:
    try:
        service = parse_service(f"{port}:{text}")
    except SpecError:
        return
    assert as_the_agent_reads(str(service)) == service
