"""Ray's job server over HTTP: the few calls that cloudrl needs, without importing Ray.

Ray's own client raises a bare RuntimeError for everything and lets RAY_ADDRESS override the address that it
was given (Ray 2.60, dashboard/modules/job/sdk.py). Here the address is the one in the connection, whatever
the environment says, and each failure has its place in the error tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Unauthorized, without_login
from cloudrl.foreign import NOT_AS_EXPECTED, Malformed, as_list, as_object, parse_json, text_of
from cloudrl.protocol import ray_state
from cloudrl.protocol.client import Token
from cloudrl.protocol.exchange import Request, Response, Send
from cloudrl.transport import httpx_send
from cloudrl.transport.job_url import job_url
from cloudrl.transport.ray_job import JobStatus, RayJob, RayNode

PACKAGE_LIMIT_BYTES = 100 * 1024 * 1024
"""The largest package that a dashboard takes (Ray 2.60, ray_constants.py: DASHBOARD_CLIENT_MAX_SIZE).

Ray's client only warns above 256 MiB and refuses above 512 MiB (GCS_STORAGE_MAX_SIZE); the server answers 413
long before: measured with 101 MiB.
"""
_UPLOAD_TIMEOUT_S = 600.0
_LOG_RPC_TIMEOUT_S = 600
_REFUSED = (401, 403)
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)?: (.+)")


class RayClient:
    """One Ray cluster's job server. Each call opens and closes its own connection.

    Every method raises `ConnectionFailed` when the server is silent or the answer is not Ray's, and `Unauthorized`
    when the token is refused.

    Args:
        ray_url: the dashboard's.
        token: None where Ray wants none.
        timeout_s: for each step of a request.
        refresh: gives a newer token for a refused one: a cluster that was started again has new ones.
        send: the seam.
        cluster: the name of a cluster of ours, for the URLs of its jobs.
    """

    def __init__(
        self,
        ray_url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        refresh: Callable[[str], str] | None = None,
        send: Send = httpx_send.send,
        cluster: str | None = None,
    ) -> None:
        _check_url(ray_url)
        _check_token(token or "")
        self._url, self.ray_url = ray_url.rstrip("/"), without_login(ray_url).rstrip("/")
        self._token = Token(token or "", refresh if token else None)
        self._timeout_s, self._send, self._cluster = timeout_s, send, cluster

    def job_url(self, submission_id: str) -> str:
        """A job of this cluster in one word."""
        return job_url(submission_id, self.ray_url, self._cluster)

    def version(self) -> Mapping[str, str]:
        """`ray_version`, `session_name` and the like."""
        answer = self._json("GET", "/api/version")
        if not isinstance(answer, dict) or "ray_version" not in answer:
            self._not_ray("/api/version has no ray_version")
        return answer

    def nodes(self) -> tuple[RayNode, ...]:
        """The nodes that are alive, the head first, then by address."""
        rows = self.state("nodes", None)
        if not rows:
            self._not_ray("/api/v0/nodes has another form")
        with self._of_rays("/api/v0/nodes"):
            nodes = [RayNode.read(row) for row in rows if row.get("state") == "ALIVE"]
        return tuple(sorted(nodes, key=lambda node: (not node.is_head, node.ip)))

    def state(self, kind: str, job_id: str | None) -> tuple[Mapping[str, Any], ...]:
        """Rows of the state API, with all their fields, as `cloudrl.protocol.ray_state` asks for them.

        Args:
            kind: one of `ray_state.KINDS`.
            job_id: Ray's own id of a job; rows of all jobs for None.
        """
        rows = ray_state.rows_of(self._json("GET", ray_state.path_of(kind, job_id)))
        return tuple(row for row in rows or () if isinstance(row, dict))

    def log_names(self, node_id: str, pattern: str) -> tuple[str, ...]:
        """Names of the log files of a node that fit a pattern, such as `worker-*`."""
        answer = self._json("GET", "/api/v0/logs", query={"node_id": node_id, "glob": pattern})
        with self._of_rays("/api/v0/logs"):
            return tuple(str(name) for names in answer["data"]["result"].values() for name in as_list(names))

    def get(self, path: str) -> Response:
        """Whatever the dashboard answers to a path with its query; the caller closes it."""
        return self._open("GET", path, timeout_s=self._timeout_s)

    def submit_job(self, body: Mapping[str, Any]) -> str:
        """Submit a job; returns its submission id.

        Args:
            body: `entrypoint`, `submission_id`, `runtime_env`, `metadata`
                (Ray 2.60, dashboard/modules/job/common.py: JobSubmitRequest).

        Raises:
            InputError: Ray refuses the request, for example because the id is taken.
        """
        answer = self._ask("POST", "/api/jobs/", body=json.dumps(body).encode())
        if answer.status == 200:
            with self._of_rays("/api/jobs/"):
                return text_of(as_object(self._decoded(answer)), "submission_id")
        submission_id, reason = str(body.get("submission_id")), ray_reason(answer.text)
        # The head wraps what its own agent answered: a 400 arrives as a 500 that quotes it, also of a taken id.
        if answer.status != 400:
            with suppress(ConnectionFailed):  # then the names in use are unknown
                if any(job.submission_id == submission_id for job in self.list_jobs()):
                    raise id_taken(submission_id, self.job_url(submission_id), reason)
        if answer.status < 400 or answer.status == 404:
            self._refuse(answer)
        refused = answer.status == 400 or "status code 400" in answer.text
        raise (InputError if refused else CloudrlError)(f"Ray refused the job: {reason}")

    def get_job(self, submission_id: str) -> RayJob:
        """What Ray knows of one job.

        Raises:
            InputError: The cluster has no such job.
        """
        answer = self._json("GET", f"/api/jobs/{_part(submission_id)}", job=submission_id)
        with self._of_rays("/api/jobs/ID"):
            return RayJob.read(answer)

    def list_jobs(self) -> tuple[RayJob, ...]:
        """Jobs that were submitted, the oldest first; drivers that were started by hand are left out."""
        answer = self._json("GET", "/api/jobs/")
        with self._of_rays("/api/jobs/"):
            jobs = [RayJob.read(row) for row in as_list(answer) if as_object(row, "a job").get("submission_id")]
        return tuple(sorted(jobs, key=lambda job: job.start_time or 0.0))

    def running_drivers(self) -> tuple[str, ...]:
        """Drivers that were started by hand and have not ended, by Ray's own ids."""
        answer = self._json("GET", "/api/jobs/")
        with self._of_rays("/api/jobs/"):
            rows = [as_object(row, "a job") for row in as_list(answer)]
            drivers = [row for row in rows if not row.get("submission_id")]
            running = [row for row in drivers if not JobStatus(text_of(row, "status")).is_terminal]
            return tuple(text_of(row, "job_id") for row in running)

    def stop_job(self, submission_id: str) -> bool:
        """Ask a job to stop; returns at once, False when it was not running.

        Raises:
            InputError: The cluster has no such job.
        """
        answer = self._json("POST", f"/api/jobs/{_part(submission_id)}/stop", job=submission_id)
        with self._of_rays("/api/jobs/ID/stop"):
            return bool(as_object(answer)["stopped"])

    def package_exists(self, name: str) -> bool:
        """Whether the cluster has the package; asking keeps it for ten minutes, used or not (Ray's pin)."""
        answer = self._ask("GET", f"/api/packages/gcs/{_part(name)}")
        if answer.status not in (200, 404):
            self._refuse(answer)
        return answer.status == 200

    def put_package(self, name: str, content: Iterable[bytes], size_bytes: int) -> None:
        """Upload a package of `size_bytes` under its name.

        Raises:
            InputError: It is larger than the cluster takes.
        """
        answer = self._ask(
            "PUT",
            f"/api/packages/gcs/{_part(name)}",
            body=iter(content),
            headers={"Content-Length": str(size_bytes)},
            timeout_s=_UPLOAD_TIMEOUT_S,
        )
        if answer.status == 413:
            raise InputError(f"{self.ray_url} refuses a package of {size_bytes} bytes: {answer.text.strip()}")
        if answer.status != 200:
            self._refuse(answer)

    def open_log(self, node_id: str, name: str, *, follow: bool, last_lines: int = -1) -> Response:
        """A log file as an open response, byte for byte; with `follow` it goes on for ever, silent between writes.

        `last_lines` is how many of its lines come; -1 for all.

        `/api/jobs/{id}/logs` and its websocket `logs/tail` decode the file strictly as text: one byte that is
        no UTF-8, or a character that is half written when it is read, ends them without an error (Ray 2.60,
        dashboard/modules/job/utils.py: file_tail_iterator). The state API sends the bytes.
        """
        kind, timeout_s = ("stream", None) if follow else ("file", self._timeout_s)
        query = {"node_id": node_id, "filename": name, "lines": str(last_lines), "timeout": str(_LOG_RPC_TIMEOUT_S)}
        response = self._open("GET", f"/api/v0/logs/{kind}", query=query, timeout_s=timeout_s)
        if response.status == 200:
            return response
        with response:
            reason = ray_reason(_text(self._content(response)))
        raise ConnectionFailed(f"{self.ray_url} cannot read {name}: {reason}")

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None,
    ) -> Response:
        """The answer while it comes; `timeout_s=None` waits for ever.

        A refused token is read again once, unless the body cannot be sent twice.
        """
        url = self._url + path + (f"?{urlencode(query)}" if query else "")
        request = Request(method, url, headers or {}, body, timeout_s, self._timeout_s)
        used = self._token.value
        response = self._send(self._authorized(request))
        if response.status in _REFUSED:
            response.stream.close()
            if request.is_repeatable and self._token.replace(used):
                response = self._send(self._authorized(request))
        if response.status in _REFUSED:
            response.stream.close()
            sent = "refuses the token" if self._token.value else "wants a token, and none was given"
            raise Unauthorized(
                f"Ray at {self.ray_url} {sent} ({response.status})",
                hint="Name the cluster (--cluster NAME), or set RAY_AUTH_TOKEN to what `cloudrl env` prints",
            )
        return response

    def _authorized(self, request: Request) -> Request:
        token = {"Authorization": f"Bearer {self._token.value}"} if self._token.value else {}
        return replace(request, headers={**request.headers, **token})

    def _ask(self, method: str, path: str, **details: Any) -> _Answer:
        with self._open(method, path, **{"timeout_s": self._timeout_s, **details}) as response:
            return _Answer(path, response.status, _text(self._content(response)))

    def _content(self, response: Response) -> bytes:
        with self._of_rays("its answer"):
            return response.content()

    def _json(self, method: str, path: str, *, job: str | None = None, **details: Any) -> Any:
        answer = self._ask(method, path, **details)
        if answer.status == 404 and job is not None:
            self.version()  # another server does not know the path at all
            raise InputError(f"{self.ray_url} knows no job {job!r}", hint="List them: cloudrl jobs list")
        if answer.status != 200:
            self._refuse(answer)
        return self._decoded(answer)

    def _refuse(self, answer: _Answer) -> NoReturn:
        reason = ray_reason(answer.text)
        if answer.status == 400:
            raise InputError(f"Ray at {self.ray_url} refuses: {reason}")
        if answer.status == 404:
            self._not_ray(f"{answer.path} is unknown to it")
        raise ConnectionFailed(f"Ray at {self.ray_url} answered {answer.status}: {reason}")

    def _decoded(self, answer: _Answer) -> Any:
        with self._of_rays(answer.path):
            return parse_json(answer.text)

    @contextmanager
    def _of_rays(self, what: str) -> Iterator[None]:
        """Read an answer; one of another form is not Ray's."""
        try:
            yield
        except Malformed as error:
            self._not_ray(f"{what}: {error}")
        except NOT_AS_EXPECTED:
            self._not_ray(f"{what} has another form")

    def _not_ray(self, sign: str) -> NoReturn:
        raise ConnectionFailed(
            f"what answers at {self.ray_url} is not Ray's job server: {sign}",
            hint="Is that the dashboard's port (8265 unless it was taken)? See: cloudrl status",
        )


def id_taken(submission_id: str, url: str, reason: str = "") -> InputError:
    """The error for a submission id that is taken, by the job at `url`; `reason` is what Ray says."""
    reason_text = f"; Ray says: {reason}" if reason else ""
    return InputError(
        f"submission id {submission_id!r} is taken on this cluster; Ray never uses an id twice{reason_text}",
        hint=f"Follow it: cloudrl jobs logs -f {url}\nAnother job: leave out --submission-id",
    )


def ray_reason(text: str) -> str:
    """The one line of a traceback from Ray that says what happened."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    for line in reversed(lines):
        if (match := _RAISED.match(line)) is not None:
            return match[1].strip().rstrip(".")
    return lines[-1][:500] if lines else "no reason given"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0:
            return
    except ValueError:  # half an IPv6 address, or an invalid port
        pass
    shown = re.sub(
        r":[^/:\]]*[^/:\]\d][^/:\]]*$", ":...", without_login(url)
    )  # `user:password`, where a port should be
    raise InputError(f"{shown!r} is not the URL of a Ray dashboard", hint="For example http://localhost:8265")


def _check_token(token: str) -> None:
    if not token.isascii() or not token.isprintable():
        raise InputError(
            "the token for Ray holds characters that no HTTP header can have",
            hint="Set RAY_AUTH_TOKEN to what `cloudrl env` prints",
        )


@dataclass(frozen=True)
class _Answer:
    path: str
    status: int
    text: str


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _part(name: str) -> str:
    return quote(name, safe="")
