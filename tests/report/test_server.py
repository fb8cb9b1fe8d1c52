"""The server of a living page: for this machine alone."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from make_report import make_report

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
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
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
        gone.wait(10)
        return make_report(steps=3)

    with serving(look) as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes by a reset
            browser.sendall(f"GET {server.folder} HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
            assert asked.wait(10)
        gone.set()
        threads[0].join(10)
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
