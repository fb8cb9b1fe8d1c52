"""The server: `POST /retrieve` as Search-R1's, `GET /health` and `GET /metrics`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http_exceptions import PayloadEncodingError

from cloudrl.errors import InputError
from cloudrl.listening.heads import Head, Refused, check_target
from cloudrl.listening.web_pages import Headers, refuse_web_pages
from cloudrl.retriever import addresses
from cloudrl.retriever.addresses import Address, is_loopback
from cloudrl.retriever.batching import Batcher, QueueFull, Unavailable
from cloudrl.retriever.counters import Counters
from cloudrl.retriever.engine import Found, Searches
from cloudrl.retriever.requests import MAX_PASSAGES, InvalidRequest, RetrieveRequest, parse_request
from cloudrl.retriever.site import GuardedSite, answering, make_runner
from cloudrl.retriever.tokens import TOKEN_HINT, shows_token

TIMEOUT_HEADER = "X-Timeout-S"
"""How long a client waits; it gets 504 then, and queries that no other client asked for are not searched."""
DEFAULT_TOPK, DEFAULT_PORT = 3, 8000
_BODY_BYTES, _BODY_S, _BODY_WITHOUT_TOKEN_S = 1 << 26, 60.0, 10.0
_SHUTDOWN_S = 5.0
_OTHER_PORT = "Name another: --port 8001"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Shared(Protocol):
    """An index in shards, on several nodes: see `peers.Shared`."""

    @property
    def nodes(self) -> dict[str, str]:
        """The other nodes, and what is wrong with each."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        """As `Searches.search`."""


Share = Callable[[Callable[..., Awaitable[Any]], float], contextlib.AbstractAsyncContextManager[Shared]]
"""Of the thread that searches and of the seconds for an answer of a node makes what asks all nodes."""


@dataclass(frozen=True)
class ServeOptions:
    """How to serve.

    Attributes:
        host: an address of this machine.
        port: 0 for any that is free.
        token: that callers have to show; needed beyond loopback.
        topk: for requests that do not say.
        timeout_s: for requests that do not say by `TIMEOUT_HEADER`.
        max_batch: queries that are searched at once.
        max_waiting: queries that may wait for it.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str = ""
    topk: int = DEFAULT_TOPK
    timeout_s: float = 60.0
    max_batch: int = 512
    max_waiting: int = 1 << 14


def bind(options: ServeOptions) -> contextlib.AbstractContextManager[socket.socket]:
    """Take the port for a block. Clients can connect once the server is ready to answer.

    Raises:
        InputError: it is taken, or everybody would be let in.
    """
    if not options.token and not is_loopback(options.host):
        raise InputError(
            f"{options.host} can be reached by others, and there is no token",
            hint=f"{TOKEN_HINT}\nOr leave out --host",
        )
    return addresses.bind(Address(options.host, options.port), hint=_OTHER_PORT)


def serve(
    retriever: Searches,
    bound: socket.socket,
    options: ServeOptions,
    *,
    on_ready: Callable[[], object],
    share: Share | None = None,
) -> None:
    """Answer requests until SIGINT or SIGTERM.

    Args:
        retriever: what is served.
        bound: from `bind`.
        options: as for `bind`.
        on_ready: is called when requests are answered.
        share: see `running`.

    Raises:
        InputError: somebody else listens on the port meanwhile, or a node that shares the index has another.
    """
    gc.collect()
    gc.freeze()  # what is loaded stays; to look through it again and again would hold up requests
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve(retriever, bound, options, on_ready, share))


async def _serve(
    retriever: Searches,
    bound: socket.socket,
    options: ServeOptions,
    on_ready: Callable[[], object],
    share: Share | None,
) -> None:
    serving = asyncio.current_task()
    assert serving is not None  # noqa: S101 - it is one
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    async with running(retriever, bound, options, share) as worker:
        on_ready()
        await asyncio.wait([worker])  # which is not cancelled with it, so that requests that wait are answered
        worker.result()


@contextlib.asynccontextmanager
async def running(
    retriever: Searches, bound: socket.socket, options: ServeOptions, share: Share | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """A server that answers within the block, and the task that searches, which ends by a fault of ours alone.

    Requests that wait at the end of the block have five seconds.

    Args:
        retriever: what is served.
        bound: from `bind`.
        options: as for `bind`.
        share: for an index in shards, what searches all of them: `peers.share`.

    Raises:
        InputError: see `serve`.
    """
    counters = Counters()
    async with contextlib.AsyncExitStack() as held:
        executor = held.enter_context(ThreadPoolExecutor(1, "search"))
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, executor)
        shared = await held.enter_async_context(share(in_thread, options.timeout_s / 2)) if share else None
        search = shared.search if shared else functools.partial(in_thread, retriever.search)
        batcher: Batcher[list[Found]] = Batcher(
            search, counters, max_batch=options.max_batch, max_waiting=options.max_waiting
        )
        server = Server(retriever.identity, batcher, counters, options, shared)
        worker = asyncio.create_task(batcher.run())
        runner = make_runner(server.app, shutdown_timeout_s=_SHUTDOWN_S)
        await runner.setup()
        try:
            with addresses.refusals(Address(options.host, options.port), hint=_OTHER_PORT):
                await GuardedSite(runner, bound, server.check, _body).start()
            yield worker
        finally:
            await runner.cleanup()
            worker.cancel()
            await asyncio.wait([worker])


class Server:
    """The routes.

    Args:
        identity: of what is served.
        batcher: answers queries.
        counters: to be told.
        options: see there.
        shared: what asks the other nodes, if there are any.

    Attributes:
        app: of aiohttp.
    """

    def __init__(
        self,
        identity: dict[str, Any],
        batcher: Batcher[list[Found]],
        counters: Counters,
        options: ServeOptions,
        shared: Shared | None = None,
    ) -> None:
        self._identity, self._batcher, self._counters, self._options = identity, batcher, counters, options
        self._shared = shared
        self._began = time.monotonic()
        self.app = web.Application(client_max_size=_BODY_BYTES, middlewares=[self._authorize])
        self.app.router.add_post("/retrieve", self._retrieve)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/metrics", self._metrics)

    def check(self, head: Head) -> None:
        """Return for a first request that may reach the routes. This is called in the thread that accepts.

        Raises:
            Refused: No request with that path and these headers is answered.
        """
        self._admit(head.path, head.get)
        check_target(head.target)

    def _admit(self, path: str, headers: Headers) -> bool:
        """Whether a request is one of the server's users; else it asks for `/health` only.

        Raises:
            Refused: It is neither.
        """
        token, shown = self._options.token, headers("Authorization") or ""
        try:
            if not token:  # on loopback, where every page that the browser shows may send requests
                refuse_web_pages(headers)
            elif not shows_token(shown, token):
                raise Refused(401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"})
        except Refused:
            if path == "/health" and not (token and shown):  # a gateway's health check is not use
                return False
            self._counters.requests["refused"] += 1
            raise
        return True

    @web.middleware
    async def _authorize(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            if not self._admit(request.path, request.headers.get):
                ready = web.json_response({"ready": self._is_ready}, status=200 if self._is_ready else 503)
                ready.force_close()  # who has not shown the token keeps no connection
                return ready
            return await handler(request)
        except Refused as refused:
            return _error(refused.status, refused.reason, refused.headers)
        except web.HTTPException as error:  # no such path or method
            allowed = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
            return _error(error.status, error.reason, allowed)

    async def _retrieve(self, request: web.Request) -> web.Response:
        outcome, began = "failed", time.monotonic()
        try:
            asked, timeout_s = self._parse(await self._content(request), request.headers.get(TIMEOUT_HEADER))
            self._counters.queries += len(asked.queries)
            answer = self._batcher.ask(asked.queries, asked.topk or self._options.topk)
            with answering(request):
                hits = await asyncio.wait_for(answer, timeout_s)
            outcome = "answered"
            self._counters.request_s.add(time.monotonic() - began)
            return web.Response(
                body=answer_body(hits, with_scores=asked.return_scores), content_type="application/json"
            )
        except (InvalidRequest, Refused) as error:
            outcome = "invalid"
            return (
                _error(422, error.detail) if isinstance(error, InvalidRequest) else _error(error.status, error.reason)
            )
        except Unavailable as error:
            outcome = "queue_full" if isinstance(error, QueueFull) else "failed"
            return _error(503, error.message, {"Retry-After": str(error.retry_after_s)})
        except asyncio.TimeoutError:
            outcome = "late"
            return _error(504, f"not answered within {timeout_s:g} s")
        except (asyncio.CancelledError, ConnectionError):
            outcome = "gone"
            raise
        except Exception as error:  # noqa: BLE001 - of the engine, for this request alone
            return _error(500, f"{type(error).__name__}: {error}")
        finally:
            self._counters.requests[outcome] += 1

    async def _content(self, request: web.Request) -> bytes:
        """The body of a request.

        Raises:
            Refused: It does not come in time, is too large, or is not what its headers say.
        """
        limit_s = _BODY_S if self._options.token else _BODY_WITHOUT_TOKEN_S
        try:
            return await asyncio.wait_for(request.read(), limit_s)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body has not come within {limit_s:g} s") from None
        except web.HTTPRequestEntityTooLarge:
            raise Refused(413, f"a request has at most {_BODY_BYTES:,} bytes") from None
        except (web.RequestPayloadError, PayloadEncodingError) as error:
            encoding = request.headers.get("Content-Encoding", "identity")
            raise Refused(400, f"the body does not fit its headers: encoding {encoding[:40]!r}, length") from error

    def _parse(self, content: bytes, timeout: str | None) -> tuple[RetrieveRequest, float]:
        asked = parse_request(content)
        if len(asked.queries) > self._options.max_waiting:
            text = f"a request has at most {self._options.max_waiting} queries, not {len(asked.queries)}"
            raise InvalidRequest([{"type": "too_long", "loc": ["body", "queries"], "msg": text}])
        wanted = len(asked.queries) * (asked.topk or self._options.topk)
        if wanted > MAX_PASSAGES:
            text = f"an answer has at most {MAX_PASSAGES:,} passages, and queries times topk is {wanted:,}"
            raise InvalidRequest([{"type": "too_long", "loc": ["body", "topk"], "msg": text}])
        try:
            timeout_s = float(timeout or self._options.timeout_s)
        except ValueError:
            timeout_s = -1.0
        if not 0 < timeout_s <= 86_400:
            text = f"{timeout!r} is not a number of seconds above 0"
            raise InvalidRequest([{"type": "timeout", "loc": ["header", TIMEOUT_HEADER], "msg": text}])
        return asked, timeout_s

    @property
    def _is_ready(self) -> bool:
        return not self._batcher.is_broken and not (self._shared and any(self._shared.nodes.values()))

    async def _health(self, _: web.Request) -> web.Response:
        is_ready = self._is_ready
        return web.json_response(
            {
                "ready": is_ready,
                **self._identity,
                **({"nodes": self._shared.nodes} if self._shared else {}),
                "waiting": self._batcher.waiting,
                **self._counters.as_json(),
                "uptime_s": round(time.monotonic() - self._began, 1),
                "pid": os.getpid(),
            },
            status=200 if is_ready else 503,
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        gauges = {"waiting": self._batcher.waiting, "ready": self._is_ready}
        return web.Response(text=self._counters.as_metrics(gauges))


def answer_body(answers: list[list[Found]], *, with_scores: bool) -> bytes:
    """The answer, with documents as in the corpus.

    Scores are those of float64 rounded to float32's seven digits.
    """
    if with_scores:
        lists = (
            b",".join(b'{"document":%b,"score":%b}' % (document, b"%.9g" % score) for document, score in hits)
            for hits in answers
        )
    else:
        lists = (b",".join(document for document, _ in hits) for hits in answers)
    return b'{"result":[' + b",".join(b"[%b]" % passages for passages in lists) + b"]}"


def _body(_status: int, reason: str) -> str:
    return json.dumps({"detail": reason})


def _error(status: int, detail: object, headers: dict[str, str] | None = None) -> web.Response:
    answer = web.Response(
        status=status, text=json.dumps({"detail": detail}), content_type="application/json", headers=headers
    )
    if status in (400, 401, 403, 408):
        answer.force_close()
    return answer
