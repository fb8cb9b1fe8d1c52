"""The server of a living page: for this machine alone."""

import http.client
import json
import threading
from collections.abc import Iterator

import pytest
from make_report import make_report

from cloudrl.report.server import ReportServer

pytestmark = pytest.mark.io


@pytest.fixture
def server() -> Iterator[ReportServer]:
    with ReportServer(lambda: make_report(steps=3)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
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
