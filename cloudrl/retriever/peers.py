"""The nodes that share an index, over HTTP: what a node answers the others, and how it asks them.

Only holders of the token are answered, and only where both mean the same shard of the same index.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import aiohttp
import numpy as np
from aiohttp import web

from cloudrl.errors import InputError
from cloudrl.foreign import LIMIT_BYTES
from cloudrl.listening.heads import Head, Refused, check_target
from cloudrl.listening.web_pages import Headers
from cloudrl.retriever.addresses import Address, bind, refusals
from cloudrl.retriever.batching import Unavailable
from cloudrl.retriever.engine import FlatEngine, Found
from cloudrl.retriever.exact import Hit
from cloudrl.retriever.opening import Retriever
from cloudrl.retriever.requests import MAX_TOPK
from cloudrl.retriever.sharing import Sharing, hits_bytes, merge, read_hits, read_vectors, vectors_bytes
from cloudrl.retriever.site import GuardedSite, answering, make_runner
from cloudrl.retriever.tokens import shows_token
from cloudrl.retriever.vectors import Floats
from cloudrl.units import limit_text

InThread = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in the thread that searches."""
_PATH, _SHARD_HEADER = "/shard", "X-Shard"
_BODY_BYTES = 1 << 26
_CONNECT_S, _LOOK_EVERY_S, _RETRY_S, _SHUTDOWN_S = 5.0, 2.0, 0.2, 5.0
_SILENT_S = 120.0
"""A node that loads refuses a connection at once. One that gives no answer at all for so long cannot be reached."""
_REFUSALS = (401, 409)
_HINT = "Name an address of this node and a free port with --peers"


def bind_shard(sharing: Sharing) -> contextlib.AbstractContextManager[socket.socket]:
    """Take the address of this node's shard for a block.

    Raises:
        InputError: it cannot be used.
    """
    return bind(sharing.address, hint=_HINT)


def shard_name(identity: dict[str, Any], shard: int, shards: int) -> str:
    """What tells a shard from all others: nodes that name it equally search the same rows."""
    index, corpus = identity["index"]["fingerprint"], identity["corpus"]["sha256"][:16]
    return f"shard {shard} of {shards} of index {index} with corpus {corpus}"


class Peer:
    """Another node, which holds one shard.

    Args:
        session: shows the token.
        address: where it answers.
        name: of the shard that it should hold.

    Attributes:
        fault: why it could not be asked the last time; "" if it could.
        is_refused: whether it is there, but is or wants something else.
        silent_since: when it was asked for the first time of those that it has not even refused, by `time.monotonic`.
    """

    def __init__(self, session: aiohttp.ClientSession, address: Address, name: str) -> None:
        self._session, self.address, self._name = session, address, name
        self.fault, self.is_refused = f"the node {address} has not been asked yet", False
        self.silent_since: float | None = None

    async def look(self, timeout_s: float) -> None:
        """Find out whether it can search."""
        with contextlib.suppress(Unavailable, RuntimeError):
            await self._ask("GET", timeout_s)

    async def search(self, content: bytes, queries: int, k: int, timeout_s: float) -> list[list[Hit]]:
        """What it finds for so many queries.

        Raises:
            Unavailable: it does not answer in time, or is another.
            RuntimeError: its search has failed.
        """
        try:
            return read_hits(await self._ask("POST", timeout_s, content, k=k), queries)
        except ValueError:
            self.fault = f"the node {self.address} answers with something else than hits"
            raise Unavailable(self.fault) from None

    async def _ask(self, method: str, timeout_s: float, content: bytes | None = None, **query: int) -> bytes:
        began, is_silent = time.monotonic(), False
        try:
            async with self._session.request(
                method,
                f"http://{self.address}{_PATH}",
                params=query,
                data=content,
                headers={_SHARD_HEADER: self._name},
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S),
            ) as answer:
                status, body = answer.status, await _content(answer)
        except asyncio.TimeoutError as error:
            is_silent = isinstance(error, aiohttp.ConnectionTimeoutError)
            status, reason = 0, f"does not answer within {timeout_s:g} s"
        except aiohttp.ClientError as error:
            status, reason = 0, f"does not answer: {str(error) or repr(error)}"
        else:
            reason = f"answers {status}: {body[:300].decode(errors='replace')}"
        self.is_refused = status in _REFUSALS
        self.silent_since = (self.silent_since or began) if is_silent else None
        self.fault = "" if status == 200 else f"the node {self.address} {reason}"
        if status == 500:  # as for its memory, which half of the batch may fit into
            raise RuntimeError(self.fault)
        if status != 200:
            raise Unavailable(self.fault)
        return body


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """The body.

    Raises:
        aiohttp.ClientPayloadError: It is longer than any answer of a node.
    """
    content = bytearray()
    async for piece in answer.content.iter_chunked(1 << 16):
        content += piece
        if len(content) > LIMIT_BYTES:
            raise aiohttp.ClientPayloadError(f"it sends more than {limit_text(LIMIT_BYTES)}")
    return bytes(content)


class Shared:
    """Searches all shards.

    Args:
        retriever: with this node's shard.
        peers: all other nodes.
        in_thread: see `InThread`.
        timeout_s: for an answer of a node.
    """

    def __init__(self, retriever: Retriever, peers: Sequence[Peer], in_thread: InThread, timeout_s: float) -> None:
        self._retriever, self._peers, self._in_thread, self._timeout_s = retriever, peers, in_thread, timeout_s
        self._engine = cast("FlatEngine", retriever.engine)  # `open_retriever` refuses others

    @property
    def nodes(self) -> dict[str, str]:
        """The other nodes, and what is wrong with each."""
        return {str(peer.address): peer.fault for peer in self._peers}

    async def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        """For each query at most `k` passages, the best first.

        Raises:
            Unavailable: a node does not answer.
            ValueError: the vector of a query is not finite.
        """
        vectors = await self._in_thread(self._encode, queries)
        content = vectors_bytes(vectors)
        asked = [asyncio.create_task(peer.search(content, len(queries), k, self._timeout_s)) for peer in self._peers]
        try:
            own = await self._in_thread(self._engine.search_vectors, vectors, k)
            others = await asyncio.gather(*asked)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        # not in the thread that searches, where a batch of another node may be next
        return await asyncio.to_thread(lambda: self._retriever.passages(merge([own, *others], k)))

    def _encode(self, queries: Sequence[str]) -> Floats:
        vectors = self._engine.encoder.encode_queries(queries)
        if not np.isfinite(vectors).all():
            raise ValueError("the vector of a query is not finite")
        return vectors


class _Listener:
    """What this node answers the others.

    Args:
        engine: with its shard.
        name: of the shard.
        token: to be shown.
        in_thread: see `InThread`.
    """

    def __init__(self, engine: FlatEngine, name: str, token: str, in_thread: InThread) -> None:
        self._engine, self._name, self._token, self._in_thread = engine, name, token, in_thread
        self.app = web.Application(client_max_size=_BODY_BYTES, middlewares=[self._admit])
        self.app.router.add_get(_PATH, self._look)
        self.app.router.add_post(_PATH, self._search)

    def check(self, head: Head) -> None:
        """Return for a first request with the token. This is called in the thread that accepts.

        Raises:
            Refused: It has another token, or none.
        """
        self._check_token(head.get)
        check_target(head.target)

    def _check_token(self, headers: Headers) -> None:
        if not shows_token(headers("Authorization") or "", self._token):
            raise Refused(401, "another token")

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            self._check_token(request.headers.get)
        except Refused as refused:
            return web.Response(status=refused.status, text=refused.reason)
        if (asked := request.headers.get(_SHARD_HEADER)) != self._name:
            return web.Response(status=409, text=f"this is {self._name}, not {asked}")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _look(self, request: web.Request) -> web.Response:
        with answering(request):
            await self._in_thread(int)  # it comes to its turn
        return web.Response()

    async def _search(self, request: web.Request) -> web.Response:
        try:
            vectors = read_vectors(await request.read(), self._engine.encoder.dim)
            k = int(request.query["k"])
            if not 0 < k <= MAX_TOPK:
                raise ValueError(f"k is {k}")
        except (ValueError, KeyError) as error:
            return web.Response(status=400, text=repr(error))
        try:
            with answering(request):
                body = await self._in_thread(lambda: hits_bytes(self._engine.search_vectors(vectors, k)))
        except Exception as error:  # noqa: BLE001 - of the engine, for the node that asks
            return web.Response(status=500, text=f"{type(error).__name__}: {error}")
        return web.Response(body=body)


@contextlib.asynccontextmanager
async def share(
    retriever: Retriever,
    sharing: Sharing,
    bound: socket.socket,
    in_thread: InThread,
    timeout_s: float,
    *,
    say: Callable[[str], object],
) -> AsyncIterator[Shared]:
    """Answer the other nodes within the block, which begins when all of them answer.

    Args:
        retriever: with this node's shard.
        sharing: the nodes.
        bound: from `bind_shard`.
        in_thread: see `InThread`.
        timeout_s: for an answer of a node.
        say: gets the name of the node that it waits for.

    Raises:
        InputError: a node has another index, or another token, or its port is blocked.
    """
    shards = len(sharing.addresses)
    names = [shard_name(retriever.identity, shard, shards) for shard in range(shards)]
    engine = cast("FlatEngine", retriever.engine)
    listener = _Listener(engine, names[sharing.shard], sharing.token, in_thread)
    runner = make_runner(listener.app, shutdown_timeout_s=_SHUTDOWN_S)
    await runner.setup()
    try:
        with refusals(sharing.address, hint=_HINT):
            await GuardedSite(runner, bound, listener.check, lambda _status, reason: reason, "text/plain").start()
        headers = {"Authorization": f"Bearer {sharing.token}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
            peers = [
                Peer(session, address, name)
                for address, name in zip(sharing.addresses, names, strict=True)
                if address != sharing.address
            ]
            await _wait_for(peers, timeout_s, say)
            looking = asyncio.create_task(_keep_looking(peers, timeout_s))
            try:
                yield Shared(retriever, peers, in_thread, timeout_s)
            finally:
                looking.cancel()
                await asyncio.wait([looking])
    finally:
        await runner.cleanup()


async def _wait_for(peers: Sequence[Peer], timeout_s: float, say: Callable[[str], object]) -> None:
    reported = None
    while True:
        await asyncio.gather(*(peer.look(timeout_s) for peer in peers))
        missing = [peer for peer in peers if peer.fault]
        if not missing:
            return
        if refused := [peer.fault for peer in missing if peer.is_refused]:
            raise InputError(refused[0], hint="All nodes need the same index, --peers and token, and a --shard each")
        now = time.monotonic()
        if blocked := [peer for peer in missing if peer.silent_since and now - peer.silent_since > _SILENT_S]:
            raise InputError(
                f"{blocked[0].address} cannot be reached, and does not refuse either",
                hint=f"Open port {blocked[0].address.port} between the nodes (firewall, security group)",
            )
        if [peer.address for peer in missing] != reported:
            reported = [peer.address for peer in missing]
            say(f"waiting for {', '.join(map(str, reported))}: {missing[0].fault}")
        await asyncio.sleep(_RETRY_S)


async def _keep_looking(peers: Sequence[Peer], timeout_s: float) -> None:
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        await asyncio.gather(*(peer.look(timeout_s) for peer in peers))
