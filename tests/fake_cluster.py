"""A stand-in for a cluster: Ray's job server and our agent on real sockets, which answer as Ray 2.60 does.

It can refuse tokens, cut its answers short, go away and come back on the same port.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fake_agent import Agent, agent_status
from fake_http import Handler, Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKEN = "right-token"
NODE_ID = "f4a49f9ed5b5d6f2"


@dataclass
class FakeJob:
    """What the cluster holds of one job."""

    body: dict[str, Any]
    status: str = "RUNNING"
    message: str = "Job is currently running."
    log: bytearray = field(default_factory=bytearray)
    started: int = 0
    node_ip: str | None = "10.0.0.1"
    """Where the driver runs; None while it has no node."""


class FakeCluster:
    """Ray at `url`, an agent at `agent_url`; both want `token` unless it is None or the agent has its own."""

    def __init__(
        self,
        token: str | None = TOKEN,
        nodes: int = 2,
        gpus: float = 1.0,
        *,
        agent_token: str | None = None,
    ) -> None:
        self.token = token
        self.agent_token = agent_token or token
        self.jobs: dict[str, FakeJob] = {}
        self.packages: dict[str, bytes] = {}
        self.package_limit_bytes = 100 * 1024 * 1024
        self.disks: dict[int, Path] = {}
        """The checkpoint folder of each node; one that has none does not answer for it."""
        self.bad_bytes: dict[str, int] = {}
        """Path below a node's folder -> a byte of the file that the disk cannot read."""
        self.secrets: dict[str, dict[str, str]] = {}
        """Of jobs, by their submission ids."""
        self.requests: list[tuple[str, str]] = []
        self.cuts: list[int] = []
        """Bytes that each of the next log answers gives before its connection breaks."""
        self.on_request: Callable[[str, str], object] = lambda _method, _path: None
        self.on_submit: Callable[[str], object] = lambda _submission_id: None
        self.status: dict[str, Any] = agent_status()
        self.nodes = [node(f"10.0.0.{rank + 1}", gpus, is_head=rank == 0) for rank in range(nodes)]
        self.changed = threading.Condition()
        self._servers: dict[str, Server] = {}
        self._ports = {"ray": 0, "agent": 0}
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['ray']}"

    @property
    def agent_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['agent']}"

    def up(self) -> None:
        """Listen, on the ports of last time."""
        for kind in self._ports:
            server = Server(("127.0.0.1", self._ports[kind]), _HANDLERS[kind])
            server.cluster = self
            self._ports[kind] = server.server_address[1]
            self._servers[kind] = server
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def down(self) -> None:
        """Stop listening and cut what is open."""
        for server in self._servers.values():
            server.shutdown()
            server.cut_all()
            server.server_close()
        self._servers.clear()

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

    def details(self, submission_id: str) -> dict[str, Any]:
        """One job as `/api/jobs/` shows it."""
        job = self.jobs[submission_id]
        return {
            "type": "SUBMISSION",
            "submission_id": submission_id,
            "status": job.status,
            "message": job.message,
            "entrypoint": job.body["entrypoint"],
            "start_time": job.started * 1000,
            "end_time": None,
            "metadata": job.body.get("metadata"),
            "runtime_env": job.body.get("runtime_env"),
            "driver_node_id": NODE_ID + job.node_ip if job.node_ip else None,
            "driver_exit_code": None,
        }

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def node(ip: str, gpus: float, *, is_head: bool = False, state: str = "ALIVE") -> dict[str, Any]:
    """One row of `/api/v0/nodes`."""
    resources = {f"node:{ip}": 1.0, "CPU": 4.0, "memory": 1e9} | ({"GPU": gpus} if gpus else {})
    return {
        "node_id": NODE_ID + ip,
        "node_ip": ip,
        "is_head_node": is_head,
        "state": state,
        "resources_total": resources,
    }


class _Ray(Handler):
    routes = (
        ("GET", "/api/version", "version"),
        ("GET", "/api/v0/nodes", "node_list"),
        ("GET", "/api/jobs/", "job_list"),
        ("POST", "/api/jobs/", "submit"),
        ("GET", "/api/jobs/([^/]+)", "job"),
        ("DELETE", "/api/jobs/([^/]+)", "forget"),
        ("POST", "/api/jobs/([^/]+)/stop", "stop"),
        ("GET", "/api/packages/gcs/([^/]+)", "package"),
        ("PUT", "/api/packages/gcs/([^/]+)", "upload"),
        ("GET", "/api/v0/logs/file", "log_file"),
        ("GET", "/api/v0/logs/stream", "log_stream"),
    )

    def refuse_token(self, given: str | None) -> None:
        if given is None:
            self.text(401, "Unauthorized: Missing authentication token")
        else:
            self.text(403, "Forbidden: Invalid authentication token")

    def version(self) -> None:
        self.json({"version": "4", "ray_version": "2.60.0", "ray_commit": "b7f", "session_name": "session_x"})

    def node_list(self) -> None:
        rows = self.server.cluster.nodes
        self.json({"result": True, "msg": "", "data": {"result": {"total": len(rows), "result": rows}}})

    def job_list(self) -> None:
        cluster = self.server.cluster
        driver = {"type": "DRIVER", "submission_id": None, "job_id": "01000000", "status": "RUNNING"}
        self.json([*map(cluster.details, reversed(cluster.jobs)), driver])

    def submit(self, body: bytes) -> None:
        cluster, sent = self.server.cluster, json.loads(body)
        submission_id = sent["submission_id"]
        if submission_id in cluster.jobs:
            error = f"ValueError: Job with submission_id {submission_id} already exists."
            inner = f"RuntimeError: Request failed with status code 400: {traceback_of(error)}."
            self.text(500, traceback_of(inner))
            return
        cluster.jobs[submission_id] = FakeJob(sent, started=len(cluster.jobs) + 1)
        cluster.on_submit(submission_id)
        self.json({"job_id": submission_id, "submission_id": submission_id})

    def job(self, submission_id: str) -> None:
        if submission_id in self.server.cluster.jobs:
            self.json(self.server.cluster.details(submission_id))
        else:
            self.text(404, f"Job {submission_id} does not exist")

    def forget(self, submission_id: str) -> None:
        self.json({"deleted": self.server.cluster.jobs.pop(submission_id, None) is not None})

    def stop(self, submission_id: str, _body: bytes) -> None:
        cluster = self.server.cluster
        if submission_id not in cluster.jobs:
            self.text(404, f"Job {submission_id} does not exist")
            return
        running = cluster.jobs[submission_id].status == "RUNNING"
        if running:
            cluster.end(submission_id, "STOPPED", "Job was intentionally stopped.")
        self.json({"stopped": running})

    def package(self, name: str) -> None:
        if name in self.server.cluster.packages:
            self.send(200, b"", "application/octet-stream")
        else:
            self.text(404, f"Package gcs://{name} does not exist")

    def upload(self, name: str, body: bytes) -> None:
        cluster = self.server.cluster
        if len(body) > cluster.package_limit_bytes:
            self.text(413, f"Maximum request body size {cluster.package_limit_bytes} exceeded.")
            return
        cluster.packages[name] = body
        self.send(200, b"", "application/octet-stream")

    def log_file(self) -> None:
        self.chunks(follow=False)

    def log_stream(self) -> None:
        self.chunks(follow=True)

    def chunks(self, *, follow: bool) -> None:
        cluster = self.server.cluster
        name = self.query["filename"].removeprefix("job-driver-").removesuffix(".log")
        if name not in cluster.jobs or self.query["node_id"] != cluster.details(name)["driver_node_id"]:
            self.text(500, f"A file is not found at: /tmp/ray/logs/{self.query['filename']}")
            return
        left = cluster.cuts.pop(0) if cluster.cuts else None
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent, log = 0, cluster.jobs[name].log
        while follow or sent < len(log):
            with cluster.changed:
                piece = bytes(log[sent : sent + 5])
                if not piece:
                    cluster.changed.wait(0.05)
            piece = piece if left is None else piece[: left - sent]
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += len(piece)
            if left is not None and sent >= left:
                self.cut()
                return
        self.wfile.write(b"0\r\n\r\n")


_HANDLERS = {"ray": _Ray, "agent": Agent}


def traceback_of(error: str) -> str:
    """What Ray answers instead of a message."""
    return f'Traceback (most recent call last):\n  File "job_head.py", line 1, in submit_job\n{error}\n'


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    """Poll until `condition()`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
