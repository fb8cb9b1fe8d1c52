"""The client's side of the agent's HTTP (`cloudrl.node.server`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cloudrl.errors import ConnectionFailed, InputError, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import httpx2

_CHECK_TIMEOUT_S = 600.0
"""The agent reads a file once more when its last byte has come: a shard of 50 GB takes minutes."""

_LISTING_TIMEOUT_S = 60.0
"""Of thousands of files on a network volume, or in one announcement."""

_REFUSALS = (400, 404, 422, 501, 507)
"""What the caller asked for is wrong; anything else that is no success is a matter of the connection."""


class AgentClient:
    """Calls to the agent of rank 0, which passes on what concerns another rank.

    Every call raises `ConnectionFailed` when nobody or something else answers, `Unauthorized` for a refused token,
    once `renew` has no newer one for it: a cluster that was started again has new tokens.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 10.0,
        transport: httpx2.BaseTransport | None = None,
        renew: Callable[[str], str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._token, self._timeout_s, self._transport = token, timeout_s, transport
        self._renew = renew

    def status(self) -> Mapping[str, Any]:
        """The cluster as rank 0 sees it: phase, failure, nodes, data, models (see `cloudrl.node.main.status`)."""
        return self._object("/v1/status", "phase")

    def node_log(self, rank: int, offset: int = 0) -> tuple[bytes, int]:
        """The agent's log of a rank from byte `offset`; returns (bytes, size of the whole log)."""
        return self._log(f"/v1/nodes/{rank}/log", offset)

    def job_log(self, submission_id: str, offset: int = 0) -> tuple[bytes, int] | None:
        """A job's driver log from byte `offset`, at most 1 MiB; None while there is no log yet."""
        try:
            return self._log(f"{_job(submission_id)}/log", offset)
        except InputError:
            return None

    def inventory(self, rank: int) -> Mapping[str, Any]:
        """The checkpoints of one rank: {"locations": [...]}, see `cloudrl.node.checkpoint_store`."""
        return self._object(f"/v1/nodes/{rank}/inventory", "locations", timeout_s=_LISTING_TIMEOUT_S)

    def remove_step(self, rank: int, root: str, path: str) -> None:
        """Remove `RUN/global_step_10` of a rank; its files go in the background.

        Raises:
            InputError: There is no such step, or its volume does not let the node remove it.
        """
        self._object(
            f"/v1/nodes/{rank}/{root}/{quote(os.fsencode(path))}",
            "removed",
            method="DELETE",
            refusals=(*_REFUSALS, 403, 409),
        )

    def announce_files(self, address: str, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make room for a file or folder; returns what `files_state` does.

        Raises:
            InputError: The disk of rank 0 has no room for it.
        """
        path = f"/v1/files/{address}"
        return self._object(path, "files", method="PUT", json=manifest, timeout_s=_LISTING_TIMEOUT_S)

    def files_state(self, address: str) -> Mapping[str, Any]:
        """{"files": {path: bytes on rank 0}, "nodes": {rank: "whole", bytes, or "failed: ..."}}."""
        return self._object(f"/v1/files/{address}", "files", timeout_s=_LISTING_TIMEOUT_S)

    def put_file(
        self, address: str, path: str, content: Iterable[bytes], *, offset: int, size_bytes: int
    ) -> Mapping[str, Any]:
        """Send bytes of an announced file from byte `offset`, `size_bytes` of them.

        Raises:
            InputError: The disk is full, or the bytes are not those that were announced.
        """
        return self._object(
            f"/v1/files/{address}/content/{quote(path)}?offset={offset}",
            "files",
            method="PUT",
            content=iter(content),
            headers={"Content-Length": str(size_bytes)},
            timeout_s=_CHECK_TIMEOUT_S,
        )

    def note_transfer(self) -> None:
        """Say that something is on its way to Ray, so that the cluster does not count as idle now."""
        self._object("/v1/transfers", "noted", method="POST")

    def put_secrets(self, submission_id: str, values: Mapping[str, str]) -> None:
        """Leave the secrets of a job on rank 0, from where the other nodes take them."""
        self._object(f"{_job(submission_id)}/secrets", "name", method="PUT", json=dict(values))

    def secrets_state(self, submission_id: str) -> Mapping[str, Any]:
        """{"nodes": {rank: "whole" or "0"}}."""
        return self._object(f"{_job(submission_id)}/secrets", "nodes")

    def _log(self, path: str, offset: int) -> tuple[bytes, int]:
        answer = self._call("GET", f"{path}?offset={offset}")
        size = answer.headers.get("X-Cloudrl-Size", "")
        if not size.isdecimal():
            raise self._no_agent()
        return answer.content, int(size)

    def _object(self, path: str, key: str, *, method: str = "GET", **sent: Any) -> Mapping[str, Any]:
        """A JSON object that has this key."""
        try:
            value = self._call(method, path, **sent).json()
        except ValueError:
            raise self._no_agent() from None
        if not isinstance(value, dict) or key not in value:
            raise self._no_agent()
        return value

    def _no_agent(self) -> ConnectionFailed:
        return ConnectionFailed(f"what answers at {self.url} is no cloudrl agent")

    def _call(
        self, method: str, path: str, *, refusals: tuple[int, ...] = _REFUSALS, **sent: Any
    ) -> httpx2.Response:
        answer = self._send(method, path, **sent)
        if answer.status_code == 401 and "content" not in sent and self._has_newer_token():
            answer = self._send(method, path, **sent)
        if answer.status_code == 401:
            raise Unauthorized(
                f"the agent at {self.url} refuses the token: another cluster may have taken this port",
                hint="Open the way to yours again: cloudrl detach NAME, then cloudrl attach NAME",
            )
        if answer.status_code in refusals:
            raise InputError(f"{self.url}{path}: {_message(answer)}")
        if answer.status_code >= 300:
            raise ConnectionFailed(f"{self.url}{path} answered {answer.status_code}: {_message(answer)}")
        return answer

    def _has_newer_token(self) -> bool:
        """Whether the cluster was started again since the token was read."""
        if self._renew is None:
            return False
        refused, self._token = self._token, self._renew(self._token)
        return self._token != refused

    def _send(
        self, method: str, path: str, *, timeout_s: float | None = None, **sent: Any
    ) -> httpx2.Response:
        import httpx2

        headers = {"Authorization": f"Bearer {self._token}"}
        timeout = httpx2.Timeout(timeout_s or self._timeout_s, connect=self._timeout_s)
        try:
            # no proxy and no certificates: the other end is this machine's loopback
            with httpx2.Client(
                base_url=self.url, headers=headers, timeout=timeout, transport=self._transport,
                trust_env=False, verify=False,
            ) as client:  # fmt: skip
                return client.request(method, path, **sent)
        except httpx2.HTTPError as error:
            raise ConnectionFailed(
                f"no agent answers at {self.url}: {error or type(error).__name__}",
                hint="Is the cluster up? See: cloudrl status",
            ) from error


def _job(submission_id: str) -> str:
    return f"/v1/jobs/{quote(submission_id, safe='')}"


def _message(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
