import pytest
from dstack._internal.core.models.configurations import PortMapping
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec import Port
from cloudrl.spec.ports import all_ports, port_texts

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
