"""Strangers at the agent's port: they cannot use it up, and learn nothing from it."""

import contextlib
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from node_harness import until
from patience import SLOWER
from server_harness import TOKEN, Served

pytestmark = pytest.mark.io

UNAUTHENTICATED_S = 0.5


@pytest.fixture(scope="module", autouse=True)
def _many_files() -> Iterator[None]:
    """Both ends of each connection are here; 1,024 files are the default of most hosts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A patient one: who is cut here is cut for being one too many."""
    with closing(Served(tmp_path_factory.mktemp("served"), 0, unauthenticated_s=60.0)) as made:
        yield made


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Served]:
    """One that gives strangers half a second."""
    with closing(Served(tmp_path / "hasty", 0, unauthenticated_s=UNAUTHENTICATED_S)) as made:
        yield made


def _connect(served: Served, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", served.port), 10 * SLOWER)
    connection.sendall(sent)
    return connection


def _is_cut(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _read_all(connection: socket.socket) -> bytes:
    content = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            content += part
    return content


REQUEST = f"GET /v1/status HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()


def test_a_thousand_nodes_at_once_are_all_answered(served: Served) -> None:
    """Their heartbeats may come while the agent gets no processor: nothing is read before all have connected."""
    strangers, nodes = 1300, 1000
    with contextlib.ExitStack() as stack:
        for _ in range(strangers):
            stack.enter_context(_connect(served, b"GET /"))
        ours = [stack.enter_context(_connect(served)) for _ in range(nodes)]
        for each in ours:
            each.sendall(REQUEST + b"\r\n")
        assert [each.recv(12) for each in ours] == [b"HTTP/1.1 200"] * nodes


@pytest.mark.parametrize("sent", [b"", b"GET /v1/status HTTP/1.1\r\nX: y"])
def test_a_flood_keeps_nobody_out_who_has_the_token(served: Served, sent: bytes) -> None:
    """Each heartbeat is a connection of its own: turned away, a worker would count as lost."""
    with contextlib.ExitStack() as stack:
        for _ in range(1300):
            stack.enter_context(_connect(served, sent))
        began = time.monotonic()
        assert [served.get("/v1/status").status for _ in range(5)] == [200] * 5
        assert time.monotonic() - began < 5 * SLOWER


def test_strangers_cost_no_threads(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        before = threading.active_count()
        for _ in range(100):
            stack.enter_context(_connect(served, b"GET /v1/status HTTP/1.1\r\n"))
        assert served.get("/v1/status").status == 200
        assert threading.active_count() <= before + 5


def test_who_has_shown_the_token_may_stay(served: Served) -> None:
    """Hundreds of nodes may copy something from rank 0 at once."""
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(_connect(served, REQUEST + b"\r\n")) for _ in range(84)]
        for each in ours:
            assert each.recv(12) == b"HTTP/1.1 200"
        strangers = [stack.enter_context(_connect(served)) for _ in range(64)]
        ours[0].sendall(REQUEST + b"\r\n")
        until(lambda: ours[0].recv(65_536).count(b"HTTP/1.1 200") == 1, "an answer on the same connection")
        assert not any(map(_is_cut, [*ours, *strangers]))


@pytest.mark.parametrize("sent", [b"", b"GET ", b"GET /v1/status HTTP/1.1\r\n", REQUEST[:-4]])
def test_a_silent_stranger_does_not_stay(hasty: Served, sent: bytes) -> None:
    with _connect(hasty, sent) as connection:
        before = time.monotonic()
        connection.settimeout(10 * SLOWER)
        assert connection.recv(1) == b""
        assert time.monotonic() - before < 10 * SLOWER * UNAUTHENTICATED_S


def test_nor_does_one_that_sends_header_after_header(hasty: Served) -> None:
    with _connect(hasty, b"GET /v1/status HTTP/1.1\r\n") as connection:
        before = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while not _is_cut(connection):
                connection.send(b"X: y\r\n")
                time.sleep(0.05)
                assert time.monotonic() - before < 10 * SLOWER * UNAUTHENTICATED_S
        assert time.monotonic() - before > UNAUTHENTICATED_S / 2


def test_who_has_shown_the_token_may_take_its_time(hasty: Served) -> None:
    with _connect(hasty, REQUEST + b"\r\n") as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        with _connect(hasty) as unauthenticated:
            unauthenticated.settimeout(10 * SLOWER)
            assert unauthenticated.recv(1) == b""  # came later, and is gone
        connection.sendall(REQUEST + b"\r\n")
        until(lambda: b"HTTP/1.1 200" in connection.recv(65_536), "a second answer")


@pytest.mark.parametrize("is_reset", [False, True])
def test_strangers_write_nothing_into_the_log(hasty: Served, is_reset: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """dstack ends a run after 50 MB of output in an hour; whoever scans the port must not be able to write it."""
    tls, garbage = b"\x16\x03\x01\x02\x00\x01\x00", b"\0\xff" * 999
    half, whole = b"GET / HTTP/1.1\r\nX", b"GET / HTTP/1.1\r\n\r\n"
    for sent in (b"", b"GET", tls, garbage, half, whole, b"GET / HTTP/9.9\r\n\r\n", b"x" * 70_000):
        with contextlib.suppress(ConnectionError), _connect(hasty, sent) as connection:
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                _read_all(connection)
    assert hasty.get("/v1/status").status == 200
    assert capfd.readouterr() == ("", "")


def test_our_own_mistakes_are_seen(hasty: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """A traceback, for a call with the token only."""
    hasty.ray_logs = 7  # type: ignore[assignment]
    assert hasty.call("GET", "/v1/jobs/job1/log", token=None).status == 401
    assert capfd.readouterr().err == ""
    with pytest.raises(ConnectionError):
        hasty.get("/v1/jobs/job1/log")
    assert "TypeError: " in capfd.readouterr().err


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/status HTTP/1.1\r\n\r\n",
        b"DELETE / HTTP/1.1\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
        b"GET /\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nX\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        REQUEST + b"\r\n",
    ],
)
def test_no_answer_says_what_program_this_is(served: Served, sent: bytes) -> None:
    with _connect(served, sent) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = _read_all(connection)
    assert b"python" not in answer.lower()
    assert b"BaseHTTP" not in answer
    assert b"<html" not in answer.lower()
    assert answer == b"" or b"error" in answer or sent.startswith((b"HEAD", REQUEST))
