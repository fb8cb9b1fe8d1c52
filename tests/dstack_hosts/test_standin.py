"""What the stand-ins refuse, hold back and look up as dstack's own programs do."""

import http.client
import os

import pytest
from fake_clock import Clock

from dstack_hosts.standin import gpus
from dstack_hosts.standin.ansistrip import Stripper
from dstack_hosts.standin.config import HostConfig
from dstack_hosts.standin.home import job_user
from dstack_hosts.standin.http_api import serve

BAR = b"10%\r50%\r100%\r\n"


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        (BAR, "100%\n"),
        (b"a\x1b[1mb\x1b[0m \r\n\r\nc\r\n", "ab\nc\n"),  # an empty line leaves nothing
        ("\u00e4\bo\r\n".encode(), "o\n"),
        (b"one\r\ntwo\r\n\x1b[2A\x1b[K1\r\n", "1\ntwo\n"),
        (b"no end", "no end\n"),
        (b"\x1b", ""),
    ],
)
def test_a_log_has_what_a_terminal_shows_at_the_end(written, stored):
    for pieces in ([written], [bytes([byte]) for byte in written]):
        stripper = Stripper()
        for piece in pieces:
            stripper.write(piece)
        assert stripper.rest().decode() == stored


def test_lines_are_held_back_while_the_cursor_moves_and_for_three_seconds_at_most(clock: Clock):
    stripper = Stripper(clock)
    clock.sleep(0.1)
    stripper.write(b"a\r\nb")
    assert stripper.due() == b""
    clock.sleep(0.5)
    assert stripper.due() == b"a\n"
    for _ in range(9):
        stripper.write(b"\r\n")
        clock.sleep(0.3)
        assert stripper.due() == b""
    clock.sleep(0.3)
    assert stripper.due() == b"b\n"
    stripper.write(b"x" * (33 << 10) + b"\r\n")
    assert len(stripper.due()) == (33 << 10) + 1


@pytest.mark.io
@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json; charset=utf-8", b"{}", 200),
        ("", b"{}", 200),
        ("text/plain", b"{}", 415),
        ("application/json", b'{"a": "%s"}' % (b"x" * (1 << 20)), 413),
        ("application/json", b"", 400),
    ],
)
def test_a_body_that_is_too_large_or_no_json_is_refused(content_type, body, status):
    server = serve(0, [("POST", "/", lambda request: request.json())])
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        connection.request("POST", "/", body, {"Content-Type": content_type} if content_type else {})
        assert connection.getresponse().status == status
        connection.close()
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("user", "found"),
    [
        (None, (0, 0, "root", "/root")),
        ({"uid": 54321}, (54321, 0, "", "/")),
        ({"uid": 54321, "gid": 17}, (54321, 17, "", "/")),
        ({"username": "nobody", "groupname": "root"}, (65534, 0, "nobody", "/")),  # its home is /nonexistent
    ],
)
def test_users_that_the_image_does_not_know(user, found):
    seen = job_user({"user": user})
    assert (seen.uid, seen.gid, seen.name, seen.home) == found
    assert seen.gid in seen.groups
    with pytest.raises(LookupError, match="unknown user nosuch"):
        job_user({"user": {"username": "nosuch"}})


def test_a_job_gets_gpus_that_no_other_has():
    host = HostConfig("a", "", "", "", "", "", gpus=4)
    assert gpus.acquire(host, -1, {1}) == [0, 2, 3]
    assert gpus.acquire(host, 2, {0}) == [1, 2]
    with pytest.raises(ValueError, match="no capacity: 3 GPUs requested, 2 available"):
        gpus.acquire(host, 3, {0, 1})
    assert os.path.basename(gpus.in_container(host, [2])[-1]) == "nvidia2"
    assert gpus.in_container(host, []) == []
