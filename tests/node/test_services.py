"""Reading `PORT:COMMAND`; whole nodes with services are in `test_cluster_services.py`."""

import pytest

from cloudrl.errors import InputError
from cloudrl.node.timeouts import PhaseTimeouts
from cloudrl.protocol.options import AgentOptions, Service, parse_service


@pytest.mark.parametrize(
    ("text", "service"),
    [
        ("8000:bash launch.sh", Service(8000, "bash launch.sh")),
        ("1:a", Service(1, "a")),
        ("65535:curl http://x:80/y", Service(65535, "curl http://x:80/y")),
        ("8000: a\nb ", Service(8000, " a\nb ")),
    ],
)
def test_a_port_and_a_command(text: str, service: Service) -> None:
    assert parse_service(text) == service


@pytest.mark.parametrize("text", ["", "8000", "8000:", "8000: ", ":a", "0:a", "65536:a", "-1:a", "٨:a", "bash x"])
def test_neither_port_nor_command(text: str) -> None:
    with pytest.raises(InputError, match=r"is not PORT:COMMAND, for example '8000:bash launch.sh'"):
        parse_service(text)


def test_services_keep_their_order_and_have_time_to_load() -> None:
    options = AgentOptions.from_argv(["--service=8001:b", "--service=8000:a", "--fetch-timeout-s=7"])
    assert options.services == (Service(8001, "b"), Service(8000, "a"))
    without = AgentOptions.from_argv(["--fetch-timeout-s=7"])
    assert PhaseTimeouts(options).phases["fetch"] == PhaseTimeouts(without).phases["fetch"] + 7
