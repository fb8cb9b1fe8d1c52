"""The agent's HTTP: bound to loopback and to the node's cluster address, a bearer token on every call.

    GET  /v1/status                             every node (on rank 0), phase, failure, data, models
    POST /v1/heartbeat                          a worker's report; answered with what rank 0 has published
    GET  /v1/nodes/{rank}/log?offset=N          the agent's log of a node from byte N
    GET  /v1/jobs/{id}/log?offset=N             a job's driver log from byte N
    ...  /v1/nodes/{rank}/inventory, /checkpoints, /left    see `cloudrl.node.checkpoint_calls`
    GET  /v1/data/{name}/{file}                 prepared data, for the other nodes
    PUT  /v1/files/{address}                    announce a user's file or folder, with its manifest
    PUT  /v1/files/{address}/content/{path}?offset=N    bytes of it, from byte N
    GET  /v1/files/{address}                    bytes of each part on rank 0, and how far every node is
    GET  /v1/files/{address}/manifest, /content/{path}  for the other nodes, once it is whole
    PUT  /v1/jobs/{id}/secrets                  {name: value} for a job that is going to be submitted
    GET  /v1/jobs/{id}/secrets                  how far every node is; /script has them, for the other nodes

Rank 0 passes calls for another rank on to that node's agent: a client needs to reach the head alone.
"""

from __future__ import annotations

import functools
import hmac
import http.client
import json
import re
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, List, Optional, Tuple, cast
from urllib.parse import parse_qs, unquote, urlsplit

from cloudrl.node import checkpoint_calls, job_secrets
from cloudrl.node.files import Refused, open_below
from cloudrl.node.listener import UNAUTHENTICATED_S, Listener
from cloudrl.node.peer import PeerRefused, of_the_network
from cloudrl.node.ranges import Span, number
from cloudrl.node.report import Report
from cloudrl.node.server_context import HttpError, ServerContext
from cloudrl.node.uploads import UploadError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BODY_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 8 << 20
_LOG_CHUNK_BYTES = 1 << 20
_FILES, _SECRETS = r"/v1/files/([0-9a-f]{32})", rf"/v1/jobs/({job_secrets.JOB})/secrets"
_ROUTES = (
    ("GET", re.compile(r"/v1/status"), "status"),
    ("POST", re.compile(r"/v1/heartbeat"), "heartbeat"),
    ("POST", re.compile(r"/v1/transfers"), "transfer_elsewhere"),
    ("GET", re.compile(r"/v1/nodes/(\d{1,4})/log"), "node_log"),
    ("GET", re.compile(r"/v1/jobs/([A-Za-z0-9][A-Za-z0-9._-]{0,200})/log"), "job_log"),
    *checkpoint_calls.ROUTES,
    ("GET", re.compile(r"/v1/data/([^/]+)/([^/]+)"), "data_file"),
    ("PUT", re.compile(_FILES), "announce_files"),
    ("GET", re.compile(_FILES), "files_state"),
    ("GET", re.compile(_FILES + "/manifest"), "manifest"),
    ("PUT", re.compile(_FILES + "/content/(.+)", re.DOTALL), "take_file"),
    ("GET", re.compile(_FILES + "/content/(.+)", re.DOTALL), "give_file"),
    ("PUT", re.compile(_SECRETS), "take_secrets"),
    ("GET", re.compile(_SECRETS), "secrets_state"),
    ("GET", re.compile(_SECRETS + "/script"), "give_secrets"),
)
_AS_THEY_ARE = (400, 403, 404, 409, 416, 422, 501, 507)
"""What another rank refuses to a client, who shall know; anything else is between the two agents."""
_VERBS = {verb for verb, _, _ in _ROUTES}
_TRANSFERS = {
    "transfer_elsewhere",
    "announce_files",
    "take_file",
    "take_secrets",
    "data_file",
    "give_file",
} | checkpoint_calls.TRANSFERS


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


class _Handler(checkpoint_calls.CheckpointCalls, BaseHTTPRequestHandler):
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
        self._json({"error": http.client.responses.get(code, "this is no request")}, status=code)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """Stay silent: dstack fails a run after 50 MB of output in an hour."""

    def _answer(self, method: str) -> None:
        self.answered = False
        try:
            self._authorize()
            if method not in _VERBS:
                raise HttpError(501, f"{method} does nothing here")
            path = self._decoded_path()
            for verb, pattern, name in _ROUTES:
                match = pattern.fullmatch(path) if verb == method else None
                if match:
                    self._go(name, match.groups())
                    return
            raise HttpError(404, "no such thing here")
        except (HttpError, UploadError) as error:
            self.close_connection = True  # what was sent with a refused call is left unread
            self._json({"error": str(error)}, status=error.status)
        except OSError as error:
            self.close_connection = True
            if not self.answered and not of_the_network(error):  # this node's own disk or memory
                self._json({"error": _of_the_disk(error)}, status=507)

    def _go(self, name: str, words: Tuple[str, ...]) -> None:
        if name not in _TRANSFERS:
            getattr(self, f"_{name}")(*words)
            return
        with self.context.transfers.going_on():
            getattr(self, f"_{name}")(*words)

    def _authorize(self) -> None:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.context.token}".encode()):
            raise HttpError(401, "wrong or missing token")
        self.server.trust(self.connection)

    def _decoded_path(self) -> str:
        """Decoded once, here: %2e%2e and %2f become what they are before anything looks at the path."""
        try:
            # names of files are bytes; those that are no UTF-8 come back as os.listdir gave them
            return unquote(urlsplit(self.path).path.encode("ascii"), errors="surrogateescape")
        except ValueError:
            raise HttpError(400, "this is no URL") from None

    # -- routes ---------------------------------------------------------------------------------------------

    def _status(self) -> None:
        self._json(self.context.status())

    def _heartbeat(self) -> None:
        body = self._body(_MAX_BODY_BYTES, "a report")
        try:
            report = Report.from_json(json.loads(body))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HttpError(400, f"not a report: {error}") from error
        if not 0 < report.rank < self.context.nodes:
            raise HttpError(
                400, f"rank {report.rank} does not belong to this cluster of {self.context.nodes} nodes"
            )
        self.context.state.record_heartbeat(report)
        self._json(self.context.state.heartbeat_reply(report.rank))

    def _transfer_elsewhere(self) -> None:
        """A client says that it is sending something to Ray, which this agent does not see."""
        self._json({"noted": True})

    def _node_log(self, rank: str) -> None:
        if not self._passed_on(int(rank)):
            self._log(self.context.agent_log)

    def _job_log(self, submission_id: str) -> None:
        folder = self.context.job_logs()
        if folder is None:
            raise HttpError(404, "Ray is not up")
        self._log(folder / f"job-driver-{submission_id}.log")

    def _data_file(self, name: str, file: str) -> None:
        self._file(self.context.data_dir, f"{name}/{file}")

    def _announce_files(self, address: str) -> None:
        body = self._body(_MAX_MANIFEST_BYTES, "a manifest")
        self._json(self.context.replication.begin(address, body))

    def _take_file(self, address: str, path: str) -> None:
        count = number(self.headers.get("Content-Length", ""))
        if count is None:
            raise HttpError(411, "a file comes with its Content-Length")
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
            raise HttpError(413, f"{what} is a JSON object of at most {limit_bytes >> 10} KiB")
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
            raise HttpError(404, "there is no such log yet") from None
        # `size` may have grown since: the client asks again from where this body ends
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Cloudrl-Size": str(max(size, min(offset, size) + len(body))),
        }
        self._bytes(body, headers)

    def _offset(self) -> int:
        text = parse_qs(urlsplit(self.path).query).get("offset", ["0"])[0]
        offset = number(text)
        if offset is None:
            raise HttpError(400, f"offset is a number of bytes, not {text[:40]!r}")
        return offset

    def _file(self, root: Path, path: str) -> None:
        try:
            file = open_below(root, path)
        except Refused:
            raise HttpError(403, "only regular files below the folder can be read") from None
        except FileNotFoundError:
            raise HttpError(404, "there is no such file") from None
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
            raise HttpError(404, f"rank {rank} is not known here")
        headers = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        try:
            answer = self.context.peer(other).open(self.command, self.path, body, headers)
        except PeerRefused as error:
            status = error.status if error.status in _AS_THEY_ARE else 502
            raise HttpError(status, str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise HttpError(504, f"rank {rank} ({other.ip}) does not answer: {error}") from error
        self._relay(answer)
        return True

    def _relay(self, answer: http.client.HTTPResponse) -> None:
        names = (
            "Content-Type",
            "Content-Length",
            "Content-Range",
            "Accept-Ranges",
            "X-Cloudrl-Size",
            "X-Cloudrl-Cast",
        )
        self.close_connection = True  # the other node may break off, and then the length is not what was said
        self._head(answer.status, {name: answer.headers[name] for name in names if name in answer.headers})
        with answer:
            for chunk in iter(lambda: answer.read(1 << 20), b""):
                self.wfile.write(chunk)


def _of_the_disk(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
