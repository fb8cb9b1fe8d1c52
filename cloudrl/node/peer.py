"""Talking to another node's agent: heartbeats to the head, and pulling files from it."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional
from urllib.parse import quote

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.node.report import Report


RELAY_TIMEOUT_S = 60.0
"""As long as clients wait for a listing on a slow volume (cloudrl/transport/agent_client.py); for sums and reads they
wait less, and ask again (cloudrl/checkpoints/agent_files.py)."""
_OF_THE_NETWORK = (
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.EHOSTDOWN,
    errno.ENOTCONN,
)


def of_the_network(error: OSError) -> bool:
    """Whether a connection is to blame, rather than this node's own disk."""
    # socket.timeout is another class before Python 3.10
    of_it = isinstance(error, (ConnectionError, TimeoutError, socket.timeout))
    return of_it or error.errno in _OF_THE_NETWORK


class PeerRefused(Exception):
    """The other agent answered with an error; the message is its own, and so is the HTTP status."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def relay_peer(token: str, report: Report) -> Peer:
    """The agent that a client's call is passed on to."""
    return Peer(report.ip, report.agent_port, token, timeout_s=RELAY_TIMEOUT_S)


class Peer:
    """One other agent. Each call is its own connection: calls are rare, and nodes come and go."""

    def __init__(self, ip: str, port: int, token: str, *, timeout_s: float = 10.0) -> None:
        self.ip, self.port = ip, port
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s

    def heartbeat(self, report: Mapping[str, Any]) -> Dict[str, Any]:
        """Send this node's report, get what the head has published.

        Raises:
            OSError: nobody answers. http.client.HTTPException: the answer broke off.
            PeerRefused: wrong token, or another cluster's agent.
        """
        body = json.dumps(report).encode()
        with self.open("POST", "/v1/heartbeat", body) as answer:
            return dict(json.loads(answer.read()))

    def open(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> http.client.HTTPResponse:
        """One request; the caller reads the answer, which closes the connection when it is read to its end."""
        connection = http.client.HTTPConnection(self.ip, self.port, timeout=self._timeout_s)
        try:
            connection.request(
                method, path, body=body, headers={**self._headers, "Connection": "close", **(headers or {})}
            )
            answer = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            connection.sock.close()  # the answer holds it still; it goes when the answer is read or closed
        if answer.status >= 400:
            with answer:
                message = answer.read(4096).decode("utf-8", "replace")
            raise PeerRefused(f"{self.ip}:{self.port} answered {answer.status}: {message}", answer.status)
        return answer

    def pull(self, folder: str, file: str, *, to: Path, sha256: str) -> None:
        """Copy a prepared data file from the head; it appears whole or not at all.

        Raises:
            PeerRefused: the bytes are not those that the head has announced.
        """
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f".{to.name}.{os.getpid()}.part")
        digest = hashlib.sha256()
        try:
            with (
                self.open("GET", f"/v1/data/{quote(folder)}/{quote(file)}") as answer,
                part.open("wb") as out,
            ):
                for chunk in iter(lambda: answer.read(1 << 20), b""):
                    digest.update(chunk)
                    out.write(chunk)
            if digest.hexdigest() != sha256:
                raise PeerRefused(
                    f"{folder}/{file} from {self.ip} is damaged: its SHA-256 is not the announced one"
                )
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)
