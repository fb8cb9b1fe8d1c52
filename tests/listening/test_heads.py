"""What clients send first, read without a server; and which requests a web page may have sent."""

from __future__ import annotations

import contextlib
import http.client
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.listening.heads import MAX_TARGET, Head, Refused, check_target, is_complete, parse_head, refusals
from cloudrl.listening.web_pages import is_loopback_host, refuse_other_sites, refuse_web_pages


def test_a_head() -> None:
    head = parse_head(
        b"POST /a/b?c=d HTTP/1.1\r\nHost: x\r\nAUTHORIZATION:  Bearer t \r\nHost: y\r\nEmpty:\r\n\r\nbody"
    )
    assert head == Head("POST", "/a/b?c=d", {"host": "x", "authorization": "Bearer t", "empty": ""})
    assert (head.path, head.get("Authorization"), head.get("Origin")) == ("/a/b", "Bearer t", None)


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\n\r\n", b"\r\n\n"])
def test_every_end_of_a_head_that_servers_take(end: bytes) -> None:
    received = b"GET / HTTP/1.1\r\nA: b"
    assert not is_complete(bytearray(received + end[:-1]))
    assert is_complete(bytearray(received + end))
    for before in range(len(received + end)):
        assert is_complete(bytearray(received + end), before)
    assert parse_head(received + end + b"X").headers == {"a": "b"}


@pytest.mark.parametrize(
    ("received", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"G T / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET /" + b"x" * MAX_TARGET + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"x" * 70_000, 414),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: no name\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nAuthorization : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\rHost: evil\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n", 400),
    ],
)
def test_what_is_not_a_head(received: bytes, status: int) -> None:
    with pytest.raises(Refused) as refused:
        parse_head(received)
    assert refused.value.status == status


@given(
    st.dictionaries(
        st.text("abcXYZ-!", min_size=1, max_size=8),
        st.text(st.characters(min_codepoint=0, max_codepoint=255), max_size=12),
        max_size=5,
    )
)
def test_what_is_read_is_what_pythons_server_reads(headers: dict[str, str]) -> None:
    """Else a server would check one request and answer another."""
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1") + b"\r\n"
    try:
        mine = parse_head(b"GET / HTTP/1.1\r\n" + text)
    except Refused:
        return
    read = http.client.parse_headers(io.BytesIO(text))
    assert {name.lower() for name in read} == set(mine.headers)
    for name in read:
        assert mine.get(name) == (read[name] or "").strip(" \t")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(received: bytes) -> None:
    refusal_of = refusals(lambda head: check_target(head.target), lambda status, reason: f"{status} {reason}")
    refusal = refusal_of(received + b"\r\n\r\n")
    assert refusal is None or refusal.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505"))


def test_a_refusal_is_a_whole_answer() -> None:
    def check(_: Head) -> None:
        raise Refused(401, "no\u2028", {"WWW-Authenticate": "Bearer"})

    refusal_of = refusals(check, lambda status, reason: f"{status}: {reason}", "text/plain")
    answer = refusal_of(b"GET / HTTP/1.1\r\n\r\n")
    assert answer is not None
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    assert first == "HTTP/1.1 401 Unauthorized"
    assert body.decode() == "401: no\u2028"
    assert {"Server: cloudrl", "Connection: close", f"Content-Length: {len(body)}"} <= set(rest)
    assert {"Content-Type: text/plain", "WWW-Authenticate: Bearer"} <= set(rest)
    of_head = refusal_of(b"HEAD / HTTP/1.1\r\n\r\n")
    assert of_head is not None
    assert of_head.partition(b"\r\n\r\n")[::2] == (head, b"")


@pytest.mark.parametrize("target", ["/", "/a//b", "/v1/x?y=http://z", "/%2e%2e", "/[", "/?"])
def test_a_path(target: str) -> None:
    check_target(target)


@pytest.mark.parametrize("target", ["", "*", "x", "http://evil/x", "http://[", "//evil/x", "/a b", "/\xff", "/\x7f"])
def test_what_is_not_a_path(target: str) -> None:
    with pytest.raises(Refused, match="begins with one /"):
        check_target(target)


@pytest.mark.parametrize(
    ("host", "port", "is_own"),
    [
        ("127.0.0.1", None, True), ("127.0.0.1:80", None, True), ("127.1.2.3:80", 80, True), ("localhost", None, True),
        ("LOCALHOST:1", 1, True), ("[::1]:80", 80, True), ("[::1]", None, True), ("localhost:81", 80, False),
        ("localhost", 80, False), (None, None, False), ("", None, False), ("evil.example", None, False),
        ("evil.example:80", 80, False), ("localhost.evil.example", None, False), ("localhost@evil.com", None, False),
        ("evil@localhost", None, False), ("127.0.0.1.evil.example", None, False), ("0.0.0.0", None, False),
        ("10.0.0.1", None, False), ("2130706433", None, False), ("[::ffff:10.0.0.1]", None, False),
        ("localhost:x", None, False), ("localhost:99999", None, False), ("[::1", None, False),
        ("localhost/x", None, False),
        ("localhost, evil.example", None, False),
    ],
)  # fmt: skip
def test_names_of_this_machine(host: str | None, port: int | None, is_own: bool) -> None:
    assert is_loopback_host(host, port) is is_own


@pytest.mark.parametrize(
    ("headers", "may_open", "is_refused"),
    [
        ({}, False, False),
        ({"Origin": "http://localhost:80"}, False, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:80"}, False, False),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, False, False),
        ({"Origin": "http://evil.example"}, False, True),
        ({"Origin": "http://localhost:81"}, False, True),
        ({"Origin": "https://localhost:80"}, False, True),
        ({"Origin": "null"}, True, True),
        ({"Origin": ""}, False, True),
        ({"Sec-Fetch-Site": "cross-site"}, False, True),
        ({"Sec-Fetch-Site": "same-site"}, False, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, True, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Origin": "null"}, True, True),
    ],
)
def test_pages_of_other_sites(headers: dict[str, str], may_open: bool, is_refused: bool) -> None:
    sent = {"Host": "localhost:80", **headers}
    for check in (refuse_web_pages, refuse_other_sites):
        with pytest.raises(Refused, match="here") if is_refused else contextlib.nullcontext():
            check(sent.get, may_open=may_open)
