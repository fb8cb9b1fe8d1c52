"""What every call to an agent has in common: the token, the way to its method, bodies, ranges, and other ranks."""

from __future__ import annotations

import contextlib
import functools
import hmac
import http.client
import json
import re
import socket
from typing import Any, BinaryIO, Callable, Dict, Mapping, Optional, Tuple, TypeVar
from urllib.parse import parse_qsl, unquote

from cloudrl.listening.heads import Refused, check_target
from cloudrl.listening.http_server import ConnectionHandler
from cloudrl.listening.joining import join
from cloudrl.listening.web_pages import Headers, refuse_other_sites
from cloudrl.node.agent import Agent
from cloudrl.node.files import disk_refusal
from cloudrl.node.ranges import Span, number, parse_range
from cloudrl.node.relay import Relays
from cloudrl.protocol import routes
from cloudrl.protocol.client import AgentClient, AgentRefused
from cloudrl.protocol.exchange import Request, Response, is_network_error
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.wire import to_json
from cloudrl.units import limit_text

T = TypeVar("T")
_MAX_BODY_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 5.0
_METHODS = {route.method for route in routes.ROUTES}
BYTES: Mapping[str, str] = {"Content-Type": "application/octet-stream"}
_OWN_HEADERS = ("server", "date", "connection")
"""What an answer that is passed on does not keep of another agent's."""
_CODES = {401: ErrorCode.UNAUTHORIZED, 403: ErrorCode.FORBIDDEN}
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def check_request(headers: Headers, target: str, token: str) -> None:
    """Return for a call with the token; it comes first, so that strangers learn nothing else.

    Raises:
        Refused: Without the token, from a web page, or where the target is not a path.
    """
    shown = (headers("Authorization") or "").encode("utf-8", "replace")
    if not hmac.compare_digest(shown, f"Bearer {token}".encode()):
        raise Refused(401, "wrong or missing token")
    refuse_other_sites(headers)
    check_target(target)


def refusal(status: int, reason: str) -> Dict[str, Any]:
    """The body of an answer that refuses what is not a call."""
    return ApiError(_CODES.get(status, ErrorCode.BAD_REQUEST), reason).to_json()


class HttpHandler(ConnectionHandler):
    """One connection. A subclass has a method for each of `routes.ROUTES`, `_` and its name."""

    agent: Agent
    rank_timeout_s: float
    relays: Relays
    protocol_version = "HTTP/1.1"
    answered = False

    def __getattr__(self, name: str) -> Callable[[], None]:
        """The base class looks for do_VERB: whatever the verb, the token comes first."""
        if name.startswith("do_"):
            return functools.partial(self._answer, name[3:])
        raise AttributeError(name)

    def send_error(self, code: int, *_words: Any, **_more: Any) -> None:
        """What is not a request gets an answer in our own form, too."""
        self.close_connection = True
        reason = http.client.responses.get(code, "this is not a request")
        self._json(refusal(code, reason), status=code)

    # -- from a request to its method -----------------------------------------------------------------------

    def _answer(self, method: str) -> None:
        self.answered = False
        try:
            check_request(self.headers.get, self.path, self.agent.tokens.agent)
            route, values = self._route(method)
            with self.agent.transfer() if route.is_transfer else contextlib.nullcontext():
                rank = int(values.pop("rank", self.agent.state.own.rank))
                if rank == self.agent.state.own.rank:
                    getattr(self, f"_{route.name}")(**values)
                elif route is routes.RELAY:
                    self._pass_relay_on(rank)
                else:
                    self._pass_on(rank)
        except Refused as error:
            self.close_connection = True
            self._json(refusal(error.status, error.reason), status=error.status)
        except ApiError as error:
            self.close_connection = True  # what was sent with a refused call is left unread
            self._json(error.to_json(), status=error.status)
        except OSError as error:
            self.close_connection = True
            if not self.answered and not is_network_error(error):  # this node's own disk or memory
                refused = disk_refusal(error, str(error.filename or ""))
                self._json(refused.to_json(), status=refused.status)

    def _route(self, method: str) -> Tuple[routes.Route, Dict[str, str]]:
        """Decoded once, here: %2e%2e and %2f become what they are before anything looks at the path."""
        if method not in _METHODS:
            raise ApiError(ErrorCode.UNSUPPORTED, f"{method} does nothing here")
        # names of files are bytes; those that are not UTF-8 come back as os.listdir gave them
        path = unquote(self.path.partition("?")[0], errors="surrogateescape")
        for route in routes.ROUTES:
            values = route.match(method, path)
            if values is not None:
                return route, values
        raise ApiError(ErrorCode.NOT_FOUND, "no such thing here")

    def _pass_on(self, rank: int) -> None:
        """On rank 0, let the agent of another rank answer."""
        headers = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        body = self._body(_MAX_BODY_BYTES, "a list of ranges") if self.command == "POST" else None
        answer = self._ask(rank, headers, body)
        self.close_connection = True  # the other node may break off, and then the length is not what was said
        headers = {name: text for name, text in answer.headers.items() if name.lower() not in _OWN_HEADERS}
        self._head(answer.status, headers)
        with answer:
            for chunk in iter(lambda: answer.stream.read(1 << 20), b""):
                self.wfile.write(chunk)

    def _pass_relay_on(self, rank: int) -> None:
        self._check_upgrade()
        with self.relays.slot(), self._ask(rank, routes.UPGRADE, None) as answer:
            self._upgrade(answer.stream)

    def _ask(self, rank: int, headers: Mapping[str, str], body: Optional[bytes]) -> Response:
        other = next((report for report in self.agent.state.reports() if report.rank == rank), None)
        if other is None:
            raise ApiError(ErrorCode.UNKNOWN_RANK, f"rank {rank} is not known here")
        at, timeout_s = f"{other.ip}:{other.agent_port}", self.rank_timeout_s
        # the path is encoded as it came; a host that is off takes no connection, and many may be asked for
        connect_timeout_s = min(timeout_s, _CONNECT_TIMEOUT_S)
        request = Request(self.command, f"http://{at}{self.path}", headers, body, timeout_s, connect_timeout_s)
        try:
            return AgentClient(f"http://{at}", self.agent.tokens.agent).open(request)
        except AgentRefused as error:
            # the token is between the two agents; anything else the client shall know
            code = None if error.code is ErrorCode.UNAUTHORIZED else error.code
            reason = f"{at} answered {error.status}: {error}"
            raise ApiError(code or ErrorCode.BAD_GATEWAY, reason) from error
        except (OSError, http.client.HTTPException) as error:
            reason = f"rank {rank} ({other.ip}) does not answer: {error}"
            raise ApiError(ErrorCode.UNREACHABLE, reason) from error

    def _check_upgrade(self) -> None:
        has_body = "Transfer-Encoding" in self.headers or self.headers.get_all("Content-Length", []) not in ([], ["0"])
        if self.headers.get("Upgrade", "").lower() != routes.UPGRADE["Upgrade"] or has_body:
            raise ApiError(ErrorCode.BAD_REQUEST, "a relay is asked for with `Upgrade: tcp`, and without a body")

    def _upgrade(self, other: socket.socket) -> None:
        """From here on, whatever comes is the other side's, and the other way round."""
        self.close_connection = True
        self._head(101, dict(routes.UPGRADE))
        self.connection.setblocking(False)
        join(self.connection, other, self.rfile.read1(1 << 20) or b"")

    # -- what a request says --------------------------------------------------------------------------------

    def _content_length(self) -> Optional[int]:
        return number(self.headers.get("Content-Length", ""))

    def _body(self, limit_bytes: int, what: str) -> bytes:
        length = self._content_length()
        if length is None or length > limit_bytes:
            raise ApiError(ErrorCode.TOO_LARGE, f"{what} is a JSON object of at most {limit_text(limit_bytes)}")
        return self.rfile.read(length)

    def _json_body(self, read: Callable[[Any], T], what: str, limit_bytes: int = _MAX_BODY_BYTES) -> T:
        body = self._body(limit_bytes, what)
        try:
            value = json.loads(body)
            if _LONE_SURROGATE.search(body):
                _check_texts(value)
            return read(value)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ApiError(ErrorCode.BAD_REQUEST, f"not {what}: {error}") from error

    def _query(self) -> Dict[str, str]:
        return dict(parse_qsl(self.path.partition("?")[2]))

    def _offset(self) -> int:
        text = self._query().get("offset", "0")
        offset = number(text)
        if offset is None:
            raise ApiError(ErrorCode.BAD_REQUEST, f"offset is a number of bytes, not {text[:40]!r}")
        return offset

    def _span(self, file: BinaryIO) -> Span:
        try:
            return parse_range(self.headers.get("Range"), file.seek(0, 2))
        except ValueError as error:
            raise ApiError(ErrorCode.BAD_RANGE, str(error)) from error

    # -- answers --------------------------------------------------------------------------------------------

    def _json(self, value: Any, *, status: int = 200) -> None:
        self._bytes(json.dumps(to_json(value)).encode(), {"Content-Type": "application/json"}, status)

    def _bytes(self, body: bytes, headers: Mapping[str, str] = BYTES, status: int = 200) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: Dict[str, str]) -> None:
        self.answered = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, file: BinaryIO, span: Span) -> None:
        first, count, size, partial = span
        headers = {**BYTES, "Content-Length": str(count), "Accept-Ranges": "bytes"}
        if partial:
            headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{size}"
        self._head(206 if partial else 200, headers)
        if count:  # socket.sendfile takes 0 for "nothing", and refuses it
            self.wfile.flush()
            if self.connection.sendfile(file, first, count) < count:  # a job has cut the file meanwhile
                self.close_connection = True


def _check_texts(value: Any) -> None:
    """Return if all texts can be written into files and names of files.

    Raises:
        ValueError: One holds half of a pair of surrogates.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half of a pair of surrogates, which is not Unicode") from error
