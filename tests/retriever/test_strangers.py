"""What a retriever answers to those who are not its users: other clients, web pages, and many at once."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_retriever import Session, counted, serving
from patience import SLOWER
from quiet_ports import free_ports

pytestmark = pytest.mark.io

HERE = Path(__file__).parent
BODY = b'{"queries": ["a"], "topk": 1}'
EVIL = "http://evil.example"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:9"}, 200),  # a tunnel may have another port
        ({"Host": "[::1]"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "192.0.2.1:8000"}, 403),
        ({"Origin": EVIL, "Content-Type": "text/plain"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
@pytest.mark.parametrize("path", ["/retrieve", "/metrics", "/health"])
def test_web_pages_get_nothing_of_a_server_without_a_token(path: str, headers: dict[str, str], status: int) -> None:
    """Not as the first request of a connection, nor as a later one; /health tells anybody that it is ready."""

    async def test(session: Session) -> None:
        method, data = ("POST", BODY) if path == "/retrieve" else ("GET", None)
        for _ in range(2):
            async with session.request(method, path, data=data, headers=headers) as answer:
                if path == "/health":
                    assert answer.status == 200
                    assert (await answer.json() == {"ready": True}) == (status == 403)
                else:
                    assert answer.status == status
            async with session.get("/health") as answer:  # the next request may use this connection
                assert answer.status == 200

    serving(test)


@pytest.mark.parametrize("host", ["retriever.example.com", "192.0.2.1:8000", "node-3"])
def test_holders_of_the_token_may_call_it_by_any_name(host: str) -> None:
    """verl's tool calls it by the address or the name of a node, a dstack gateway passes its own name on."""

    async def test(session: Session) -> None:
        shown = {"Host": host, "Authorization": "Bearer s3cret"}
        async with session.post("/retrieve", data=BODY, headers=shown) as answer:
            assert answer.status == 200
        async with session.get("/health", headers={"Host": host}) as answer:
            assert (answer.status, await answer.json()) == (200, {"ready": True})
        async with session.post("/retrieve", data=BODY, headers={"Host": host}) as answer:
            assert answer.status == 401

    serving(test, token="s3cret")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"hello"), ("gzip", gzip.compress(BODY)[:-4] + b"0000"), ("gzip", gzip.compress(BODY)[:20]),
        ("deflate", b"\xff\xff"), ("br", b"\xff\xff"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_unpacked_is_the_callers_fault(encoding: str, body: bytes) -> None:
    async def test(session: Session) -> None:
        headers = {"Content-Encoding": encoding}
        async with session.post("/retrieve", data=aiohttp.BytesPayload(body), headers=headers) as answer:
            assert answer.status in (400, 422)
        async with session.post("/retrieve", data=gzip.compress(BODY), headers={"Content-Encoding": "gzip"}) as answer:
            assert answer.status == 200
        assert "failed" not in await counted(session)

    serving(test)


def test_no_answer_names_python(capfd: pytest.CaptureFixture[str]) -> None:
    sent = [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"G\xff / HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nX\x00: y\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nnonsense\r\n\r\n",
    ]  # fmt: skip

    async def test(session: Session) -> None:
        for text in sent:
            reader, writer = await asyncio.open_connection("127.0.0.1", session._base_url.port)  # type: ignore[union-attr]
            writer.write(text)
            answer = await asyncio.wait_for(reader.read(65_536), 10 * SLOWER)
            writer.close()
            assert answer.startswith(b"HTTP/1."), text
            assert b"python" not in answer.lower(), text
            assert b"aiohttp" not in answer.lower(), text

    serving(test)
    assert capfd.readouterr().err == ""


@pytest.fixture
def crowded() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server that may open 100 files, as a process."""
    port = free_ports(1)[0]
    command = f"ulimit -n 100; exec {sys.executable} {HERE / 'fake_retriever.py'} {port}"
    with subprocess.Popen(
        ["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=HERE
    ) as server:  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield server, port
        server.terminate()


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",  # and no body
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",  # and no other request
    ],
)  # fmt: skip
def test_strangers_without_number_keep_no_user_out(crowded: tuple[subprocess.Popen[bytes], int], sent: bytes) -> None:
    server, port = crowded
    strangers: list[socket.socket] = []
    try:
        for _ in range(150):
            strangers.append(socket.create_connection(("127.0.0.1", port), 10 * SLOWER))
            strangers[-1].sendall(sent)
        for _ in range(3):
            assert _post(port) == 200
    finally:
        for each in strangers:
            each.close()
    server.terminate()
    said, _ = server.communicate(timeout=60)
    assert said == b"", "nothing is printed of strangers"


def test_who_has_no_token_keeps_no_connection() -> None:
    async def test(session: Session) -> None:
        async with session.get("/health") as answer:
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
        shown = {"Authorization": "Bearer s3cret"}
        async with session.get("/health", headers=shown) as answer:
            assert answer.headers.get("Connection") != "close"

    serving(test, token="s3cret")


def _post(port: int) -> Any:
    head = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    with socket.create_connection(("127.0.0.1", port), 10 * SLOWER) as ours, ours.makefile("rb") as file:
        ours.sendall(head + BODY)
        status = int(file.readline().split()[1])
        assert b"result" in file.read()
    return status


def test_what_comes_in_pieces_is_put_together() -> None:
    async def test(session: Session) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", session._base_url.port)  # type: ignore[union-attr]
        head = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        for one in range(2):
            for at in range(0, len(head + BODY), 7):
                writer.write((head + BODY)[at : at + 7])
                await asyncio.sleep(0)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200"), one
            while (line := await reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length"):
                    count = int(line.split()[1])
            assert "result" in json.loads(await reader.readexactly(count))
        writer.close()

    serving(test)
