"""Ray's job server over HTTP: the few calls that cloudrl needs, without importing Ray.

Ray's own client raises a bare RuntimeError for everything and lets RAY_ADDRESS override the address that it
was given (Ray 2.60, dashboard/modules/job/sdk.py). Here the address is the one in the connection, whatever
the environment says, and each failure has its place in the error tree.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlsplit

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Unauthorized
from cloudrl.transport.ray_job import RayJob, RayNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import httpx2

PACKAGE_LIMIT_BYTES = 100 * 1024 * 1024
"""The largest package that a dashboard takes (Ray 2.60, ray_constants.py: DASHBOARD_CLIENT_MAX_SIZE).

Ray's client only warns above 256 MiB and refuses above 512 MiB (GCS_STORAGE_MAX_SIZE); the server answers 413
long before: measured with 101 MiB.
"""
_UPLOAD_TIMEOUT_S = 600.0
_LOG_RPC_TIMEOUT_S = 600
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)?: (.+)")


class RayClient:
    """One Ray cluster's job server. Each call opens and closes its own connection.

    `renew` turns a refused token into the present one: a cluster that was started again has new ones.
    Every method raises `ConnectionFailed` when nobody answers or the answer is not Ray's, and `Unauthorized`
    when the token is refused.
    """

    def __init__(
        self,
        ray_url: str,
        token: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        timeout_s: float = 30.0,
        renew: Callable[[str], str] | None = None,
    ) -> None:
        self.ray_url = ray_url.rstrip("/")
        scheme, host = _scheme_and_host(ray_url)
        self._token, self._renew = token, renew
        self._transport = transport
        self._timeout_s = timeout_s
        self._secure = scheme == "https"
        # A proxy of the environment cannot reach this machine's loopback.
        self._trust_env = _LOOPBACK.fullmatch(host) is None

    def version(self) -> Mapping[str, str]:
        """`ray_version`, `session_name` and the like."""
        answer = self._json("GET", "/api/version")
        if not isinstance(answer, dict) or "ray_version" not in answer:
            self._not_ray("/api/version has no ray_version")
        return answer

    def nodes(self) -> tuple[RayNode, ...]:
        """The nodes that are alive, the head first, then by address."""
        answer = self._json("GET", "/api/v0/nodes", params={"detail": "1", "limit": "10000"})
        try:
            rows = answer["data"]["result"]["result"]
            nodes = [RayNode.read(row) for row in rows if row.get("state") == "ALIVE"]
        except (KeyError, TypeError, AttributeError):
            self._not_ray("/api/v0/nodes has another form")
        return tuple(sorted(nodes, key=lambda node: (not node.is_head, node.ip)))

    def submit_job(self, body: Mapping[str, Any]) -> str:
        """Submit a job; returns its submission id.

        Args:
            body: `entrypoint`, `submission_id`, `runtime_env`, `metadata`
                (Ray 2.60, dashboard/modules/job/common.py: JobSubmitRequest).

        Raises:
            InputError: Ray refuses the request, for example because the id is taken.
        """
        response = self._request("POST", "/api/jobs/", content=json.dumps(body).encode())
        if response.status_code == 200:
            return str(self._decoded(response)["submission_id"])
        reason = ray_reason(response.text)
        if "already exists" in reason:
            raise id_taken(str(body.get("submission_id")))
        # The head wraps what its own agent answered: a 400 arrives as a 500 that quotes it.
        refused = response.status_code == 400 or "status code 400" in response.text
        raise (InputError if refused else CloudrlError)(f"Ray refused the job: {reason}")

    def get_job(self, submission_id: str) -> RayJob:
        """What Ray knows of one job.

        Raises:
            InputError: There is no such job.
        """
        return RayJob.read(self._json("GET", f"/api/jobs/{_part(submission_id)}", job=submission_id))

    def list_jobs(self) -> tuple[RayJob, ...]:
        """Jobs that were submitted, the oldest first; drivers that were started by hand are left out."""
        answer = self._json("GET", "/api/jobs/")
        if not isinstance(answer, list):
            self._not_ray("/api/jobs/ is no list")
        jobs = [RayJob.read(details) for details in answer if details.get("submission_id")]
        return tuple(sorted(jobs, key=lambda job: job.start_time or 0.0))

    def stop_job(self, submission_id: str) -> bool:
        """Ask a job to stop; returns at once, False when it was not running.

        Raises:
            InputError: There is no such job.
        """
        answer = self._json("POST", f"/api/jobs/{_part(submission_id)}/stop", job=submission_id)
        return bool(answer["stopped"])

    def delete_job(self, submission_id: str) -> None:
        """Forget a job that has ended.

        Raises:
            InputError: There is no such job, or it has not ended.
        """
        self._json("DELETE", f"/api/jobs/{_part(submission_id)}", job=submission_id)

    def package_exists(self, name: str) -> bool:
        """Whether the cluster has the package; asking keeps it for ten minutes, used or not (Ray's pin)."""
        response = self._request("GET", f"/api/packages/gcs/{_part(name)}")
        if response.status_code not in (200, 404):
            self._refuse(response)
        return response.status_code == 200

    def put_package(self, name: str, content: Iterable[bytes], size_bytes: int) -> None:
        """Upload a package of `size_bytes` under its name.

        Raises:
            InputError: It is larger than the cluster takes.
        """
        response = self._request(
            "PUT",
            f"/api/packages/gcs/{_part(name)}",
            content=iter(content),
            headers={"Content-Length": str(size_bytes)},
            timeout_s=_UPLOAD_TIMEOUT_S,
        )
        if response.status_code == 413:
            reason = response.text.strip()
            raise InputError(f"{self.ray_url} refuses a package of {size_bytes} bytes: {reason}")
        if response.status_code != 200:
            self._refuse(response)

    def log(self, node_id: str, name: str) -> Iterator[bytes]:
        """A file of a node's log folder as it is now, in chunks, byte for byte."""
        with self.open_log(node_id, name, follow=False) as response:
            yield from response.iter_raw()

    @contextmanager
    def open_log(self, node_id: str, name: str, *, follow: bool) -> Iterator[httpx2.Response]:
        """A log file as an open response; with `follow` it goes on for ever, silent while nothing is written.

        `/api/jobs/{id}/logs` and its websocket `logs/tail` decode the file strictly as text: one byte that is
        no UTF-8, or a character that is half written when it is read, ends them without an error (Ray 2.60,
        dashboard/modules/job/utils.py: file_tail_iterator). The state API sends the bytes.
        """
        import httpx2

        kind = "stream" if follow else "file"
        query = {"node_id": node_id, "filename": name, "lines": "-1", "timeout": str(_LOG_RPC_TIMEOUT_S)}
        read_timeout_s = None if follow else self._timeout_s
        timeout = httpx2.Timeout(self._timeout_s, read=read_timeout_s)
        with (
            self._failures(),
            self._client(timeout) as client,
            client.stream("GET", f"/api/v0/logs/{kind}", params=query) as response,
        ):
            self._check_access(response)
            if response.status_code != 200:
                response.read()
                raise ConnectionFailed(f"{self.ray_url} cannot read {name}: {ray_reason(response.text)}")
            yield response

    def _json(
        self, method: str, path: str, *, job: str | None = None, params: Mapping[str, str] | None = None
    ) -> Any:
        response = self._request(method, path, params=params)
        if response.status_code == 404 and job is not None and "does not exist" in response.text:
            raise InputError(f"{self.ray_url} knows no job {job!r}", hint="List them: cloudrl jobs list")
        if response.status_code != 200:
            self._refuse(response)
        return self._decoded(response)

    def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx2.Response:
        import httpx2

        timeout = httpx2.Timeout(timeout_s or self._timeout_s, connect=self._timeout_s)

        def send() -> httpx2.Response:
            with self._failures(), self._client(timeout) as client:
                return client.request(method, path, content=content, headers=headers, params=params)

        response = send()
        can_repeat = content is None or isinstance(content, bytes)
        if response.status_code in (401, 403) and can_repeat and self._has_newer_token():
            response = send()
        self._check_access(response)
        return response

    def _has_newer_token(self) -> bool:
        if self._renew is None or not self._token:
            return False
        refused, self._token = self._token, self._renew(self._token)
        return self._token != refused

    def _client(self, timeout: httpx2.Timeout) -> httpx2.Client:
        import httpx2

        return httpx2.Client(
            base_url=self.ray_url,
            headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
            timeout=timeout,
            transport=self._transport,
            trust_env=self._trust_env,
            verify=self._secure,  # without TLS there is nothing to verify, and no certificates to load
        )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        import httpx2

        hint = "Is the cluster up, and the tunnel to it? See: cloudrl status"
        try:
            yield
        except httpx2.ConnectError as failure:
            raise ConnectionFailed(f"no Ray answers at {self.ray_url}: {failure}", hint=hint) from failure
        except httpx2.TimeoutException as failure:
            what = f"{self.ray_url} did not answer in {self._timeout_s:g} s"
            raise ConnectionFailed(what, hint=hint) from failure
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as failure:
            what = f"the connection to {self.ray_url} broke: {failure or type(failure).__name__}"
            raise ConnectionFailed(what, hint=hint) from failure

    def _check_access(self, response: httpx2.Response) -> None:
        if response.status_code not in (401, 403):
            return
        sent = "refuses the token" if self._token else "wants a token, and none was given"
        raise Unauthorized(
            f"Ray at {self.ray_url} {sent} ({response.status_code})",
            hint="Name the cluster (--cluster NAME), or set RAY_AUTH_TOKEN to what `cloudrl env` prints",
        )

    def _refuse(self, response: httpx2.Response) -> NoReturn:
        reason = ray_reason(response.text)
        if response.status_code == 400:
            raise InputError(f"Ray at {self.ray_url} refuses: {reason}")
        if response.status_code == 404:
            self._not_ray(f"{response.request.url.path} is unknown to it")
        raise ConnectionFailed(f"Ray at {self.ray_url} answered {response.status_code}: {reason}")

    def _decoded(self, response: httpx2.Response) -> Any:
        try:
            return response.json()
        except ValueError:
            self._not_ray(f"{response.request.url.path} is not JSON")

    def _not_ray(self, sign: str) -> NoReturn:
        raise ConnectionFailed(
            f"what answers at {self.ray_url} is not Ray's job server: {sign}",
            hint="Is that the dashboard's port (8265 unless it was taken)? See: cloudrl status",
        )


def id_taken(submission_id: str) -> InputError:
    """The error for a submission id that the cluster has seen before."""
    return InputError(
        f"submission id {submission_id!r} is taken on this cluster; Ray never uses an id twice",
        hint=f"Follow it: cloudrl jobs logs -f {submission_id}; or submit without --submission-id",
    )


def ray_reason(text: str) -> str:
    """The one line of a traceback from Ray that says what happened."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    for line in reversed(lines):
        if (match := _RAISED.match(line)) is not None:
            return match[1].strip().rstrip(".")
    return lines[-1][:500] if lines else "no reason given"


def _scheme_and_host(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0:
            return parts.scheme, parts.hostname
    except ValueError:  # half an IPv6 address, or a port that is none
        pass
    raise InputError(f"{url!r} is not the URL of a Ray dashboard", hint="For example http://localhost:8265")


def _part(name: str) -> str:
    return quote(name, safe="")
