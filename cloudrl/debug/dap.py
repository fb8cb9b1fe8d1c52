"""A client of the Debug Adapter Protocol over a connected socket, for processes that debugpy has stopped.

The protocol: https://microsoft.github.io/debug-adapter-protocol/specification. What is at the other end is not trusted:
a frame that is too large or malformed ends the session.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from cloudrl.errors import CloudrlError
from cloudrl.foreign import parse_json

TIMEOUT_S = 15.0
"""For a request that the debugger answers by itself; a slow line included."""
_LOOK_S = 0.5
"""How long a wait lasts at most before Ctrl-C and time-outs are looked at."""
_ALIVE_S, _UNANSWERED = 30.0, 2
"""After so much silence of one that is waited for it is asked something, and after so many such questions it is gone:
the other end of a tunnel may vanish without a word."""
_HEAD_BYTES, _BODY_BYTES = 4096, 32 * 1024 * 1024
_EVENTS = ("stopped", "continued", "exited", "terminated", "debugpyAttach")
"""Those that are kept; a process that prints much sends many others."""
_KEPT_EVENTS = 1000


class ConnectionLost(CloudrlError):
    """The other end is gone, or does not speak the protocol."""

    exit_code = 5


class Refused(CloudrlError):
    """The debugger answers that it cannot do what was asked; the message is its own."""


class NoAnswer(CloudrlError):
    """The debugger has not answered in time; the answer is dropped if it comes."""


class DapClient:
    """One session with a debugger. For one thread.

    Args:
        connection: to the debugger; closed with the client.
        open_another: gives another connection to the same debugger, for a child of the process that waits for one.
        clock: seconds that never run backwards.

    Raises (each call):
        ConnectionLost: the other end is gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        open_another: Callable[[], socket.socket] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._socket, self._open_another, self._clock = connection, open_another, clock
        self._socket.settimeout(TIMEOUT_S)
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._buffer = bytearray()
        self._sent = 0
        self._answers: dict[int, Mapping[str, Any]] = {}
        self._awaited: set[int] = set()
        self._given_up: set[int] = set()
        self._asked_at, self._unanswered = clock(), 0
        self._events: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=_KEPT_EVENTS)
        self._is_initialized = False

    # -- a session -------------------------------------------------------------------------------------------

    def attach(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Become the client that the process waits for; it goes on to where it stops.

        All code is looked at, not only the user's: with debugpy's default the process would run through. Errors that
        no handler catches stop it, which is what a post-mortem waits for (debugpy 1.8.22).

        Args:
            arguments: of the request, beside ours.
        """
        client = {"clientID": "cloudrl", "adapterID": "debugpy", "pathFormat": "path", "locale": "en"}
        lines = {"linesStartAt1": True, "columnsStartAt1": True}
        self.request("initialize", {**client, **lines, "supportsVariableType": True})
        attached = self.send("attach", {**(arguments or {}), "justMyCode": False, "redirectOutput": False})
        self._until(lambda: self._is_initialized or attached in self._answers, TIMEOUT_S)
        if self._is_initialized:  # else it has refused, which the answer says
            self.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
            # else a breakpoint whose condition fails is passed over
            with suppress(Refused):
                self.request("setDebuggerProperty", {"skipSuspendOnBreakpointException": []})
            self.request("configurationDone")
        self.answer(attached)

    def disconnect(self) -> bool:
        """Leave; the process goes on without a debugger, and its breakpoints are gone. Whether that was answered."""
        try:
            self.request("disconnect", {"restart": False, "terminateDebuggee": False}, timeout_s=5)
        except CloudrlError:
            return False
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Close the connection, which the debugger takes for `disconnect`."""
        self._socket.close()

    def request(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = TIMEOUT_S
    ) -> Mapping[str, Any]:
        """Ask, and return the body of the answer.

        Args:
            command: of the protocol.
            arguments: of the command.
            timeout_s: None waits until Ctrl-C.

        Raises:
            Refused: the answer is no.
            NoAnswer: no answer within the time limit.
        """
        return self.answer(self.send(command, arguments), timeout_s)

    def send(self, command: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Ask, and return the number under which `answer` has the answer."""
        self._sent += 1
        self._awaited.add(self._sent)
        self._write({"seq": self._sent, "type": "request", "command": command, "arguments": dict(arguments or {})})
        return self._sent

    def answer(self, number: int, timeout_s: float | None = TIMEOUT_S) -> Mapping[str, Any]:
        """The body of an answer; see `request`."""
        try:
            self._until(lambda: number in self._answers, timeout_s)
            answer = self._answers[number]
        finally:
            self._awaited.discard(number)
            if self._answers.pop(number, None) is None:
                self._given_up.add(number)
        if answer.get("success") is not True:
            raise Refused(_reason(answer))
        return _mapping(answer.get("body"))

    def is_outstanding(self, number: int) -> bool:
        """Whether a request that was given up, by Ctrl-C or after its time, still has no answer."""
        self._take_what_came()
        return number in self._given_up

    def events(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Those that have come, without waiting: (name, body)."""
        self._take_what_came()
        while self._events:
            yield self._events.popleft()

    def next_event(self, timeout_s: float | None = None) -> tuple[str, Mapping[str, Any]]:
        """The next one, as soon as it is there; None waits until Ctrl-C.

        Raises:
            NoAnswer: no answer within the time limit.
        """
        self._until(lambda: bool(self._events), timeout_s)
        return self._events.popleft()

    # -- inside ----------------------------------------------------------------------------------------------

    def _until(self, is_there: Callable[[], bool], timeout_s: float | None) -> None:
        end = None if timeout_s is None else self._clock() + timeout_s
        while not is_there():
            left = _LOOK_S if end is None else min(_LOOK_S, end - self._clock())
            if left <= 0:
                raise NoAnswer(f"the debugger has not answered within {timeout_s:.0f} s")
            with self._no_surprise():
                if select.select([self._socket], [], [], left)[0]:
                    self._receive()
                else:
                    self._look_alive()

    def _look_alive(self) -> None:
        """Called when nothing comes: ask what can always be answered, whatever the process does."""
        if self._clock() - self._asked_at < _ALIVE_S or not self._is_initialized:
            return
        if self._unanswered == _UNANSWERED:
            raise ConnectionLost(f"the debugger has answered nothing for {_UNANSWERED * _ALIVE_S:.0f} s")
        self._unanswered += 1
        self._asked_at = self._clock()
        self._awaited.discard(self.send("threads"))

    def _take_what_came(self) -> None:
        with self._no_surprise():
            while select.select([self._socket], [], [], 0)[0]:
                self._receive()

    def _receive(self) -> None:
        """Take what has come; called when there is something."""
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionLost("the connection to the debugger was closed")
        self._asked_at, self._unanswered = self._clock(), 0
        self._buffer += chunk
        while (message := self._next_message()) is not None:
            self._take(message)

    def _next_message(self) -> Mapping[str, Any] | None:
        """The first whole frame of the buffer: `Content-Length: N`, an empty line, and JSON."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 and len(self._buffer) <= _HEAD_BYTES:
            return None
        length = _length(bytes(self._buffer[: max(end, 0)]))
        start = end + 4
        if len(self._buffer) < start + length:
            return None
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        try:
            message = parse_json(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ConnectionLost("the port does not speak the debugger protocol: a frame is not a message")
        return message

    def _take(self, message: Mapping[str, Any]) -> None:
        kind, number = message.get("type"), message.get("request_seq")
        if kind == "response" and isinstance(number, int):
            self._given_up.discard(number)
            if number in self._awaited:
                self._answers[number] = message
        elif kind == "event":
            self._take_event(str(message.get("event")), _mapping(message.get("body")))
        elif kind == "request":  # runInTerminal and the like
            answer = {"type": "response", "request_seq": message.get("seq"), "command": message.get("command")}
            self._sent += 1
            self._write({**answer, "seq": self._sent, "success": False, "message": "not supported"})

    def _take_event(self, name: str, body: Mapping[str, Any]) -> None:
        if name == "initialized":
            self._is_initialized = True
        if name == "debugpyAttach":
            self._release_child(body)
        if name in _EVENTS:
            self._events.append((name, body))

    def _release_child(self, arguments: Mapping[str, Any]) -> None:
        """A child of the process waits for a client of its own; it gets one, which leaves at once."""
        if self._open_another is None:
            return
        with suppress(CloudrlError, OSError):
            child = DapClient(self._open_another(), clock=self._clock)
            try:
                child.attach(arguments)
            finally:
                child.disconnect()

    def _write(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        with self._no_surprise():
            self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    @contextmanager
    def _no_surprise(self) -> Iterator[None]:
        """Errors of the socket, one that is closed already among them, are a lost connection."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"the connection to the debugger broke: {error}") from error


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        digits = value.strip()
        if name.strip().lower() == b"content-length" and digits.isdigit() and len(digits) < 12:
            length = int(digits)
            if length <= _BODY_BYTES:
                return length
            raise ConnectionLost(f"the debugger sends {length} bytes at once; {_BODY_BYTES} are the limit")
    raise ConnectionLost("the port does not speak the debugger protocol: a frame has no length")


def _reason(answer: Mapping[str, Any]) -> str:
    error = _mapping(_mapping(answer.get("body")).get("error"))
    return str(answer.get("message") or error.get("format") or "refused")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
