"""Where aiohttp gets its connections from: `listening.Acceptor`, which admits them by their head.

asyncio accepts whatever comes, gives none of it an end, and prints a traceback for each connection that finds no
descriptor: with 1,300 half-open connections and 1,024 descriptors a server was dead and wrote a megabyte a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from cloudrl.listening.acceptor import Acceptor, Limits
from cloudrl.listening.heads import SERVER_NAME, Head, is_complete, refusals

_LINGER_S = 1.0
_IDLE_S = 1.0
"""So long, a connection is kept without a whole request, even when a quarter of the descriptors is in use."""
_LIMITS = Limits()
_log = logging.getLogger("cloudrl.retriever.aiohttp")


def _is_fault_of_ours(record: logging.LogRecord) -> bool:
    """Whether it is not about a client that sends something malformed or goes away: any client can cause thousands."""
    return record.exc_info is None or not isinstance(record.exc_info[1], (HttpProcessingError, OSError))


_log.addFilter(_is_fault_of_ours)


def make_runner(app: web.Application, *, shutdown_timeout_s: float) -> web.AppRunner:
    """A runner for a `GuardedSite`, whose answers do not name Python."""
    app.on_response_prepare.append(_name_server)
    # what a client has given up is cancelled, and not searched
    return web.AppRunner(app, handler_cancellation=True, shutdown_timeout=shutdown_timeout_s)


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER_NAME


@contextlib.contextmanager
def answering(request: web.Request) -> Iterator[None]:
    """Keep the connection of a request, which has come whole, for the block: it is not idle."""
    connection = request.protocol
    if not isinstance(connection, _Connection):
        raise TypeError("the request has come over another site")
    connection.is_busy = True
    try:
        yield
    finally:
        connection.is_busy, connection.idle_since = False, time.monotonic()


class _Connection(web.RequestHandler):
    """One connection, whose answers to malformed requests, which reach no application, do not name Python either.

    Attributes:
        is_busy: Whether a whole request is being answered.
        idle_since: When it began, or its last answer was ready.
        on_lost: Is called at its end.
    """

    is_busy = False
    idle_since = 0.0
    on_lost: Callable[[], object]

    def connection_lost(self, exc: BaseException | None) -> None:
        self.on_lost()
        super().connection_lost(exc)

    def handle_error(self, *words: Any, **more: Any) -> web.StreamResponse:
        response = super().handle_error(*words, **more)
        response.headers["Server"] = SERVER_NAME
        return response


class GuardedSite(web.BaseSite):
    """Serves the runner's application on a socket.

    Args:
        runner: Was set up.
        bound: Does not listen yet.
        check: Raises `Refused` for the first request of a connection that is not admitted; called in another thread.
        body: The answer's body then, by its status and reason.
        kind: Content type of the body.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        bound: socket.socket,
        check: Callable[[Head], object],
        body: Callable[[int, str], str],
        kind: str = "application/json",
    ) -> None:
        super().__init__(runner)
        self._bound = bound
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Connection, None] = {}  # in the order of their beginning
        self._timer: asyncio.TimerHandle | None = None
        self._starting: set[asyncio.Task[Any]] = set()
        self._acceptor = Acceptor(
            bound, is_complete=is_complete, refusal_of=refusals(check, body, kind), hand_over=self._hand_over,
            limits=_LIMITS,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """For aiohttp's own messages."""
        return "http://{}:{}".format(*self._bound.getsockname()[:2])

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: Another process listens on the port.
        """
        await super().start()
        self._bound.listen(_LIMITS.backlog)
        threading.Thread(target=self._acceptor.serve_forever, daemon=True).start()

    async def stop(self) -> None:
        """Listen no more. Connections that were admitted go on."""
        await asyncio.to_thread(self._acceptor.close)
        self._bound.close()
        await asyncio.sleep(0)  # the last one may have been handed over just now
        if self._starting:
            await asyncio.wait(self._starting)
        if self._timer is not None:
            self._timer.cancel()
        await super().stop()

    def _hand_over(self, connection: socket.socket, _address: object, received: bytes) -> None:
        try:
            self._loop.call_soon_threadsafe(self._serve, connection, received)
        except RuntimeError:  # the loop has ended
            connection.close()

    def _serve(self, connection: socket.socket, received: bytes) -> None:
        server = self._runner.server
        if server is None:
            connection.close()
            return
        if self._timer is None:
            self._make_room()
        made = _Connection(server, loop=self._loop, access_log=None, logger=_log, lingering_time=_LINGER_S)  # type: ignore[arg-type]
        made.idle_since, made.on_lost = time.monotonic(), functools.partial(self._open.pop, made, None)
        self._open[made] = None
        starting = self._loop.connect_accepted_socket(lambda: _Resumed(made, received), connection)
        task = self._loop.create_task(_without_errors(starting, connection, made.on_lost))
        self._starting.add(task)  # asyncio itself keeps no task alive
        task.add_done_callback(self._starting.discard)

    def _make_room(self) -> None:
        """While too many are open, close the oldest idle ones, which wait for a request or for the rest of one."""
        self._timer = None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        excess = 0 if soft == resource.RLIM_INFINITY else len(self._open) - soft // 4
        if excess <= 0:
            return
        latest = time.monotonic() - _IDLE_S
        idle = (connection for connection in self._open if not connection.is_busy and connection.idle_since < latest)
        for connection in [*itertools.islice(idle, excess)]:
            if connection.transport is not None:
                connection.transport.abort()
        self._timer = self._loop.call_later(_IDLE_S / 4, self._make_room)


async def _without_errors(starting: Any, connection: socket.socket, on_lost: Callable[[], object]) -> None:
    try:
        await starting
    except OSError:  # the client has gone
        connection.close()
        on_lost()


class _Resumed(asyncio.Protocol):
    """Gives a protocol what was read already, before the loop reads on."""

    def __init__(self, protocol: asyncio.Protocol, received: bytes) -> None:
        self._protocol, self._received = protocol, received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        self._protocol.data_received(self._received)
