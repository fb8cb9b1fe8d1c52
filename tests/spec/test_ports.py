from dataclasses import astuple

import pytest
from dstack._internal.core.models.configurations import PortMapping
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.protocol.options import Ports
from cloudrl.protocol.options import parse_service as as_the_agent_reads
from cloudrl.spec import Cluster, Port
from cloudrl.spec.ports import all_ports, parse_service, port_texts

numbers = st.integers(1, 65535)


@given(st.one_of(numbers, numbers.map(str), st.tuples(numbers | st.just("*"), numbers).map("{0[0]}:{0[1]}".format)))
def test_a_port_means_to_dstack_what_it_means_to_us(value):
    ours = Port.parse(value)
    theirs = PortMapping.parse(str(ours))
    assert (theirs.local_port, theirs.container_port) == (ours.local, ours.container)
    assert PortMapping.parse(str(value)) == theirs
    assert Port.parse(str(ours)) == ours


def test_rays_and_the_agents_port_are_always_there_and_first():
    assert all_ports(()) == (Port(8265, 8265), Port(8266, 8266))
    assert all_ports((Port(1, 2), Port(9, 8266))) == (Port(8265, 8265), Port(9, 8266), Port(1, 2))
    assert port_texts([8265, "08080"]) == ("8265", "8080")


def test_two_ports_do_not_collide():
    assert port_texts(["*:6006", "*:6007"]) == ("*:6006", "*:6007")
    with pytest.raises(SpecError) as caught:
        port_texts(["7000:1", "7000:2"])
    assert caught.value.message == "local port 7000 is taken twice: by 1 and 2"
    with pytest.raises(SpecError, match="local port 8266 is taken twice: by 8266 and 9"):
        port_texts(["8266:9"])
    assert port_texts(["8266:9", "9266:8266"]) == ("8266:9", "9266:8266")


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


def test_every_port_of_ray_and_the_agent_is_refused() -> None:
    numbers = [port for each in astuple(Ports()) for port in (each if isinstance(each, tuple) else [each])]
    assert len(numbers) == 10
    for port in numbers:
        with pytest.raises(SpecError, match=f"port {port} belongs to"):
            parse_service(f"{port}:a")


@given(st.integers(1, 9999).filter(lambda port: port not in (6379, 8265, 8266)), st.text(min_size=1))
def test_the_agent_reads_what_is_kept(port: int, text: str) -> None:
    try:
        service = parse_service(f"{port}:{text}")
    except SpecError:
        return
    assert as_the_agent_reads(str(service)) == service
