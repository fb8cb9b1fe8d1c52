"""Ray's dashboard on loopback, asked by a plain HTTP client."""

import contextlib
import http.client
import io
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cluster import FakeCluster
from patience import SLOWER

from cloudrl.debug.front import Front, with_local_ports
from cloudrl.protocol.exchange import Response

pytestmark = pytest.mark.io

WORKERS = "/api/v0/workers?detail=1&limit=10000"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        fake.workers = [
            {"worker_id": "a", "ip": "10.0.0.2", "pid": 7, "debugger_port": 40001, "num_paused_threads": 1},
            {"worker_id": "b", "ip": "10.0.0.2", "pid": 8, "debugger_port": 40002, "num_paused_threads": 1},
            {"worker_id": "c", "ip": "10.0.0.1", "pid": 9, "debugger_port": None},
        ]
        yield fake


@pytest.fixture
def front(cluster: FakeCluster) -> Iterator[Front]:
    ports = {("10.0.0.2", 7, 40001): 5555}
    with Front(lambda path: cluster.connection().ray().get(path), lambda *worker: ports.get(worker)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def ask(front: Front, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", front.server_port, timeout=60)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_a_paused_worker_is_at_a_port_of_this_machine(front: Front, cluster: FakeCluster) -> None:
    status, body = ask(front, WORKERS)
    rows = json.loads(body)["data"]["result"]["result"]
    assert status == 200
    assert [(row["ip"], row["debugger_port"]) for row in rows] == [
        ("127.0.0.1", 5555), ("10.0.0.2", 40002), ("10.0.0.1", None),
    ]  # fmt: skip
    assert ask(front, "/api/version")[0] == 200
    assert cluster.requests == [("GET", "/api/v0/workers"), ("GET", "/api/version")]


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [
        ({"Host": "evil.example:8265"}, "GET", 403),
        ({"Host": "127.0.0.1"}, "GET", 403),
        ({"Origin": "http://evil.example"}, "GET", 403),
        ({"Origin": "null"}, "GET", 403),
        ({"Sec_Fetch_Site": "cross-site"}, "GET", 403),
        ({"Sec_Fetch_Site": "same-site"}, "GET", 403),
        ({}, "POST", 501),
        ({}, "DELETE", 501),
        ({}, "OPTIONS", 501),
    ],
)
def test_nothing_else_uses_the_token(
    front: Front, cluster: FakeCluster, headers: dict[str, str], method: str, status: int
) -> None:
    assert ask(front, "/api/jobs/", method=method, **headers)[0] == status
    assert cluster.requests == []


def test_a_path_is_no_url(front: Front, cluster: FakeCluster) -> None:
    url = "http://elsewhere.example/api/version"
    assert ask(front, url, Host=f"127.0.0.1:{front.server_port}")[0] == 400
    assert cluster.requests == []


def asked(front: Front, path: bytes) -> bytes:
    """The first line of the answer to a path that no client of ours would send."""
    with socket.create_connection(("127.0.0.1", front.server_port), timeout=60) as mine, mine.makefile("rb") as file:
        mine.sendall(b"GET %b HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n" % (path, front.server_port))
        return file.readline()


@pytest.mark.parametrize("path", [b"/\x01a", b"/\x7f", b"/\xff", b"/" + b"a" * 9000, b"x"])
def test_a_path_that_no_url_has_is_refused(front: Front, cluster: FakeCluster, path: bytes) -> None:
    assert asked(front, path).split()[1] == b"400"
    assert cluster.requests == []


def test_no_answer_names_python(front: Front) -> None:
    port = front.server_port
    for sent in (
        b"GET /api/version HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n" % port,
        b"GET / HTTP/1.1\r\n\r\n",
        b"x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), 10 * SLOWER) as mine, mine.makefile("rb") as file:
            mine.sendall(sent)
            assert b"python" not in file.read().lower()


def test_silent_connections_have_no_threads_and_keep_nobody_out(front: Front) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(200):
            held.enter_context(socket.create_connection(("127.0.0.1", front.server_port), 10 * SLOWER)).sendall(
                b"GET /"
            )
        assert ask(front, "/api/version")[0] == 200
        assert threading.active_count() <= before + 3


@pytest.mark.parametrize("path", [b"//[", b"/[?#", b"/%", b"/@:0"])
def test_an_odd_path_is_answered(front: Front, path: bytes) -> None:
    assert asked(front, path).split()[1] in (b"404", b"502")


class Endless(io.RawIOBase):
    def read1(self, _limit: int = -1) -> bytes:
        return b"x" * 1000


@pytest.mark.parametrize("limits", [{"body_bytes": 50_000}, {"body_s": 0.0}])
@pytest.mark.parametrize("status", [200, 302])
def test_an_answer_without_an_end_and_a_redirect_are_errors(limits: dict[str, Any], status: int) -> None:
    body = Endless() if status == 200 else io.BytesIO()
    with Front(lambda _path: Response(status, {}, body), lambda *_worker: None, **limits) as front:
        threading.Thread(target=front.serve_forever, args=(0.01,), daemon=True).start()
        assert ask(front, "/api/v0/logs/stream")[0] == 502
        front.shutdown()


def test_a_cluster_that_is_gone_is_said(front: Front, cluster: FakeCluster) -> None:
    cluster.down()
    status, body = ask(front, WORKERS)
    assert status == 502
    assert b"http://127.0.0.1" in body


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b'{"data": {"result": {"result": [1]}}}', b"[" * 99999])
def test_what_has_another_form_is_passed_on_as_it_is(body: bytes) -> None:
    assert with_local_ports(body, lambda *_worker: 1) == body


@pytest.mark.parametrize("pid", ["x", float("inf"), float("nan"), -1e400, [1], "9" * 5000])
def test_numbers_may_be_anything(pid: Any) -> None:
    worker: dict[str, Any] = {"ip": None, "pid": pid, "debugger_port": "7"}
    body = json.dumps({"data": {"result": {"result": [worker]}}}).encode()
    assert with_local_ports(body, lambda *_worker: 1) == body
