"""Ports of this machine that lead elsewhere."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from small_server import serving

from cloudrl.debug.relay import Relay, is_own_connection
from cloudrl.debug.socket_owner import owner
from cloudrl.errors import ConnectionFailed

pytestmark = pytest.mark.io

HELLO = b"Content-Length: 2\r\n\r\n{}"


@pytest.fixture
def echo() -> Iterator[int]:
    """Says what it has heard once its client has said all."""

    def answer(connection: socket.socket) -> None:
        with connection.makefile("rb") as file:
            connection.sendall(b"heard " + file.read())

    with serving(answer) as port:
        yield port


def test_bytes_go_both_ways_and_so_does_the_end(echo: int) -> None:
    relay = Relay(lambda: socket.create_connection(("127.0.0.1", echo)))
    said = HELLO + os.urandom(300_000)
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as mine, mine.makefile("rb") as file:
            mine.sendall(said)
            mine.shutdown(socket.SHUT_WR)
            assert file.read() == b"heard " + said
    relay.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port), timeout=60)


def test_a_stop_that_is_over_is_an_end() -> None:
    def dial() -> socket.socket:
        raise ConnectionFailed("gone")

    relay = Relay(dial)
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as mine:
        mine.sendall(HELLO)
        assert mine.recv(1) == b""
    relay.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"Content-Length: 2\r\nHost: 127.0.0.1\r\n\r\n{}",
        b"Content-Length: 2x\r\n\r\n{}",
        b"\r\n" + HELLO,
        b"x" * 100,
        b"Content-Length: 2",
    ],
)
def test_what_is_no_client_of_a_debugger_reaches_none(said: bytes) -> None:
    dialled: list[bytes] = []

    def dial() -> socket.socket:
        dialled.append(said)
        raise ConnectionFailed("dialled")

    relay = Relay(dial, head_s=0.2)
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as mine:
        mine.sendall(said)
        with suppress(ConnectionResetError):
            assert mine.recv(1) == b""
    relay.close()
    assert dialled == []


def test_a_head_may_come_in_pieces(echo: int) -> None:
    relay = Relay(lambda: socket.create_connection(("127.0.0.1", echo)))
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as mine, mine.makefile("rb") as file:
        mine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for each in HELLO:
            mine.sendall(bytes([each]))
        mine.shutdown(socket.SHUT_WR)
        assert file.read() == b"heard " + HELLO
    relay.close()


def test_silent_connections_have_no_threads_and_keep_nobody_out(echo: int) -> None:
    relay = Relay(lambda: socket.create_connection(("127.0.0.1", echo)))
    before = threading.active_count()
    with ExitStack() as held:
        for _ in range(100):
            held.enter_context(socket.create_connection(("127.0.0.1", relay.port), timeout=60)).sendall(b"Content")
        with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as mine, mine.makefile("rb") as file:
            mine.sendall(HELLO)
            mine.shutdown(socket.SHUT_WR)
            assert file.read() == b"heard " + HELLO
        assert threading.active_count() <= before + 4
    relay.close()


def test_other_users_are_turned_away() -> None:
    def dial() -> socket.socket:
        raise AssertionError("a connection was made")

    relay = Relay(dial, is_own=lambda _peer, _port: False)
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as mine:
        mine.sendall(HELLO)
        assert mine.recv(1) == b""
    relay.close()


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   {}: {}0100007F:{:04X} {}0100007F:{:04X} 01 00000000:00000000 00:00000000 00000000 {:5} 0 1\n"
MAPPED = "0000000000000000FFFF0000"


@pytest.mark.parametrize("kind", ["", MAPPED])
@pytest.mark.parametrize(("uid", "is_own"), [(os.getuid(), True), (os.getuid() + 1, False)])
def test_whose_a_connection_is(tmp_path: Path, uid: int, is_own: bool, kind: str) -> None:
    four, six = tables = tmp_path / "tcp", tmp_path / "tcp6"
    four.write_text(HEAD + ROW.format(0, "", 8267, "", 50000, 7) + ROW.format(2, "", 1, "", 2, 9))
    six.write_text(HEAD)
    with tables[bool(kind)].open("a") as table:
        table.write(ROW.format(1, kind, 50000, kind, 8267, uid))
    assert is_own_connection(("127.0.0.1", 50000), 8267, tables=tables) is is_own


def test_a_connection_that_no_table_has_is_nobody_s(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(HEAD + ROW.format(0, "", 50001, "", 8267, os.getuid()))
    assert not is_own_connection(("127.0.0.1", 50000), 8267, tables=(table, tmp_path / "none"))


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")])
def test_a_connection_of_our_own_is_found_in_the_real_tables(family: int, address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family, socket.SOCK_STREAM) as mine:
        port = server.getsockname()[1]
        try:
            mine.connect((address, port))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        connection, peer = server.accept()
        assert is_own_connection(peer, port)
        assert is_own_connection(peer, port, tables=[Path(f"/proc/net/{each}") for each in ("tcp", "tcp6")])
        assert owner(peer, ("127.0.0.1", port)) == os.getuid(), "the tables, which are slow to read, are not needed"
        assert owner(peer, ("127.0.0.1", port - 1)) is None
        table = "tcp6" if family == socket.AF_INET6 else "tcp"
        mapped = MAPPED if family == socket.AF_INET6 else ""
        ours = f"{mapped}0100007F:{mine.getsockname()[1]:04X} {mapped}0100007F:{port:04X}"
        assert ours in Path(f"/proc/net/{table}").read_text()
        connection.close()


def test_where_there_is_no_table_nobody_can_say(tmp_path: Path) -> None:
    assert is_own_connection(("127.0.0.1", 1), 2, tables=(tmp_path / "none",))
