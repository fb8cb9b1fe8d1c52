"""The agent's calls for debuggers: who may reach which port, and through which nodes."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator

import pytest
from patience import SLOWER
from server_harness import TOKEN, Served
from small_server import serving

from cloudrl.errors import InputError
from cloudrl.node.relay import MAX_RELAYS
from cloudrl.node.stop_hook.stop_notes import started_at
from cloudrl.node.stops import Stops
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.routes import UPGRADE

pytestmark = pytest.mark.io


@pytest.fixture(scope="module")
def debugger() -> Iterator[int]:
    """Greets a client at once, as debugpy does, and says in capitals what it hears; its port."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"welcome ")
        while heard := connection.recv(4096):
            connection.sendall(heard.upper())
        connection.sendall(b" bye")

    with serving(answer) as port:
        yield port


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, debugger: int) -> Iterator[list[Served]]:
    """Rank 0 knows rank 1; a stop on rank 1 alone."""
    served = [Served(tmp_path_factory.mktemp(f"rank{rank}"), rank) for rank in (0, 1)]
    for each in served:
        each.agent.stops = Stops(each.folder / "run", each.rank, belongs=lambda: {os.getpid()})
        each.agent.stops.prepare({})
    served[0].state.record_heartbeat(served[1].state.own)
    me = {"id": "x-1", "pid": os.getpid(), "started": started_at(os.getpid()), "since": time.time()}
    (served[1].folder / "run" / "stops-1" / "x-1.json").write_text(json.dumps({**me, "port": debugger}))
    yield served
    for each in served:
        each.close()


def client(served: Served) -> AgentClient:
    return AgentClient(f"http://127.0.0.1:{served.port}", TOKEN)


def read(connection: socket.socket, count: int) -> bytes:
    return connection.recv(count, socket.MSG_WAITALL)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_relay_and_one_that_is_passed_on(nodes: list[Served], debugger: int, asked: int):
    api = client(nodes[asked])
    [stop] = api.stops(1)
    assert (stop.node, stop.port) == (1, debugger)
    with api.relay(1, stop.port) as connection:
        assert read(connection, 8) == b"welcome "
        connection.sendall(b"hello")
        assert read(connection, 5) == b"HELLO"
        assert api.stops(1)[0].attached
        connection.shutdown(socket.SHUT_WR)
        assert read(connection, 100) == b" bye"


def test_a_port_that_nobody_waits_at(nodes: list[Served], debugger: int):
    assert client(nodes[0]).stops(0) == ()
    for rank, port in ((0, debugger), (0, nodes[0].port), (1, nodes[1].port), (1, 22), (1, 0), (1, 99_999)):
        with pytest.raises(InputError, match=f"no process waits for a debugger at port {port}"):
            client(nodes[0]).relay(rank, port)
        answer = nodes[0].call("POST", f"/v1/nodes/{rank}/tcp/{port}", headers=dict(UPGRADE))
        assert (answer.status, answer.json()["code"]) == (403, "no_debugger")


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_the_token_nothing_is_told(nodes: list[Served], debugger: int, token: str | None):
    for port in (debugger, 22):
        answer = nodes[0].call("POST", f"/v1/nodes/1/tcp/{port}", token=token, headers=dict(UPGRADE))
        assert answer.status == 401


def test_what_does_not_ask_for_an_upgrade(nodes: list[Served], debugger: int):
    for served in nodes:
        answer = served.call("POST", f"/v1/nodes/1/tcp/{debugger}", body=b"hello")
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "body",
    [
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "Content-Length: 5\r\n\r\nhello",
        "Content-Length: +5\r\n\r\nhello",
        "Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
        "Content-Length:\r\n\r\nhello",
    ],
)
def test_an_upgrade_with_a_body(nodes: list[Served], debugger: int, body: str):
    head = f"POST /v1/nodes/1/tcp/{debugger} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
    for served in nodes:
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(f"{head}{body}\r\n".encode())
            assert read(connection, 12) == b"HTTP/1.1 400"


def test_a_rank_that_is_not_there(nodes: list[Served]):
    with pytest.raises(InputError, match="rank 2 is not known here"):
        client(nodes[0]).relay(2, 1)


@pytest.mark.parametrize("early", [b"early", b"more than one buffer holds " * 2200 + b"early"])
def test_what_is_sent_before_the_answer_is_not_lost(nodes: list[Served], debugger: int, early: bytes):
    head = f"POST /v1/nodes/1/tcp/{debugger} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
    for served in nodes:
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.settimeout(10 * SLOWER)
            connection.sendall(f"{head}\r\n".encode() + early)
            said = b""
            while not said.endswith(b"EARLY"):
                said += connection.recv(4096)
            assert said.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
            assert said.endswith(early.upper())


def test_there_are_few_at_once(nodes: list[Served], debugger: int):
    api = client(nodes[1])
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_RELAYS):
            read(stack.enter_context(api.relay(1, debugger)), 8)
        with pytest.raises(InputError, match=f"{MAX_RELAYS} debuggers are connected"):
            api.relay(1, debugger)
    deadline = time.monotonic() + 10 * SLOWER
    while True:  # their ends arrive one after the other
        with contextlib.suppress(InputError), api.relay(1, debugger) as connection:
            assert read(connection, 8) == b"welcome "
            return
        assert time.monotonic() < deadline
