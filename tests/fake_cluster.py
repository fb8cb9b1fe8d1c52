"""A stand-in for a cluster: Ray's job server and our agent on real sockets, which answer as Ray 2.60 does.

It can refuse tokens, cut its answers short, go away and come back on the same port.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import threading
import time
import zlib
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from cloudrl.node.inventory import scan

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
        self._servers: dict[str, _Server] = {}
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
            server = _Server(("127.0.0.1", self._ports[kind]), _HANDLERS[kind])
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


def agent_status() -> dict[str, Any]:
    """What a ready cluster's agent says."""
    return {
        "cluster": {
            "name": "lab",
            "id": "id-1",
            "provider": "local",
            "nodes": 2,
            "gpus_per_node": 1,
            "cpus_per_node": 4,
            "device": "cpu",
        },
        "phase": "ready",
        "detail": "",
        "started_at": 1.0,
        "ready_at": 2.0,
        "failure": None,
        "ray": {"version": "2.60.0", "dashboard_port": 8265, "session_name": "session_x"},
        "verl_version": "0.9.1",
        "rollouts": ["vllm"],
        "checkpoint_dir": "/vol/checkpoints",
        "data": {"addition": {"train": "/vol/data/train.parquet", "test": "/vol/data/test.parquet"}},
        "models": {"tiny-qwen2": "/vol/models/tiny-qwen2"},
        "nodes": [{"rank": 0, "ip": "10.0.0.1"}, {"rank": 1, "ip": "10.0.0.2"}],
    }


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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    cluster: FakeCluster

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that the other side drops are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    routes: tuple[tuple[str, str, str], ...]

    def log_message(self, *_: Any) -> None: ...

    def answer(self, method: str) -> None:
        cluster = self.server.cluster
        url = urlsplit(self.path)
        self.query = {key: value[0] for key, value in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        cluster.requests.append((method, unquote(url.path)))
        cluster.on_request(method, unquote(url.path))
        given, wanted = self.headers.get("Authorization"), self.token(cluster)
        if wanted is not None and given != f"Bearer {wanted}":
            self.refuse_token(given)
            return
        for verb, pattern, name in self.routes:
            match = re.fullmatch(pattern, url.path)
            if verb == method and match:
                getattr(self, name)(
                    *map(unquote, match.groups()), *([body] if method in ("POST", "PUT") else [])
                )
                return
        self.text(404, "404: Not Found")

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_PUT(self) -> None:
        self.answer("PUT")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def token(self, cluster: FakeCluster) -> str | None:
        return cluster.token

    def refuse_token(self, given: str | None) -> None:
        raise NotImplementedError

    def json(self, value: Any, status: int = 200) -> None:
        self.send(status, json.dumps(value).encode(), "application/json")

    def text(self, status: int, text: str) -> None:
        self.send(status, text.encode(), "text/plain; charset=utf-8")

    def send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class _Ray(_Handler):
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


class _Agent(_Handler):
    routes = (
        ("GET", "/v1/status", "agent_status"),
        ("GET", "/v1/jobs/([^/]+)/log", "job_log"),
        ("PUT", "/v1/jobs/([^/]+)/secrets", "take_secrets"),
        ("GET", "/v1/nodes/([0-9]+)/inventory", "inventory"),
        ("GET", "/v1/nodes/([0-9]+)/checkpoints/(.+)", "checkpoint_file"),
        ("POST", "/v1/nodes/([0-9]+)/checkpoints/(.+)", "checkpoint_ranges"),
        ("DELETE", "/v1/nodes/([0-9]+)/checkpoints/(.+)", "remove_checkpoint"),
    )

    def token(self, cluster: FakeCluster) -> str | None:
        return cluster.agent_token

    def refuse_token(self, given: str | None) -> None:
        self.json({"error": "wrong or missing token"}, 401)

    def agent_status(self) -> None:
        self.json(self.server.cluster.status)

    def take_secrets(self, submission_id: str, body: bytes) -> None:
        self.server.cluster.secrets[submission_id] = json.loads(body)
        self.json({"name": f"secrets/{submission_id}/0"})

    def disk(self, rank: str) -> Path | None:
        disk = self.server.cluster.disks.get(int(rank))
        if disk is None:
            self.json({"error": f"rank {rank} (10.0.0.{int(rank) + 1}) does not answer: timed out"}, 504)
        return disk

    def inventory(self, rank: str) -> None:
        disk = self.disk(rank)
        if disk is not None:
            place = {
                "room": "checkpoints",
                "folder": str(disk),
                "identity": f"boot:{rank}:1",
                "words": [],
                "word": "",
            }
            self.json({"rank": int(rank), "places": [{**place, "runs": scan(disk)}]})

    def checkpoint_file(self, rank: str, path: str) -> None:
        """Ranges and sums; values are sent as they are, as by an agent that cannot cast."""
        disk = self.disk(rank)
        if disk is None:
            return
        whole = (disk / path).read_bytes()
        first, last = map(
            int, self.headers.get("Range", f"bytes=0-{len(whole) - 1}").removeprefix("bytes=").split("-")
        )
        piece = whole[first : last + 1]
        if "crc32" in self.query:
            self.json({"size_bytes": len(piece), "crc32": zlib.crc32(piece, int(self.query["crc32"]))})
        else:
            self.send(206, piece, "application/octet-stream")

    def checkpoint_ranges(self, rank: str, path: str, body: bytes) -> None:
        disk = self.disk(rank)
        if disk is not None:
            whole = (disk / path).read_bytes()
            pieces = [whole[offset : offset + length] for offset, length in json.loads(body)["ranges"]]
            self.send(200, b"".join(pieces), "application/octet-stream")

    def remove_checkpoint(self, rank: str, path: str) -> None:
        disk = self.disk(rank)
        if disk is not None:
            shutil.rmtree(disk / path)
            self.json({"removed": path})

    def job_log(self, submission_id: str) -> None:
        cluster = self.server.cluster
        if submission_id not in cluster.jobs or cluster.jobs[submission_id].node_ip == "10.0.0.2":
            self.json({"error": "no such log"}, 404)
            return
        log, offset = bytes(cluster.jobs[submission_id].log), int(self.query.get("offset", 0))
        piece = log[offset : offset + 7]
        if cluster.cuts and len(piece) > cluster.cuts[0]:
            self.send_response(200)
            self.send_header("Content-Length", str(len(piece)))
            self.send_header("X-Cloudrl-Size", str(len(log)))
            self.end_headers()
            self.wfile.write(piece[: cluster.cuts.pop(0)])
            self.cut()
            return
        self.send(200, piece, "application/octet-stream", {"X-Cloudrl-Size": str(len(log))})


_HANDLERS = {"ray": _Ray, "agent": _Agent}


def traceback_of(error: str) -> str:
    """What Ray answers instead of a message."""
    return f'Traceback (most recent call last):\n  File "job_head.py", line 1, in submit_job\n{error}\n'


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    """Poll until `condition()`; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
