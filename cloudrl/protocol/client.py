"""Calls to an agent: from the laptop, from a job on the head, and from one agent to another.

A `Request` is prepared without any I/O and goes out at one place, `send`, which tests and others may replace.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
from functools import partial
from operator import itemgetter
from typing import Any, Callable, Collection, Dict, Iterable, Iterator, Mapping, Optional, Tuple, TypeVar, Union

from cloudrl.errors import ConnectionFailed, InputError, Unauthorized
from cloudrl.foreign import (
    LIMIT_BYTES,
    LISTING_BYTES,
    NOT_AS_EXPECTED,
    Malformed,
    parse_json,
    parse_object,
    whole_number,
)  # fmt: skip
from cloudrl.protocol import answers, routes
from cloudrl.protocol.exchange import Body, Request, Response, Send, send
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.job_work import LookedAt
from cloudrl.protocol.report import ClusterStatus, HeartbeatReply, NodeReport, Replica, Usage
from cloudrl.protocol.stops import Stop
from cloudrl.protocol.wire import from_json, to_json

CHECK_TIMEOUT_S = 600.0
"""The agent reads a file once more when its last byte has come: a shard of 50 GB takes minutes."""
LISTING_TIMEOUT_S = 60.0
"""Of thousands of files on a network volume, or in one announcement; as long as rank 0 waits for another rank."""

REFUSALS = (
    ErrorCode.BAD_REQUEST, ErrorCode.NOT_FOUND, ErrorCode.UNKNOWN_RANK, ErrorCode.UNREADABLE, ErrorCode.DAMAGED,
    ErrorCode.UNSUPPORTED, ErrorCode.NO_SPACE,
)  # fmt: skip
"""What the caller asked for is wrong; anything else that is not a success is a matter of the connection."""
_REFUSAL_BYTES = 64 * 1024
"""Of the body of a refusal; it may quote paths and what a child has said."""

_PIECE_BYTES = 8 << 20
"""Of a log, of which an agent gives 1 MiB at once, or of the archive: 2 MiB, before they are compressed."""

T = TypeVar("T")


class Token:
    """A bearer token that is replaced once it is refused. Threads share it.

    Args:
        value: the token.
        refresh: gives a newer one for the refused one, or the same; None where tokens never change.
    """

    def __init__(self, value: str, refresh: Optional[Callable[[str], str]] = None) -> None:
        self.value = value
        self._refresh, self._lock = refresh, threading.Lock()

    def replace(self, refused: str) -> bool:
        """Whether there is another one than the refused one; another thread may have read it already."""
        with self._lock:
            if self.value == refused and self._refresh is not None:
                self.value = self._refresh(refused)
            return self.value != refused


class AgentRefused(ApiError):
    """Somebody answered with an error; `code` is None where no agent of ours has said it."""

    def __init__(self, code: Optional[ErrorCode], message: str, status: int) -> None:
        super().__init__(code or ErrorCode.BAD_GATEWAY, message)
        self.code, self.status = code, status


class NoAgent(ConnectionFailed):
    """Something answers, and not as an agent of this release does."""


class AgentClient:
    """One agent; of rank 0 it passes on what concerns another rank. Thread-safe.

    `open` raises what happened; every call of a client raises `ConnectionFailed` when nothing or something else
    answers, `Unauthorized` for a refused token, once `refresh` has no newer one for it: a cluster that was started
    again has new tokens.

    Args:
        refresh: gives a newer token for a refused one, or the same.
        send: the one place where requests go out.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 10.0,
        refresh: Optional[Callable[[str], str]] = None,
        send: Send = send,
    ) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._token, self._send = Token(token, refresh), send

    # -- what everything else is made of --------------------------------------------------------------------

    def request(
        self,
        route: routes.Route,
        *,
        query: Optional[Mapping[str, object]] = None,
        body: Body = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout_s: Optional[float] = None,
        **values: Union[str, int],
    ) -> Request:
        """Prepare a call; the token comes with `open`."""
        url, all_headers = self.url + route.url(query, **values), {"Connection": "close", **(headers or {})}
        return Request(route.method, url, all_headers, body, timeout_s or self.timeout_s, self.timeout_s)

    def open(self, request: Request) -> Response:
        """Send it, once more with a newer token if there is one; the caller closes the answer.

        Raises:
            AgentRefused: the answer is an error.
            OSError, http.client.HTTPException: no answer, or the connection broke within the head of the answer.
            ConnectionFailed: of `refresh`.
        """
        token = self._token.value
        try:
            return self._open(request, token)
        except AgentRefused as refused:
            if refused.status != 401 or not request.is_repeatable or not self._token.replace(token):
                raise
        return self._open(request, self._token.value)

    def _open(self, request: Request, token: str) -> Response:
        headers = {**request.headers, "Authorization": f"Bearer {token}"}
        answer = self._send(dataclasses.replace(request, headers=headers))
        is_upgraded = answer.status == 101 and "Upgrade" in headers
        if is_upgraded or (200 <= answer.status < 300 and answer.header("Content-Length")):
            return answer
        with answer:
            if answer.status < 300:
                # http.client takes what has come of a head for all of it (CPython 3.13, http/client.py, _read_headers)
                raise ConnectionResetError("the connection broke before the answer, or this is not an agent")
            raise _refusal(answer.status, _start_of(answer))

    # -- calls of a client ----------------------------------------------------------------------------------

    def status(self) -> ClusterStatus:
        """The cluster as rank 0 sees it."""
        return self.call(self.request(routes.STATUS), partial(from_json, ClusterStatus))

    def usage(self, span: str) -> Dict[int, Tuple[Usage, ...]]:
        """How busy each rank was in the last "hour" or "day", oldest first.

        Raises:
            InputError: the agent is of a release that does not remember it.
        """
        return self.call(self.request(routes.USAGE, query={"span": span}, timeout_s=LISTING_TIMEOUT_S), answers.usage)

    def job_log(self, submission_id: str, offset: int = 0) -> Optional[Tuple[bytes, int]]:
        """A job's driver log from byte `offset`, at most 1 MiB, and its whole size; None while there is no log yet."""
        request = self.request(routes.JOB_LOG, job=submission_id, query={"offset": offset})
        try:
            with self._answer(request) as answer:
                content, size = answer.content(_PIECE_BYTES), whole_number(answer.header(routes.SIZE_HEADER))
        except InputError:
            return None
        if size is None:
            raise self._no_agent("it does not say how long the log is")
        return content, size

    def archive(self, rank: int, run: Optional[str] = None, *, own: bool = False) -> Mapping[str, Any]:
        """What is kept of the logs of a run on one rank's volume, see `routes.ARCHIVE`; of the present run for None.

        Args:
            rank: which.
            run: its id.
            own: only what that rank has kept itself.

        Returns:
            {"run", "problem", "pieces": [(path, size_bytes, modified_at)]}.

        Raises:
            InputError: the agent is of a release that keeps none.
        """
        query = {**({"run": run} if run else {}), **({"own": 1} if own else {})}
        request = self.request(routes.ARCHIVE, rank=rank, query=query, timeout_s=LISTING_TIMEOUT_S)
        return self.call(request, answers.archive)

    def archive_piece(self, rank: int, path: str) -> bytes:
        """A piece as it is stored; b"" where it has just been given up."""
        try:
            with self._answer(self.request(routes.ARCHIVE_PIECE, rank=rank, path=path)) as answer:
                return answer.content(_PIECE_BYTES)
        except InputError:
            return b""

    def inventory(self, rank: int, *, without: Optional[Collection[int]] = None) -> Mapping[str, Any]:
        """The checkpoints of one rank: {"locations": [...]}, see `cloudrl.saves.survey`.

        Args:
            rank: which.
            without: a folder that a node of lower rank has, too, and is not one of these, is not listed but names that
                node. None lists it in any case.
        """
        query = None if without is None else {"once": ",".join(map(str, without))}
        request = self.request(routes.INVENTORY, rank=rank, query=query, timeout_s=LISTING_TIMEOUT_S)
        return self.call(request, answers.inventory)

    def checkpoint_file(self, rank: int, path: str, limit_bytes: int) -> Optional[bytes]:
        """The start of a file below the folder of checkpoints; None where the rank has none, or nothing in it."""
        headers = {"Range": f"bytes=0-{limit_bytes - 1}"}
        request = self.request(
            routes.CHECKPOINT_FILE, rank=rank, root=routes.CHECKPOINTS, path=path, headers=headers,
            timeout_s=LISTING_TIMEOUT_S,
        )  # fmt: skip
        try:
            with self._answer(request, (*REFUSALS, ErrorCode.BAD_RANGE)) as answer:
                return answer.content(limit_bytes)
        except InputError:
            return None

    def remove_step(self, rank: int, root: str, path: str) -> None:
        """Remove `RUN/global_step_10` of a rank; its files go in the background.

        Raises:
            InputError: there is no such step, or its volume does not let the node remove it.
        """
        request = self.request(routes.REMOVE_CHECKPOINT, rank=rank, root=root, path=path)
        self.call(request, itemgetter("removed"), (*REFUSALS, ErrorCode.FORBIDDEN, ErrorCode.CONFLICT))

    def announce_files(self, address: str, manifest: Mapping[str, Any]) -> Dict[str, int]:
        """Make room for a file or folder; returns how many bytes of each part are on rank 0.

        Raises:
            InputError: the disk of rank 0 has no room for it.
        """
        body = json.dumps(manifest).encode()
        request = self.request(routes.ANNOUNCE_FILES, address=address, body=body, timeout_s=LISTING_TIMEOUT_S)
        return self.call(request, answers.sizes)

    def files_state(self, address: str) -> Tuple[Dict[str, int], Dict[int, Replica]]:
        """Bytes of each part on rank 0, and how far every rank is."""
        request = self.request(routes.FILES_STATE, address=address, timeout_s=LISTING_TIMEOUT_S)
        return self.call(request, lambda value: (answers.sizes(value), answers.replicas(value)))

    def put_file(
        self, address: str, path: str, content: Iterable[bytes], *, offset: int, size_bytes: int
    ) -> Dict[str, int]:
        """Send bytes of an announced file from byte `offset`, `size_bytes` of them; returns what is on rank 0 then.

        Raises:
            InputError: the disk is full, or the bytes are not those that were announced.
        """
        request = self.request(
            routes.TAKE_FILE, address=address, path=path, query={"offset": offset}, body=iter(content),
            headers={"Content-Length": str(size_bytes)}, timeout_s=CHECK_TIMEOUT_S,
        )  # fmt: skip
        return self.call(request, answers.sizes)

    def stops(self, rank: int) -> Tuple[Stop, ...]:
        """The processes of one rank that wait for a debugger.

        Raises:
            InputError: the agent is of a release that knows none.
        """
        request = self.request(routes.STOPS, rank=rank)
        return self.call(request, lambda value: tuple(from_json(Stop, stop) for stop in value["stops"]))

    def look(self, rank: int) -> Tuple[LookedAt, ...]:
        """The processes of jobs on one rank, with the stacks of their threads.

        Raises:
            InputError: the agent is of a release that cannot look.
        """
        request = self.request(routes.LOOK, rank=rank, timeout_s=LISTING_TIMEOUT_S)
        return self.call(request, lambda value: tuple(from_json(LookedAt, row) for row in value["processes"]))

    def relay(self, rank: int, port: int) -> socket.socket:
        """A connection to the debugger at `port` of a rank, through the agents; the caller closes it.

        Raises:
            InputError: nothing waits at that port, or too many are connected.
        """
        request = self.request(routes.RELAY, rank=rank, port=port, headers=routes.UPGRADE)
        with self._answer(request, (*REFUSALS, ErrorCode.NO_DEBUGGER, ErrorCode.TOO_MANY)) as answer:
            if answer.status != 101:
                raise self._no_agent("it does not switch to a relay")
            connection: socket.socket = answer.stream.dup()  # the answer closes its own
        connection.settimeout(None)
        return connection

    def note_transfer(self) -> None:
        """Say that something is on its way to Ray, so that the cluster does not count as idle now."""
        self.call(self.request(routes.TRANSFER), itemgetter("noted"))

    def put_secrets(self, submission_id: str, values: Mapping[str, str]) -> None:
        """Leave the secrets of a job on rank 0, from where the other nodes take them."""
        body = json.dumps(dict(values)).encode()
        self.call(self.request(routes.TAKE_SECRETS, job=submission_id, body=body), itemgetter("name"))

    def secrets_state(self, submission_id: str) -> Dict[int, Replica]:
        """How far every rank is with the secrets of a job."""
        return self.call(self.request(routes.SECRETS_STATE, job=submission_id), answers.replicas)

    # -- calls of another agent -----------------------------------------------------------------------------

    def heartbeat(self, report: NodeReport) -> HeartbeatReply:
        """Send this node's report, get what the head tells all.

        Raises:
            OSError, http.client.HTTPException, ValueError: no answer, or no agent.
            AgentRefused: wrong token, or another cluster's agent.
        """
        with self.open(self.request(routes.HEARTBEAT, body=json.dumps(to_json(report)).encode())) as answer:
            return from_json(HeartbeatReply, parse_json(answer.content()))

    # -- inside ---------------------------------------------------------------------------------------------

    def call(self, request: Request, read: Callable[[Any], T], refusals: Tuple[ErrorCode, ...] = REFUSALS) -> T:
        """What `read` makes of the JSON of the answer to a request of `request`; `refusals` become `InputError`."""
        with self._answer(request, refusals) as answer:
            content = answer.content(LISTING_BYTES if request.timeout_s == LISTING_TIMEOUT_S else LIMIT_BYTES)
        try:
            return read(parse_json(content))
        except Malformed as error:
            raise self._no_agent(str(error)) from None
        except NOT_AS_EXPECTED:
            raise self._no_agent("its answer has another form") from None

    def _no_agent(self, sign: str) -> NoAgent:
        return NoAgent(
            f"what answers at {self.url} is not a cloudrl agent: {sign}",
            hint="Has another server taken the port? See: cloudrl status",
        )

    @contextlib.contextmanager
    def _answer(self, request: Request, refusals: Tuple[ErrorCode, ...] = REFUSALS) -> Iterator[Response]:
        """The answer while it is read."""
        try:
            with self.open(request) as answer:
                yield answer
        except AgentRefused as refused:
            if refused.status == 401:
                raise Unauthorized(
                    f"the agent at {self.url} refuses the token: another cluster may have taken this port",
                    hint="Reconnect to yours: cloudrl detach NAME && cloudrl attach NAME",
                ) from refused
            if refused.code in refusals:
                raise InputError(f"{request.url}: {refused}") from refused
            raise ConnectionFailed(f"{request.url} answered {refused.status}: {refused}") from refused
        except Malformed as error:
            raise self._no_agent(str(error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailed(
                f"no agent answers at {self.url}: {error or type(error).__name__}",
                hint="Is the cluster up? See: cloudrl status",
            ) from error


def _start_of(answer: Response) -> bytes:
    """What a refusal says, as far as it is kept."""
    content = bytearray()
    while len(content) < _REFUSAL_BYTES and (piece := answer.stream.read1(_REFUSAL_BYTES - len(content))):
        content += piece
    return bytes(content)


def _refusal(status: int, body: bytes) -> AgentRefused:
    """An error as an agent sends it, one of another release perhaps; of anybody else the first words."""
    try:
        value = parse_object(body)
        message = str(value["error"])
    except (ValueError, KeyError):
        return AgentRefused(None, body[:200].decode("utf-8", "replace"), status)
    codes = {code.value: code for code in ErrorCode}
    return AgentRefused(codes.get(str(value.get("code"))), message, status)
