"""The server of a living page: for this machine alone."""

import contextlib
import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from make_report import make_report
from patience import SLOWER

from cloudrl.report import Report
from cloudrl.report.server import ReportServer

pytestmark = pytest.mark.io


@pytest.fixture
def server() -> Iterator[ReportServer]:
    with serving(lambda: make_report(steps=3)) as server:
        yield server
        server.shutdown()


Answer = tuple[int, http.client.HTTPMessage, str]


def ask(server: ReportServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def test_the_page_and_its_data(server: ReportServer):
    status, headers, text = ask(server, server.folder)
    assert (status, headers["Cache-Control"], headers["X-Content-Type-Options"]) == (200, "no-store", "nosniff")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert 'data-refresh-s="10"' in text
    status, headers, text = ask(server, f"{server.folder}data.json")
    assert (status, headers.get_content_type()) == (200, "application/json")
    assert json.loads(text)["runs"][0]["steps"] == [1, 2, 3]


def serving(look: Callable[[], Report]) -> ReportServer:
    server = ReportServer(look)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def test_a_browser_that_goes_away_leaves_no_traceback(capfd: pytest.CaptureFixture[str]):
    asked, gone, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def look() -> Report:
        threads.append(threading.current_thread())
        asked.set()
        gone.wait(10 * SLOWER)
        return make_report(steps=3)

    with serving(look) as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes by a reset
            browser.sendall(f"GET {server.folder} HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
            assert asked.wait(10 * SLOWER)
        gone.set()
        threads[0].join(10 * SLOWER)
        server.shutdown()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", ["", "data.json"])
def test_what_cannot_be_looked_at_is_said_in_one_sentence(path: str, capfd: pytest.CaptureFixture[str]):
    def look() -> Report:
        raise ValueError("no\nmore")

    with serving(look) as server:
        status, headers, text = ask(server, server.folder + path)
        server.shutdown()
    assert (status, headers.get_content_type()) == (500, "text/plain")
    assert text == "The report cannot be made now: ValueError: no\n"
    assert capfd.readouterr().err == ""


def test_it_listens_on_loopback_only(server: ReportServer):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_gets_nothing(server: ReportServer, host: str):
    assert ask(server, server.folder, Host=host)[0] == 403
    assert ask(server, server.folder, Host=f"localhost:{server.server_port}")[0] == 200


def raw(server: ReportServer, text: bytes) -> bytes:
    """The whole answer to bytes that no client of ours would send."""
    with socket.create_connection(("127.0.0.1", server.server_port), 10 * SLOWER) as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize(
    "sent",
    [b"GET http://[ HTTP/1.1\r\n%b\r\n", b"GET http://evil/ HTTP/1.1\r\n%b\r\n", b"GET //[ HTTP/1.1\r\n%b\r\n",
     b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\r\n\r\n",
     b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nX\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, b"GET / HTTP/1.1\r\n%b\r\n"],
)  # fmt: skip
def test_odd_requests_get_a_clear_answer(server: ReportServer, sent: bytes, capfd: pytest.CaptureFixture[str]):
    host = f"Host: 127.0.0.1:{server.server_port}\r\n".encode()
    answer = raw(server, sent.replace(b"%b", host))
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505")), answer
    assert b"python" not in answer.lower()
    assert capfd.readouterr().err == ""


def test_no_answer_names_python(server: ReportServer):
    assert ask(server, server.folder)[1]["Server"].strip() == "cloudrl"
    assert ask(server, server.folder, "POST")[1]["Server"].strip() == "cloudrl"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX: "])
def test_silent_connections_have_no_threads_and_keep_nobody_out(server: ReportServer, sent: bytes):
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(300):
            held.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 10 * SLOWER)).sendall(sent)
        assert ask(server, server.folder)[0] == 200
        assert threading.active_count() <= before + 3


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_sites_get_nothing(server: ReportServer, headers: dict[str, str]):
    assert ask(server, server.folder, **headers)[0] == 403
    assert ask(server, f"{server.folder}data.json", **headers)[0] == 403


def test_a_link_on_another_page_may_be_followed(server: ReportServer):
    """As in a terminal that is itself a web page."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert ask(server, server.folder, **headers)[0] == 200


@pytest.mark.parametrize("path", ["/", "/data.json", "/guess/", "/../"])
def test_without_its_path_there_is_nothing(server: ReportServer, path: str):
    assert ask(server, path)[0] == 404
    assert ask(server, server.folder + "x")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(server: ReportServer, method: str):
    assert ask(server, server.folder, method)[0] == 501


def test_every_server_has_a_path_of_its_own(server: ReportServer):
    with ReportServer(make_report) as other:
        assert other.folder != server.folder
        assert len(other.folder) > 20
