r"""A cluster in memory, for tests of your own code: Ray's job server and the agent, as they answer, with no socket.

    import cloudrl
    from cloudrl.testing import FakeCluster

    def test_my_launcher():
        fake = FakeCluster(nodes=2)
        ray = cloudrl.RunningCluster(fake.connection())
        job = ray.submit(cloudrl.recipe("grpo-tiny"))
        fake.write(job.submission_id, b"step:1 - critic/score/mean:0.5\n")
        fake.end(job.submission_id)
        assert job.result().succeeded

Everything runs as with a real cluster but for the last step, the seam at which a `Request` would leave this process.
Its state is plain: what was submitted is in `jobs`, what was asked in `requests`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Outcome, Result, Verdict
from cloudrl.protocol.exchange import Request, Response
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.routes import ROUTES, SIZE_HEADER
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.testing_answers import Call, as_json, as_text, cluster_status, ip_of, no_job, node_id_of, ray_node, respond
from cloudrl.transport import Connection

RAY_URL, AGENT_URL = "http://ray.fake:8265", "http://agent.fake:8266"


@dataclass
class FakeJob:
    """What the cluster holds of one job.

    Attributes:
        body: as it was submitted: `entrypoint`, `runtime_env`, `metadata`.
        node_ip: where the driver runs; None while it has no node.
    """

    body: dict[str, Any]
    status: str = "RUNNING"
    message: str = "Job is currently running."
    log: bytearray = field(default_factory=bytearray)
    started: int = 0
    node_ip: str | None = "10.0.0.1"


class FakeCluster:
    """A ready cluster.

    Args:
        name: of it.
        nodes: how many.
        gpus_per_node: of each node; on CPUs the places that Ray counts.
        device: "gpu" or "cpu".
        token: what Ray wants; None for a cluster without tokens.
        agent_token: what the agent wants, if it is another one.

    Attributes:
        jobs: by their submission ids.
        packages: uploaded working directories, by Ray's names for them.
        secrets: of jobs, by their submission ids.
        durable_jobs: jobs that were left with the agents, by their ids; to be changed as a test needs it. One with the
            `cluster_run` of another cluster is known to the volumes alone.
        files: what was sent through the agents: address -> bytes of each part.
        requests: (method, path) of each request so far.
        status: what the agent says of the cluster, as JSON; to be changed as a test needs it.
        nodes: what Ray says of its nodes, likewise.
        tasks, workers, actors: what it says of those of all jobs, likewise; none at first.
        logs: of Ray's processes, by node id and name of the file.
        usage: "hour" or "day" -> rank -> rows, as the agent answers how busy the nodes were; none at first.
        on_request: called with method and path of each request before it is answered.
        on_submit: called with the submission id of each new job.
        package_limit_bytes: the largest package that Ray takes.
        chunk_bytes: the most of a log that comes at once.
        cuts: bytes that each of the next log answers gives before its connection breaks.
        is_up: whether anybody answers.
    """

    def __init__(
        self,
        name: str = "lab",
        *,
        nodes: int = 2,
        gpus_per_node: int = 1,
        device: str = "cpu",
        token: str | None = "right-token",  # noqa: S107
        agent_token: str | None = None,
    ) -> None:
        self.token, self.agent_token = token, agent_token or token
        self.jobs: dict[str, FakeJob] = {}
        self.packages: dict[str, bytes] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.durable_jobs: dict[str, DurableJob] = {}
        self.files: dict[str, dict[str, int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.status: dict[str, Any] = cluster_status(name, nodes, gpus_per_node, device)
        self.nodes = [ray_node(ip_of(rank), gpus_per_node, is_head=rank == 0) for rank in range(nodes)]
        self.tasks: list[dict[str, Any]] = []
        self.workers: list[dict[str, Any]] = []
        self.actors: list[dict[str, Any]] = []
        self.logs: dict[tuple[str, str], bytes] = {}
        self.usage: dict[str, dict[str, list[Any]]] = {}
        self.on_request: Callable[[str, str], object] = lambda _method, _path: None
        self.on_submit: Callable[[str], object] = lambda _submission_id: None
        self.package_limit_bytes, self.chunk_bytes = 100 << 20, 1 << 20
        self.cuts: list[int] = []
        self.is_up = True
        self.changed = threading.Condition()
        """Notified whenever a log grows or its reader goes."""

    def connection(self) -> Connection:
        """What `cloudrl.attach` would return for it."""
        facts = self.status["facts"]
        return Connection(facts["name"], RAY_URL, self.token, AGENT_URL, self.agent_token, facts["id"], send=self.send)

    def add(self, submission_id: str, log: bytes = b"", status: str = "RUNNING", **body: Any) -> FakeJob:
        """A job that is there already."""
        body = {"entrypoint": "python3 train.py", "metadata": {}, "runtime_env": {}, **body}
        job = FakeJob(body, status=status, log=bytearray(log), started=len(self.jobs) + 1)
        self.jobs[submission_id] = job
        return job

    def write(self, submission_id: str, log: bytes) -> None:
        """The job prints something."""
        with self.changed:
            self.jobs[submission_id].log += log
            self.changed.notify_all()

    def end(self, submission_id: str, status: str = "SUCCEEDED", message: str = "Job finished.") -> None:
        """The job ends."""
        job = self.jobs[submission_id]
        job.status, job.message = status, message
        left = next((each for each in self.durable_jobs.values() if each.submission_id == submission_id), None)
        if left is not None and left.open_attempt is not None:
            verdict = {"SUCCEEDED": Verdict.SUCCEEDED, "STOPPED": Verdict.STOPPED}.get(status, Verdict.PROGRAM)
            outcome = left.outcome or Outcome(Result(status.lower()), message, 0.0)
            ended = left.with_last(ended_at=0.0, verdict=verdict, reason=message)
            self.durable_jobs[left.job_id] = replace(ended, outcome=outcome)

    def send(self, request: Request) -> Response:
        """The seam: answer instead of a network.

        Raises:
            ConnectionFailed: it is not up.
        """
        if not self.is_up:
            raise ConnectionFailed(f"no answer from {request.url}", hint="See: cloudrl status")
        return self.ray(request) if request.url.startswith(RAY_URL) else self.agent(request)

    def ray(self, request: Request) -> Response:
        """Answer as Ray does."""
        call = self._call(request)
        given = request.headers.get("Authorization")
        if self.token is not None and given is None:
            return as_text(401, "Unauthorized: Missing authentication token")
        if self.token is not None and given != f"Bearer {self.token}":
            return as_text(403, "Forbidden: Invalid authentication token")
        for method, pattern, name in _RAY_CALLS:
            match = re.fullmatch(pattern, urlsplit(request.url).path) if method == call.method else None
            if match:
                answer: Response = getattr(self, name)(call, *map(unquote, match.groups()))
                return answer
        return as_text(404, "404: Not Found")

    def agent(self, request: Request) -> Response:
        """Answer as the agent of rank 0 does."""
        call = self._call(request)
        try:
            if self.agent_token not in (None, call.headers.get("Authorization", "").removeprefix("Bearer ")):
                raise ApiError(ErrorCode.UNAUTHORIZED, "wrong or missing token")
            for route in ROUTES:
                values = route.match(call.method, call.path)
                if values is not None and hasattr(self, f"agent_{route.name}"):
                    answer: Response = getattr(self, f"agent_{route.name}")(call, **values)
                    return answer
            raise ApiError(ErrorCode.NOT_FOUND, "no such thing here")
        except ApiError as error:
            return as_json(error.to_json(), (error.code or ErrorCode.BAD_GATEWAY).status)

    def _call(self, request: Request) -> Call:
        place = urlsplit(request.url)
        body = request.body if isinstance(request.body, bytes) else b"".join(request.body or ())
        query = {key: values[0] for key, values in parse_qs(place.query).items()}
        call = Call(request.method, unquote(place.path), query, request.headers, body)
        self.requests.append((call.method, call.path))
        self.on_request(call.method, call.path)
        return call

    # -- Ray's calls ------------------------------------------------------------------------------------------

    def _version(self, _call: Call) -> Response:
        return as_json(
            {"version": "4", "ray_version": self.status["facts"]["ray_version"], "session_name": "session_x"}
        )

    def _state(self, _call: Call, kind: str) -> Response:
        rows = getattr(self, kind)
        return as_json({"result": True, "msg": "", "data": {"result": {"total": len(rows), "result": rows}}})

    def _job_list(self, _call: Call) -> Response:
        driver = {"type": "DRIVER", "submission_id": None, "job_id": "01000000", "status": "SUCCEEDED"}
        return as_json([*map(self._details, reversed(self.jobs)), driver])

    def _submit(self, call: Call) -> Response:
        sent = json.loads(call.body)
        submission_id = sent["submission_id"]
        if submission_id in self.jobs:
            return as_text(500, f"ValueError: Job with submission_id {submission_id} already exists.")
        self.jobs[submission_id] = FakeJob(sent, started=len(self.jobs) + 1)
        self.on_submit(submission_id)
        return as_json({"job_id": submission_id, "submission_id": submission_id})

    def _job(self, _call: Call, submission_id: str) -> Response:
        return as_json(self._details(submission_id)) if submission_id in self.jobs else no_job(submission_id)

    def _stop(self, _call: Call, submission_id: str) -> Response:
        if submission_id not in self.jobs:
            return no_job(submission_id)
        is_running = self.jobs[submission_id].status == "RUNNING"
        if is_running:
            self.end(submission_id, "STOPPED", "Job was intentionally stopped.")
        return as_json({"stopped": True})  # as Ray says of one that has just ended, too: its supervisor is still there

    def _package(self, _call: Call, name: str) -> Response:
        return respond(200) if name in self.packages else as_text(404, f"Package gcs://{name} does not exist")

    def _upload(self, call: Call, name: str) -> Response:
        if len(call.body) > self.package_limit_bytes:
            return as_text(413, f"Maximum request body size {self.package_limit_bytes} exceeded.")
        self.packages[name] = call.body
        return respond(200)

    def _log_names(self, call: Call) -> Response:
        names = [name for node_id, name in self.logs if node_id == call.query["node_id"]]
        return as_json({"result": True, "msg": "", "data": {"result": {"worker_err": names}}})

    def _log_file(self, call: Call, kind: str) -> Response:
        place = call.query["node_id"], call.query["filename"]
        if place in self.logs:
            return respond(200, self.logs[place])
        name = call.query["filename"].removeprefix("job-driver-").removesuffix(".log")
        if name not in self.jobs or call.query["node_id"] != self._details(name)["driver_node_id"]:
            return as_text(500, f"A file is not found at: /tmp/ray/logs/{call.query['filename']}")
        return Response(200, {}, LogStream(self, self.jobs[name], follow=kind == "stream"))

    def _details(self, submission_id: str) -> dict[str, Any]:
        """One job as `/api/jobs/` shows it."""
        job = self.jobs[submission_id]
        return {
            "type": "SUBMISSION", "submission_id": submission_id, "status": job.status, "message": job.message,
            "entrypoint": job.body["entrypoint"], "start_time": job.started * 1000, "end_time": None,
            "metadata": job.body.get("metadata"), "runtime_env": job.body.get("runtime_env"),
            "driver_node_id": node_id_of(job.node_ip) if job.node_ip else None, "driver_exit_code": None,
            "job_id": f"{job.started:02}000000",
        }  # fmt: skip

    # -- the agent's calls, by the names of their routes -----------------------------------------------------

    def agent_status(self, _call: Call) -> Response:
        """The cluster."""
        return as_json(self.status)

    def agent_usage(self, call: Call) -> Response:
        """How busy the nodes were, as far as a test says it."""
        return as_json({"nodes": self.usage.get(call.query.get("span", ""), {})})

    def agent_transfer(self, _call: Call) -> Response:
        """Something is on its way to Ray."""
        return as_json({"noted": True})

    def agent_take_secrets(self, call: Call, job: str) -> Response:
        """Secrets of a job."""
        self.secrets[job] = json.loads(call.body)
        return as_json({"name": f"secrets/{job}/0"})

    def agent_inventory(self, _call: Call, rank: str) -> Response:
        """No checkpoints."""
        return as_json({"rank": int(rank), "locations": []})

    def agent_submit_job(self, call: Call, job: str) -> Response:
        """A job that the agents carry through: its first attempt starts at once."""
        sent = from_json(DurableJob, json.loads(call.body))
        attempt = Attempt(1, job, self.status["facts"]["id"], 0, 0.0)
        self.durable_jobs[job] = replace(sent, attempts=(attempt,))
        self.jobs[job] = FakeJob(dict(sent.request), started=len(self.jobs) + 1)
        self.on_submit(job)
        return as_json(to_json(self.durable_jobs[job]))

    def agent_jobs(self, _call: Call, rank: str = "") -> Response:
        """Those jobs; the volumes of nodes remember those of another cluster, too."""
        runs = "", self.status["facts"]["id"]
        jobs = [job for job in self.durable_jobs.values() if rank or job.cluster_run in runs]
        return as_json({"jobs": [to_json(job) for job in jobs]})

    agent_journal = agent_jobs

    def agent_stop_job(self, _call: Call, job: str) -> Response:
        """One of them shall end."""
        known = next((each for each in self.durable_jobs.values() if each.has(job)), None)
        if known is None:
            raise ApiError(ErrorCode.NOT_FOUND, "no such job")
        outcome = Outcome(Result.STOPPED, "it was stopped", 0.0)
        self.durable_jobs[known.job_id] = replace(known, outcome=outcome)
        if known.open_attempt is not None:
            self.end(known.submission_id, "STOPPED", "Job was intentionally stopped.")
        return as_json({"stopped": True})

    def agent_announce_files(self, call: Call, address: str) -> Response:
        """A file is on its way."""
        self.files[address] = {part: 0 for part, _, _ in json.loads(call.body)["parts"]}
        return as_json({"files": self.files[address]})

    def agent_take_file(self, call: Call, address: str, path: str) -> Response:
        """A piece of it."""
        self.files[address][path] += len(call.body)
        return as_json({"files": self.files[address]})

    def agent_files_state(self, _call: Call, address: str) -> Response:
        """It is on all nodes."""
        nodes = {str(node["rank"]): {"complete": True} for node in self.status["nodes"]}
        return as_json({"files": self.files[address], "nodes": nodes})

    def agent_job_log(self, call: Call, job: str) -> Response:
        """A piece of the log of a job whose driver runs on the head."""
        if job not in self.jobs or self.jobs[job].node_ip != ip_of(0):
            raise ApiError(ErrorCode.NOT_FOUND, "no such log")
        log, offset = bytes(self.jobs[job].log), int(call.query.get("offset", 0))
        piece = log[offset : offset + self.chunk_bytes]
        answer = respond(200, piece, {SIZE_HEADER: str(len(log))})
        if self.cuts and len(piece) > self.cuts[0]:
            answer.stream = LogStream(self, FakeJob({}, log=bytearray(piece)), follow=False)
        return answer


class LogStream:
    """A log as a body: with `follow` without end, and broken off where the cluster is to cut it."""

    def __init__(self, cluster: FakeCluster, job: FakeJob, *, follow: bool) -> None:
        self._cluster, self._job, self._follow = cluster, job, follow
        self._sent, self._is_closed = 0, False
        self._last = cluster.cuts.pop(0) if cluster.cuts else None

    def read(self, _limit: int = -1) -> bytes:
        """All of it."""
        return b"".join(iter(self.read1, b""))

    def read1(self, _limit: int = -1) -> bytes:
        """What is there; waits for it with `follow`."""
        with self._cluster.changed:
            while True:
                self._check()
                end = self._sent + self._cluster.chunk_bytes
                piece = bytes(self._job.log[self._sent : end if self._last is None else min(end, self._last)])
                if piece or not self._follow:
                    self._sent += len(piece)
                    return piece
                self._cluster.changed.wait(0.05)

    def _check(self) -> None:
        is_cut = self._last is not None and self._sent >= self._last
        if is_cut or self._is_closed or not self._cluster.is_up:
            raise ConnectionFailed("the connection broke")

    def abort(self) -> None:
        """Wake whoever reads."""
        with self._cluster.changed:
            self._is_closed = True
            self._cluster.changed.notify_all()

    close = abort


_RAY_CALLS = (
    ("GET", "/api/version", "_version"),
    ("GET", "/api/v0/(nodes|tasks|workers|actors)", "_state"),
    ("GET", "/api/v0/logs", "_log_names"),
    ("GET", "/api/jobs/", "_job_list"),
    ("POST", "/api/jobs/", "_submit"),
    ("GET", "/api/jobs/([^/]+)", "_job"),
    ("POST", "/api/jobs/([^/]+)/stop", "_stop"),
    ("GET", "/api/packages/gcs/([^/]+)", "_package"),
    ("PUT", "/api/packages/gcs/([^/]+)", "_upload"),
    ("GET", "/api/v0/logs/(file|stream)", "_log_file"),
)
