"""Three nodes that share an index, over real sockets: one answer of all of them, or none."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import aiohttp
import numpy as np
import pytest
from fake_retriever import post, until
from patience import SLOWER
from quiet_ports import free_ports
from test_exact import brute_force

from cloudrl.errors import InputError
from cloudrl.retriever import peers
from cloudrl.retriever.addresses import Address
from cloudrl.retriever.engine import FlatEngine
from cloudrl.retriever.exact import ExactIndex, Hit
from cloudrl.retriever.opening import Retriever
from cloudrl.retriever.peers import bind_shard, share
from cloudrl.retriever.server import ServeOptions, bind, running
from cloudrl.retriever.sharing import Sharing, rows_of
from cloudrl.retriever.vectors import Floats

pytestmark = pytest.mark.io

DIM = 6
ROWS = np.random.default_rng(0).integers(-2, 3, (50, DIM)).astype(np.float32)  # with ties
Test = Callable[..., Awaitable[None]]


class Numbers:
    """An encoder that makes a vector of a number, and none of "bad"."""

    dim = DIM

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        return np.stack([self.vector(text) for text in texts])

    @staticmethod
    def vector(text: str) -> Floats:
        if text == "bad":
            return np.full(DIM, np.nan, np.float32)
        return np.random.default_rng(int(text)).integers(-2, 3, DIM).astype(np.float32)


class Rows:
    """A corpus with the row as its passage."""

    def document(self, row: int) -> bytes:
        return json.dumps({"id": row, "contents": f"{row}"}).encode()


class Engine(FlatEngine):
    """Searches when it is let, and no more queries at once than fit."""

    def __init__(self, part: range) -> None:
        super().__init__(Numbers(), ExactIndex(ROWS[part.start : part.stop]), part.start)  # type: ignore[arg-type]
        self.go, self.most = threading.Event(), 1000
        self.go.set()

    def search_vectors(self, vectors: Floats, k: int) -> list[list[Hit]]:
        assert self.go.wait(20 * SLOWER)
        if len(vectors) > self.most:
            raise MemoryError
        return super().search_vectors(vectors, k)


class Node:
    """A node in this process."""

    def __init__(self, sharing: Sharing, fingerprint: str = "f1", **options: Any) -> None:
        part = rows_of(sharing.shard, len(sharing.addresses), len(ROWS))
        self.sharing, self.engine, self.options = sharing, Engine(part), ServeOptions(port=0, **options)
        identity = {"index": {"fingerprint": fingerprint}, "corpus": {"sha256": "c1" * 32}}
        self.retriever = Retriever(self.engine, Rows(), identity)  # type: ignore[arg-type]
        self.said: list[str] = []
        self.url = ""
        self._task: asyncio.Task[None] | None = None
        self._up, self._down = asyncio.Event(), asyncio.Event()

    def start(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._run())
        return self._task

    async def up(self) -> None:
        await asyncio.wait_for(self._up.wait(), 20 * SLOWER)

    async def stop(self) -> None:
        self.engine.go.set()
        self._down.set()
        if self._task:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        with bind(self.options) as bound, bind_shard(self.sharing) as bound_shard:
            with_others = functools.partial(share, self.retriever, self.sharing, bound_shard, say=self.said.append)
            async with running(self.retriever, bound, self.options, with_others):
                self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
                self._up.set()
                await self._down.wait()

    async def ask(self, *queries: str, k: int = 4) -> tuple[int, Any]:
        async with aiohttp.ClientSession(self.url) as session:
            return await post(session, queries=queries, topk=k, return_scores=True)

    async def health(self) -> tuple[int, dict[str, str]]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as answer:
            return answer.status, (await answer.json())["nodes"]


def sharings(count: int = 3, token: str = "s3cret") -> list[Sharing]:
    addresses = tuple(Address("127.0.0.1", port) for port in free_ports(count))
    return [Sharing(addresses, shard, token) for shard in range(count)]


@asynccontextmanager
async def cluster(**options: Any) -> AsyncIterator[list[Node]]:
    """Three nodes that are up."""
    nodes = [Node(each, **options) for each in sharings()]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            await node.up()
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


def run(test: Test, **options: Any) -> None:
    async def main() -> None:
        async with cluster(**options) as nodes:
            await asyncio.wait_for(test(*nodes), 30 * SLOWER)

    with mock.patch.object(peers, "_LOOK_EVERY_S", 0.05):
        asyncio.run(main())


def expected(query: str, k: int = 4) -> list[dict[str, Any]]:
    hits = brute_force(ROWS, Numbers.vector(query), k)
    return [{"document": {"id": row, "contents": f"{row}"}, "score": score} for row, score in hits]


def test_each_node_answers_from_all_shards() -> None:
    async def test(*nodes: Node) -> None:
        asked = [(node, [str(n + each) for each in range(1 + n % 5)], 1 + n % 7) for n in range(30) for node in nodes]
        answers = await asyncio.gather(*(node.ask(*queries, k=k) for node, queries, k in asked))
        assert answers == [(200, {"result": [expected(query, k) for query in queries]}) for _, queries, k in asked]
        assert await nodes[0].ask("1", k=100) == (200, {"result": [expected("1", 50)]})
        for node in nodes:
            status, others = await node.health()
            assert (status, set(others.values())) == (200, {""})
            assert len(others) == 2

    run(test)


def test_a_bad_query_fails_alone() -> None:
    async def test(one: Node, *_: Node) -> None:
        answers = await asyncio.gather(*(one.ask(query) for query in ("1", "bad", "2")))
        assert [status for status, _ in answers] == [200, 500, 200]
        assert answers[2][1] == {"result": [expected("2")]}

    run(test)


def test_a_batch_that_is_too_large_for_another_node_is_searched_in_parts() -> None:
    async def test(one: Node, two: Node, _: Node) -> None:
        two.engine.most = 2
        queries = [str(each) for each in range(7)]
        assert await one.ask(*queries) == (200, {"result": [expected(query) for query in queries]})
        two.engine.most = 0
        status, said = await one.ask("1")
        assert (status, said["detail"]) == (
            500,
            f"RuntimeError: the node {two.sharing.address} answers 500: MemoryError: ",
        )

    run(test)


def test_a_node_that_is_lost_and_comes_back() -> None:
    async def test(one: Node, two: Node, three: Node) -> None:
        await three.stop()
        status, said = await one.ask("1")
        assert status == 503
        assert f"the node {three.sharing.address} does not answer" in said["detail"]

        async def not_ready() -> bool:
            return (await two.health())[0] == 503  # which has asked nothing

        await asyncio.wait_for(until(not_ready), 10 * SLOWER)
        again = Node(three.sharing)
        again.start()
        try:
            await again.up()

            async def ready() -> bool:
                return (await one.health())[0] == (await two.health())[0] == 200

            await asyncio.wait_for(until(ready), 10 * SLOWER)
            assert await one.ask("1") == await again.ask("1") == (200, {"result": [expected("1")]})
        finally:
            await again.stop()

    run(test)


def test_a_node_that_is_slow() -> None:
    async def test(one: Node, two: Node, _: Node) -> None:
        two.engine.go.clear()
        status, said = await one.ask("1")
        assert (status, said) == (503, {"detail": f"the node {two.sharing.address} does not answer within 2 s"})
        status, others = await one.health()
        assert (status, others[str(two.sharing.address)]) == (503, said["detail"])
        two.engine.go.set()

        async def ready() -> bool:
            return (await one.health())[0] == 200

        await asyncio.wait_for(until(ready), 10 * SLOWER)
        assert (await one.ask("1"))[0] == 200

    run(test, timeout_s=4.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "f2"}, r"answers 409: this is shard \d of 2 of index f\d .*, not shard \d of 2 of index f\d "),
        ({"token": "other"}, "answers 401: another token"),
    ],
)
def test_a_node_with_another_index_or_token(change: dict[str, str], said: str) -> None:
    """The one that finds out first ends with the reason."""

    async def main() -> None:
        one, two = sharings(2)
        two = Sharing(two.addresses, 1, change.get("token", two.token))
        nodes = [Node(one), Node(two, change.get("fingerprint", "f1"))]
        tasks = [nodes[1].start()]

        async def has_said() -> bool:
            return bool(nodes[1].said)

        await asyncio.wait_for(until(has_said), 20 * SLOWER)
        assert f"waiting for {one.address}: the node {one.address} does not answer" in nodes[1].said[0]
        tasks.append(nodes[0].start())
        [first, *_], others = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(InputError, match=said) as raised:
            first.result()
        assert "All nodes need the same index" in str(raised.value.hint)
        assert not nodes[0].url
        assert not nodes[1].url
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())


def test_a_port_that_is_blocked() -> None:
    """Connections are dropped, as by a firewall: those to a socket whose queue is full are."""
    one, two = sharings(2)

    async def main() -> None:
        node = Node(one)
        with pytest.raises(InputError, match=f"{two.address} cannot be reached") as raised:
            await asyncio.wait_for(node.start(), 20 * SLOWER)
        assert f"Open port {two.address.port} between the nodes" in str(raised.value.hint)
        assert f"waiting for {two.address}: the node {two.address} does not answer" in node.said[0]

    with contextlib.ExitStack() as held:
        full = held.enter_context(socket.create_server(tuple(two.address), backlog=0))
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        held.enter_context(mock.patch.multiple(peers, _CONNECT_S=0.2, _SILENT_S=0.5))
        asyncio.run(main())


@pytest.mark.parametrize(
    ("token", "shard", "query", "content", "status"),
    [
        ("", "", "?k=1", bytes(4 * DIM), 401),
        ("wrong", "", "?k=1", bytes(4 * DIM), 401),
        ("s3cret", "", "?k=1", bytes(4 * DIM), 409),
        ("s3cret", "own", "?k=1", bytes(4 * DIM), 200),
        ("s3cret", "own", "?k=1", bytes(4 * DIM + 1), 400),
        ("s3cret", "own", "?k=0", bytes(4 * DIM), 400),
        ("s3cret", "own", "?k=1001", bytes(4 * DIM), 400),
        ("s3cret", "own", "", bytes(4 * DIM), 400),
        ("s3cret", "own", "?k=1", np.full(DIM, np.nan, np.float32).tobytes(), 500),
    ],
)
def test_what_a_node_answers_others(token: str, shard: str, query: str, content: bytes, status: int) -> None:
    async def test(one: Node, *_: Node) -> None:
        name = peers.shard_name(one.retriever.identity, 0, 3) if shard == "own" else shard
        url = f"http://{one.sharing.address}"
        headers = {"Authorization": f"Bearer {token}", "X-Shard": name}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(f"{url}/shard{query}", data=content) as answer:
                assert answer.status == status
            async with session.post(f"{url}/retrieve", json={"queries": ["1"]}) as answer:
                assert answer.status in (401, 404, 409), "the others are not served as users are"

    run(test)


def test_an_address_that_is_not_of_this_node() -> None:
    sharing = Sharing((Address("192.0.2.1", 8100), Address("192.0.2.2", 8100)), 0, "t")
    with pytest.raises(InputError, match=r"192\.0\.2\.1:8100 cannot be used") as raised, bind_shard(sharing):
        pass
    assert raised.value.hint == "Name an address of this node and a free port with --peers"
