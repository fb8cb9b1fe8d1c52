"""The server over real sockets: Search-R1's interface, and what it does when things go wrong."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from fake_retriever import FakeRetriever, Session, counted, document, post, serving, until
from quiet_ports import free_ports

from cloudrl.errors import InputError
from cloudrl.retriever.engine import Found
from cloudrl.retriever.server import ServeOptions, bind, serve

pytestmark = pytest.mark.io


def hits(query: str, k: int) -> list[dict[str, Any]]:
    return [{"document": document(query, rank), "score": pytest.approx(1 / (rank + 1))} for rank in range(k)]


def documents(query: str, k: int) -> list[dict[str, str]]:
    return [document(query, rank) for rank in range(k)]


@pytest.mark.parametrize(
    ("content", "result"),
    [
        ({"queries": ["a", "b"], "topk": 2, "return_scores": True}, [hits("a", 2), hits("b", 2)]),
        ({"queries": ["a"], "topk": None, "return_scores": True}, [hits("a", 3)]),
        ({"queries": ["a"], "topk": 0, "return_scores": True}, [hits("a", 3)]),
        ({"queries": ["a"], "return_scores": True, "more": 1}, [hits("a", 3)]),
        ({"queries": []}, []),
        # where the reference fails, or with two queries answers something else
        ({"queries": ["a"], "topk": 1}, [documents("a", 1)]),
        ({"queries": ["a", "b"], "topk": 1, "return_scores": False}, [documents("a", 1), documents("b", 1)]),
        ({"queries": ['\u00e9\n"', "a", "a"], "topk": 1}, [documents(q, 1) for q in ('\u00e9\n"', "a", "a")]),
    ],
)
def test_answers_are_in_the_form_of_the_reference(content: dict[str, Any], result: Any) -> None:
    async def test(session: Session) -> None:
        assert await post(session, **content) == (200, {"result": result})

    serving(test)


BAD = [
    b"", b"hello", b"[]", b"{}", b'{"queries": null}', b'{"queries": "a"}', b'{"queries": [1]}',
    b'{"queries": ["a"], "topk": -1}', b'{"queries": ["a"], "topk": 100000}', b'{"queries": ["a"], "topk": 1.5}',
    b'{"queries": ["a"], "return_scores": 7}', b'{"queries": ["\\ud800"]}', b'{"queries": ["\xff"]}',
    json.dumps({"queries": ["a" * 70_000]}).encode(), json.dumps({"queries": ["a"] * 20_000}).encode(),
    json.dumps({"queries": ["a"] * 66, "topk": 1000}).encode(),
]  # fmt: skip


def test_bad_requests_fail_alone() -> None:
    async def test(session: Session) -> None:
        async def bad(content: bytes) -> tuple[int, bool]:
            async with session.post("/retrieve", data=content) as answer:
                return answer.status, isinstance((await answer.json())["detail"][0]["msg"], str)

        good = [post(session, queries=[f"{n}"], topk=1) for n in range(20)]
        answers = await asyncio.gather(*good, *map(bad, BAD))
        assert answers[:20] == [(200, {"result": [documents(f"{n}", 1)]}) for n in range(20)]
        assert answers[20:] == [(422, True)] * len(BAD)
        assert await counted(session) == {"answered": 20, "invalid": len(BAD)}

    serving(test)


def test_a_query_that_the_engine_cannot_answer_fails_alone() -> None:
    retriever = FakeRetriever()

    async def test(session: Session) -> None:
        first = await retriever.hold(session)
        tasks = [asyncio.create_task(post(session, queries=[query], topk=1)) for query in ("a", "bad", "b")]
        await until_waiting(session, 3)
        retriever.go.set()
        (_, one), two, (_, three) = await asyncio.gather(*tasks)
        assert one == {"result": [documents("a", 1)]}
        assert two == (500, {"detail": "ValueError: it is bad"})
        assert three == {"result": [documents("b", 1)]}
        assert (await first)[0] == 200

    serving(test, retriever)


def test_requests_that_wait_are_one_batch() -> None:
    retriever = FakeRetriever()

    async def test(session: Session) -> Any:
        first = await retriever.hold(session)
        tasks = [asyncio.create_task(post(session, queries=[f"{n % 25}"])) for n in range(50)]
        await until_waiting(session, 25)
        retriever.go.set()
        await asyncio.gather(first, *tasks)
        async with session.get("/health") as answer:
            return await answer.json()

    health = serving(test, retriever)
    assert (health["queries"], health["searched"], health["batches"], health["mean_batch"]) == (51, 26, 2, 13.0)
    assert (health["ready"], health["engine"], health["waiting"]) == (True, "fake", 0)


async def until_waiting(session: Session, count: int) -> None:
    async def is_so() -> bool:
        async with session.get("/health") as answer:
            return (await answer.json())["waiting"] == count

    await until(is_so)


def test_a_full_queue() -> None:
    retriever = FakeRetriever()

    async def test(session: Session) -> None:
        first = await retriever.hold(session)
        waits = asyncio.create_task(post(session, queries=["a", "b"]))
        await until_waiting(session, 2)
        async with session.post("/retrieve", json={"queries": ["c"]}) as answer:
            assert (answer.status, int(answer.headers["Retry-After"]) >= 1) == (503, True)
            assert await answer.json() == {"detail": "2 queries are waiting already"}
        retriever.go.set()
        assert [(await each)[0] for each in (first, waits)] == [200, 200]
        assert (await post(session, queries=["c"]))[0] == 200
        assert await counted(session) == {"answered": 3, "queue_full": 1}

    serving(test, retriever, max_waiting=2)


@pytest.mark.parametrize(("options", "headers"), [({"timeout_s": 0.5}, None), ({}, {"X-Timeout-S": "0.5"})])
def test_a_deadline(options: dict[str, float], headers: dict[str, str] | None) -> None:
    retriever = FakeRetriever()

    async def test(session: Session) -> None:
        first = await retriever.hold(session)
        assert await post(session, headers, queries=["late"]) == (504, {"detail": "not answered within 0.5 s"})
        await until_waiting(session, 0)
        retriever.go.set()
        await first
        assert (await counted(session))["late"] >= 1

    serving(test, retriever, **options)
    assert retriever.asked == ["first"]


@pytest.mark.parametrize("said", ["soon", "0", "-1", "nan", "inf"])
def test_a_deadline_that_is_none(said: str) -> None:
    async def test(session: Session) -> None:
        assert (await post(session, {"X-Timeout-S": said}, queries=["a"]))[0] == 422

    serving(test)


def test_a_client_that_goes_away() -> None:
    retriever = FakeRetriever()

    async def test(session: Session) -> None:
        first = await retriever.hold(session)
        gone = asyncio.create_task(post(session, queries=["gone"]))
        await until_waiting(session, 1)
        gone.cancel()
        await until_waiting(session, 0)
        assert await counted(session) == {"gone": 1}
        retriever.go.set()
        assert (await first)[0] == 200

    serving(test, retriever)
    assert retriever.asked == ["first"]


@pytest.mark.parametrize(
    ("path", "status", "reason"), [("/", 404, "Not Found"), ("/health", 405, "Method Not Allowed")]
)
def test_what_is_not_served(path: str, status: int, reason: str) -> None:
    async def test(session: Session) -> None:
        async with session.post(path) as answer:
            assert (answer.status, await answer.json()) == (status, {"detail": reason})
            assert answer.headers.get("Allow") == ("GET,HEAD" if status == 405 else None)

    serving(test)


def test_metrics() -> None:
    async def test(session: Session) -> str:
        await post(session, queries=["a", "b"])
        async with session.get("/metrics") as answer:
            return await answer.text()

    lines = serving(test).splitlines()
    for line in (
        'cloudrl_retriever_requests_total{outcome="answered"} 1',
        "cloudrl_retriever_queries_total 2",
        "cloudrl_retriever_ready 1",
        'cloudrl_retriever_batch_queries_bucket{le="1"} 0',
        'cloudrl_retriever_batch_queries_bucket{le="2"} 1',
        'cloudrl_retriever_batch_queries_bucket{le="+Inf"} 1',
        "cloudrl_retriever_batch_queries_sum 2.000000",
    ):
        assert line in lines


def test_an_engine_that_is_broken() -> None:
    async def test(session: Session) -> None:
        for _ in range(5):
            assert (await post(session, queries=["bad"]))[0] == 500
        async with session.get("/health") as answer:
            assert (answer.status, (await answer.json())["ready"]) == (503, False)

    serving(test)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer \udcff"}, 401),
        ({"Authorization": "Bearer s3cret"}, 200),
    ],
)
@pytest.mark.parametrize("path", ["/retrieve", "/health", "/metrics"])
def test_a_token_is_asked_for(path: str, headers: dict[str, str], status: int) -> None:
    async def test(session: Session) -> None:
        method = "POST" if path == "/retrieve" else "GET"
        async with session.request(method, path, json={"queries": ["a"]}, headers=headers) as answer:
            if path == "/health" and not headers:
                assert (answer.status, await answer.json()) == (200, {"ready": True})
                return
            assert answer.status == status
            if status == 401:
                assert await answer.json() == {"detail": "the token is missing or wrong"}

    serving(test, token="s3cret")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_nobody_else_without_a_token(host: str) -> None:
    with (
        pytest.raises(InputError, match="can be reached by others, and there is no token"),
        bind(ServeOptions(host=host, port=0)),
    ):
        pass


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be used: Address already in use"),
            bind(ServeOptions(port=port)),
        ):
            pass


def test_a_port_of_a_server_that_still_loads() -> None:
    port = free_ports(1)[0]
    with (
        bind(ServeOptions(port=port)),
        pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be used: Address already in use"),
        bind(ServeOptions(port=port)),
    ):
        pass


def test_a_port_that_is_taken_meanwhile() -> None:
    options = ServeOptions(port=free_ports(1)[0])
    with bind(options) as bound, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(bound.getsockname())
        other.listen()
        with pytest.raises(InputError, match="cannot be used: Address already in use"):
            serve(FakeRetriever(), bound, options, on_ready=pytest.fail)


class Short(FakeRetriever):
    """Breaks its promise: one answer too few."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        return super().search(queries, k)[1:]


def test_a_fault_of_ours_ends_the_server() -> None:
    with bind(ServeOptions(port=0)) as bound:

        def ask() -> None:
            body = b'{"queries": ["a"]}'
            asking.connect(bound.getsockname())
            asking.sendall(
                b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )

        with socket.socket() as asking, pytest.raises(ValueError, match="shorter"):
            serve(Short(), bound, ServeOptions(timeout_s=0.5), on_ready=ask)


def test_nobody_gets_in_before_it_can_answer() -> None:
    with bind(ServeOptions(port=0)) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=1)
