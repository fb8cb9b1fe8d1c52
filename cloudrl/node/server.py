"""The agent's HTTP: bound to loopback and to the node's cluster address, a bearer token on every call.

The calls are `cloudrl.protocol.routes`; one of the handler's methods is named like each.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, List, Mapping, Optional, cast
from urllib.parse import parse_qs, unquote, urlsplit

from cloudrl.node import job_secrets
from cloudrl.node.checkpoint_calls import CheckpointCalls
from cloudrl.node.files import Refused, open_below
from cloudrl.node.listener import UNAUTHENTICATED_S, Listener
from cloudrl.node.ranges import Span, number
from cloudrl.protocol import routes
from cloudrl.protocol.client import AgentRefused, Request, Response, is_network_error
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.report import NodeReport

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.node.server_context import ServerContext

_MAX_BODY_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 8 << 20
_LOG_CHUNK_BYTES = 1 << 20
_METHODS = {route.method for route in routes.ROUTES}
_PASSED_ON = (
    ErrorCode.BAD_REQUEST, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.BAD_RANGE,
    ErrorCode.UNREADABLE, ErrorCode.DAMAGED, ErrorCode.UNSUPPORTED, ErrorCode.NO_SPACE,
)  # fmt: skip
"""What another rank refuses to a client, who shall know; anything else is between the two agents."""
_RELAYED = (
    "Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", routes.SIZE_HEADER, routes.CAST_HEADER,
)  # fmt: skip


class AgentServer:
    """One listener an address, each with a thread a connection.

    Args:
        unauthenticated_s: seconds in which a connection has to show the token.
    """

    def __init__(
        self,
        addresses: List[str],
        port: int,
        context: ServerContext,
        *,
        unauthenticated_s: float = UNAUTHENTICATED_S,
    ) -> None:
        handler = type("Handler", (_Handler,), {"context": context})
        self._servers: List[Listener] = []
        try:
            for address in dict.fromkeys(addresses):
                self._servers.append(Listener((address, port), handler, unauthenticated_s=unauthenticated_s))
        except OSError:
            self.close()
            raise
        self._threads = [
            threading.Thread(target=s.serve_forever, args=(0.1,), daemon=True) for s in self._servers
        ]

    @property
    def port(self) -> int:
        """The TCP port, of interest where 0 asked for any."""
        return int(self._servers[0].server_address[1])

    def start(self) -> None:
        """Answer from now on."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening. Calls under way are cut."""
        for server in self._servers:
            if any(thread.is_alive() for thread in getattr(self, "_threads", [])):
                server.shutdown()
            server.server_close()


class _Handler(CheckpointCalls, BaseHTTPRequestHandler):
    context: ServerContext
    server: Listener
    protocol_version = "HTTP/1.1"
    timeout = 60.0
    answered = False

    def __getattr__(self, name: str) -> Callable[[], None]:
        """The base class looks for do_VERB: whatever the verb, the token comes first."""
        if name.startswith("do_"):
            return functools.partial(self._answer, name[3:])
        raise AttributeError(name)

    def version_string(self) -> str:
        """What the header `Server` says: nothing of Python, which a scanner would look up."""
        return "cloudrl"

    def send_error(self, code: int, *_words: Any, **_more: Any) -> None:
        """What is no request gets an answer in our own form, too."""
        self.close_connection = True
        reason = http.client.responses.get(code, "this is no request")
        self._json(ApiError(ErrorCode.BAD_REQUEST, reason).to_json(), status=code)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """Stay silent: dstack fails a run after 50 MB of output in an hour."""

    def _answer(self, method: str) -> None:
        self.answered = False
        try:
            self._authorize()
            if method not in _METHODS:
                raise ApiError(ErrorCode.UNSUPPORTED, f"{method} does nothing here")
            path = self._decoded_path()
            for route in routes.ROUTES:
                values = route.match(method, path)
                if values is not None:
                    self._run(route, values)
                    return
            raise ApiError(ErrorCode.NOT_FOUND, "no such thing here")
        except ApiError as error:
            self.close_connection = True  # what was sent with a refused call is left unread
            self._refuse(error)
        except OSError as error:
            self.close_connection = True
            if not self.answered and not is_network_error(error):  # this node's own disk or memory
                self._refuse(ApiError(ErrorCode.NO_SPACE, _of_the_disk(error)))

    def _run(self, route: routes.Route, values: Mapping[str, str]) -> None:
        with self.context.transfers.going_on() if route.is_transfer else contextlib.nullcontext():
            getattr(self, f"_{route.name}")(**values)

    def _refuse(self, error: ApiError) -> None:
        self._json(error.to_json(), status=error.status)

    def _authorize(self) -> None:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.context.token}".encode()):
            raise ApiError(ErrorCode.UNAUTHORIZED, "wrong or missing token")
        self.server.trust(self.connection)

    def _decoded_path(self) -> str:
        """Decoded once, here: %2e%2e and %2f become what they are before anything looks at the path."""
        try:
            # names of files are bytes; those that are no UTF-8 come back as os.listdir gave them
            return unquote(urlsplit(self.path).path.encode("ascii"), errors="surrogateescape")
        except ValueError:
            raise ApiError(ErrorCode.BAD_REQUEST, "this is no URL") from None

    # -- routes ---------------------------------------------------------------------------------------------

    def _status(self) -> None:
        self._json(self.context.status().to_json())

    def _heartbeat(self) -> None:
        body = self._body(_MAX_BODY_BYTES, "a report")
        try:
            report = NodeReport.from_json(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise ApiError(ErrorCode.BAD_REQUEST, f"not a report: {error}") from error
        if not 0 < report.rank < self.context.nodes:
            raise ApiError(
                ErrorCode.BAD_REQUEST,
                f"rank {report.rank} does not belong to this cluster of {self.context.nodes} nodes",
            )
        self.context.state.record_heartbeat(report)
        self._json(self.context.state.heartbeat_reply(report.rank).to_json())

    def _transfer(self) -> None:
        """A client says that it is sending something to Ray, which this agent does not see."""
        self._json({"noted": True})

    def _node_log(self, rank: str) -> None:
        if not self._passed_on(int(rank)):
            self._log(self.context.agent_log)

    def _job_log(self, job: str) -> None:
        folder = self.context.job_logs()
        if folder is None:
            raise ApiError(ErrorCode.NOT_FOUND, "Ray is not up")
        self._log(folder / f"job-driver-{job}.log")

    def _data_file(self, name: str, file: str) -> None:
        self._file(self.context.data_dir, f"{name}/{file}")

    def _announce_files(self, address: str) -> None:
        body = self._body(_MAX_MANIFEST_BYTES, "a manifest")
        self._json(self.context.replication.begin(address, body))

    def _take_file(self, address: str, path: str) -> None:
        count = number(self.headers.get("Content-Length", ""))
        if count is None:
            raise ApiError(ErrorCode.LENGTH_REQUIRED, "a file comes with its Content-Length")
        source = cast("BinaryIO", self.rfile)
        self._json(self.context.replication.write(address, path, self._offset(), count, source))

    def _files_state(self, address: str) -> None:
        self._json(self.context.replication.files_state(address))

    def _manifest(self, address: str) -> None:
        self._json(self.context.replication.manifest(address))

    def _give_file(self, address: str, path: str) -> None:
        self.context.replication.manifest(address)  # what is still coming is nobody's business
        self._file(self.context.replication.files.root / address, path)

    def _take_secrets(self, job: str) -> None:
        self._json(
            self.context.replication.put_secrets(
                job, self._body(job_secrets.MAX_BYTES, "the secrets of a job")
            )
        )

    def _secrets_state(self, job: str) -> None:
        self._json(self.context.replication.secrets_state(job))

    def _give_secrets(self, job: str) -> None:
        self._bytes(self.context.replication.secrets_of(job).encode(), {"Content-Type": "text/plain"})

    # -- answers --------------------------------------------------------------------------------------------

    def _body(self, limit_bytes: int, what: str) -> bytes:
        length = number(self.headers.get("Content-Length", ""))
        if length is None or length > limit_bytes:
            raise ApiError(ErrorCode.TOO_LARGE, f"{what} is a JSON object of at most {limit_bytes >> 10} KiB")
        return self.rfile.read(length)

    def _json(self, value: Any, *, status: int = 200) -> None:
        self._bytes(json.dumps(value).encode(), {"Content-Type": "application/json"}, status=status)

    def _bytes(self, body: bytes, headers: Dict[str, str], *, status: int = 200) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: Dict[str, str]) -> None:
        self.answered = True
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _log(self, path: Path) -> None:
        offset = self._offset()
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(min(offset, size))
                body = file.read(_LOG_CHUNK_BYTES)
        except FileNotFoundError:
            raise ApiError(ErrorCode.NOT_FOUND, "there is no such log yet") from None
        # `size` may have grown since: the client asks again from where this body ends
        headers = {
            "Content-Type": "application/octet-stream",
            routes.SIZE_HEADER: str(max(size, min(offset, size) + len(body))),
        }
        self._bytes(body, headers)

    def _offset(self) -> int:
        text = parse_qs(urlsplit(self.path).query).get("offset", ["0"])[0]
        offset = number(text)
        if offset is None:
            raise ApiError(ErrorCode.BAD_REQUEST, f"offset is a number of bytes, not {text[:40]!r}")
        return offset

    def _file(self, root: Path, path: str) -> None:
        try:
            file = open_below(root, path)
        except Refused:
            raise ApiError(ErrorCode.FORBIDDEN, "only regular files below the folder can be read") from None
        except FileNotFoundError:
            raise ApiError(ErrorCode.NOT_FOUND, "there is no such file") from None
        with file:
            self._send(file, self._span(file))

    def _send(self, file: BinaryIO, span: Span) -> None:
        first, count, size, partial = span
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(count),
            "Accept-Ranges": "bytes",
        }
        if partial:
            headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{size}"
        self._head(206 if partial else 200, headers)
        if count:  # socket.sendfile takes 0 for "nothing", and refuses it
            self.wfile.flush()
            if self.connection.sendfile(file, first, count) < count:  # a job has cut the file meanwhile
                self.close_connection = True

    def _passed_on(self, rank: int, body: Optional[bytes] = None) -> bool:
        """On rank 0, let the agent of another rank answer. False when this node is meant."""
        state = self.context.state
        if rank == state.own.rank:
            return False
        other = next((report for report in state.reports() if report.rank == rank), None)
        if other is None:
            raise ApiError(ErrorCode.UNKNOWN_RANK, f"rank {rank} is not known here")
        headers = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        client = self.context.client(other)
        url = client.url + self.path  # encoded as it came
        request = Request(self.command, url, headers, body, client.timeout_s, client.timeout_s)
        try:
            answer = client.open(request)
        except AgentRefused as error:
            code = next((each for each in _PASSED_ON if each is error.code), ErrorCode.BAD_GATEWAY)
            raise ApiError(code, f"{other.ip}:{other.agent_port} answered {error.status}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = f"rank {rank} ({other.ip}) does not answer: {error}"
            raise ApiError(ErrorCode.UNREACHABLE, reason) from error
        self._relay(answer)
        return True

    def _relay(self, answer: Response) -> None:
        self.close_connection = True  # the other node may break off, and then the length is not what was said
        self._head(
            answer.status, {name: text for name in _RELAYED if (text := answer.header(name)) is not None}
        )
        with answer:
            for chunk in iter(lambda: answer.stream.read(1 << 20), b""):
                self.wfile.write(chunk)


def _of_the_disk(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
