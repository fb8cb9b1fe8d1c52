"""Requests with the token that no client of ours sends: each has a clear answer, and none a traceback."""

import contextlib
import hashlib
import json
import socket
from collections.abc import Iterator

import pytest
from patience import SLOWER
from server_harness import TOKEN, Served

from cloudrl.protocol import routes
from cloudrl.protocol.manifest import Manifest, Part

pytestmark = pytest.mark.io

AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with contextlib.closing(Served(tmp_path_factory.mktemp("head"), 0)) as served:
        yield served


@pytest.fixture(autouse=True)
def _no_traceback(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr().err == ""


def _raw(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10 * SLOWER) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize(
    "target", [b"http://evil/v1/nodes/1/inventory", b"http://127.0.0.1/v1/status", b"http://[", b"*", b"//e/v1", b"x:1"]
)
def test_a_target_that_is_not_a_path(head: Served, target: bytes) -> None:
    """Also in the second request of a connection, which another part of the server reads."""
    once = b"GET %b HTTP/1.1\r\n%b\r\n" % (target, AUTH)
    assert _raw(head.port, once).startswith(b"HTTP/1.1 400 ")
    answer = _raw(head.port, b"GET /v1/status HTTP/1.1\r\n" + AUTH + b"\r\n" + once)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 4") == 1


@pytest.mark.parametrize("header", ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"])
def test_a_web_page(head: Served, header: str) -> None:
    name, value = header.split(": ")
    assert head.get("/v1/status", **{name: value}).status == 403


@pytest.mark.parametrize("part", ["a" * 4001, "a" * 300, "a/" * 2100 + "a", "%61" * 4001, "a" * 20_000])
@pytest.mark.parametrize("route", routes.ROUTES)
def test_a_path_that_is_too_long(head: Served, route: routes.Route, part: str) -> None:
    values = {"rank": "0", "root": "checkpoints", "job": "job1", "port": "1", "address": "0" * 32}
    path = route.template.format(**values, name=part, file=part, path=part)
    assert head.call(route.method, path, body=b"{}").status < 500


def test_a_file_whose_path_is_too_long_for_a_disk(head: Served) -> None:
    part = Part("/".join(["a" * 200] * 21), 1, hashlib.sha256(b"x").hexdigest())
    manifest = Manifest((part,))
    body = json.dumps(manifest.to_json()).encode()
    answer = head.call("PUT", routes.ANNOUNCE_FILES.url(address=manifest.address), body=body)
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")
    assert "too long" in answer.json()["error"]


WITH_BODY = [
    (each.method, each.url(rank=0, root="checkpoints", path="file", address="0" * 32, job="job1"))
    for each in routes.ROUTES
    if each.name in ("heartbeat", "checkpoint_ranges", "announce_files", "take_secrets")
]


@pytest.mark.parametrize("text", ["\\ud800", "\\uDBFF", "a\\ud800b", "\\uDC00"])
@pytest.mark.parametrize(("verb", "path"), WITH_BODY)
def test_half_of_a_pair_of_surrogates(head: Served, verb: str, path: str, text: str) -> None:
    for body in (f'{{"A": "{text}"}}', f'{{"{text}": "A"}}', f'{{"parts": [["{text}/x", 0, "{"0" * 64}"]]}}'):
        assert head.call(verb, path, body=body.encode()).status == 400


def test_a_whole_pair_of_surrogates_is_a_character(head: Served) -> None:
    url = routes.TAKE_SECRETS.url(job="job2")
    assert head.call("PUT", url, body=b'{"A": "\\ud83d\\ude00"}').status == 200
    assert "\U0001f600".encode() in head.get(routes.GIVE_SECRETS.url(job="job2")).body
