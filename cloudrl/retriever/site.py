"""Where aiohttp gets its connections from: `listening.Acceptor`, which admits them by their head.

asyncio accepts whatever comes, gives none of it an end, and prints a traceback for each connection that finds no
descriptor: with 1,300 half-open connections and 1,024 descriptors a server was dead and wrote a megabyte a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from cloudrl.listening.acceptor import Acceptor, Limits
from cloudrl.listening.heads import SERVER_NAME, Head, is_complete, refusals

_LINGER_S = 1.0
_LIMITS = Limits()
_log = logging.getLogger("cloudrl.retriever.aiohttp")


def _is_fault_of_ours(record: logging.LogRecord) -> bool:
    """Whether it is not about a malformed request: aiohttp prints a traceback for each, which any client can cause."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


_log.addFilter(_is_fault_of_ours)


def make_runner(app: web.Application, *, shutdown_timeout_s: float) -> web.AppRunner:
    """A runner for a `GuardedSite`, whose answers do not name Python."""
    app.on_response_prepare.append(_name_server)
    # what a client has given up is cancelled, and not searched
    return web.AppRunner(app, handler_cancellation=True, shutdown_timeout=shutdown_timeout_s)


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER_NAME


class _Connection(web.RequestHandler):
    """One connection, whose answers to malformed requests, which reach no application, do not name Python either."""

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
        made = _Connection(server, loop=self._loop, access_log=None, logger=_log, lingering_time=_LINGER_S)  # type: ignore[arg-type]
        starting = self._loop.connect_accepted_socket(lambda: _Resumed(made, received), connection)
        task = self._loop.create_task(_without_errors(starting, connection))
        self._starting.add(task)  # asyncio itself keeps no task alive
        task.add_done_callback(self._starting.discard)


async def _without_errors(starting: Any, connection: socket.socket) -> None:
    try:
        await starting
    except OSError:  # the client has gone
        connection.close()


class _Resumed(asyncio.Protocol):
    """Gives a protocol what was read already, before the loop reads on."""

    def __init__(self, protocol: asyncio.Protocol, received: bytes) -> None:
        self._protocol, self._received = protocol, received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        self._protocol.data_received(self._received)
