"""Questions to NCCL's monitor: fixed commands, on loopback alone, with an end."""

import time
from collections.abc import Callable, Iterator

import pytest
from patience import SLOWER
from ras_server import TEXT, RasServer, as_json

from cloudrl.hangs.ras import parse
from cloudrl.node.ras_client import ask, loopback

DIFFERS = as_json({0: {"AllReduce": 7}, 1: {"AllReduce": 6}})


@pytest.fixture
def serve() -> Iterator[Callable[..., RasServer]]:
    servers: list[RasServer] = []

    def serve_one(*args: object, **more: object) -> RasServer:
        servers.append(RasServer(*args, **more))  # type: ignore[arg-type]
        return servers[-1]

    yield serve_one
    for server in servers:
        server.close()


def test_it_asks_for_the_status_as_json_and_nothing_else(serve: Callable[..., RasServer]):
    server = serve(DIFFERS)
    mismatches, words = ask(f"localhost:{server.port}")
    assert (mismatches, words) == (parse(DIFFERS), DIFFERS)
    assert set(server.said) == {"client protocol 2", "timeout 2", "set format json", "verbose status"}


def test_before_2_28_the_answer_is_text(serve: Callable[..., RasServer]):
    server = serve(TEXT, has_json=False)
    assert ask(f"127.0.0.1:{server.port}") == (parse(TEXT), TEXT)


def test_a_process_that_is_stopped_and_one_of_other_communicators(serve: Callable[..., RasServer]):
    """They share the port; which of them a connection reaches is the kernel's choice."""
    port = serve(DIFFERS).port
    serve(as_json({0: {"AllReduce": 3}, 1: {"AllReduce": 3}}), port)
    serve("", port, is_stopped=True)
    began = time.monotonic()
    found = {mismatch for _ in range(3) for mismatch in ask(f"127.0.0.1:{port}")[0]}
    assert found == set(parse(DIFFERS))
    assert time.monotonic() - began < 30 * SLOWER


def test_another_server_on_that_port_is_not_asked_further(serve: Callable[..., RasServer]):
    server = serve(DIFFERS, greeting="220 mail.example ESMTP")
    assert ask(f"127.0.0.1:{server.port}") == ((), "")
    assert set(server.said) == {"client protocol 2"}


def test_nothing_listens(serve: Callable[..., RasServer]):
    server = serve("")
    server.close()
    assert ask(f"127.0.0.1:{server.port}") == ((), "")


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:28028",
        "example.org:28028",
        "0.0.0.0:28028",
        "127.0.0.1",
        "127.0.0.1:0",
        "localhost:70000",
        ":1",
        "[::]:1",
    ],
)
def test_only_loopback_is_asked(address: str):
    assert loopback(address) is None
    assert ask(address) == ((), "")


def test_addresses_as_nccl_takes_them():
    assert loopback("localhost:28028") == ("localhost", 28028)
    assert loopback("[::1]:5") == ("::1", 5)
