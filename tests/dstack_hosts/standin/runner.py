"""dstack-runner: the agent of a container, which runs its one job.

Source: dstack, runner/internal/runner/api/http.go, server.go, ws.go; cmd/runner/main.go.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from . import metrics, sshd
from .config import HostConfig
from .executor import Executor
from .http_api import TAKEN, ApiError, Request, Route, serve, upload
from .journal import Journal
from .websocket import Websocket

WAIT_SUBMIT, WAIT_RUN, SERVE_LOGS, WAIT_LOGS_FINISHED = (
    "wait_submit", "wait_run", "serve_logs", "wait_logs_finished",
)  # fmt: skip
_START_S = 300.0  # without a job for so long, it gives up
_LOGS_S = 300.0  # how long it waits at the end for somebody to fetch the last lines
_STREAM_POLL_S = 0.1


class Runner:
    """The states of one job and the HTTP API over them."""

    def __init__(self, options: argparse.Namespace, host: HostConfig) -> None:
        self._options = options
        self._host = host
        self._folder = Path(options.temp_dir)
        self._keys = Path("/dstack/ssh/conf/authorized_keys")
        self._lock = threading.RLock()
        self._submission: dict[str, Any] = {}
        self._executor: Executor | None = None
        self.state = WAIT_SUBMIT
        self.journal = Journal()
        self.started, self.finished = threading.Event(), threading.Event()
        self.pulled, self.streamed = threading.Event(), threading.Event()

    def routes(self) -> list[Route]:
        """All paths that the server and its clients call."""
        return [
            ("GET", "/api/healthcheck", lambda _: {"service": "dstack-runner", "version": self._host.version}),
            ("POST", "/api/submit", self.submit),
            ("POST", "/api/upload_archive", self.upload_archive),
            ("POST", "/api/upload_code", self.upload_code),
            ("POST", "/api/run", self.run),
            ("GET", "/api/metrics", lambda _: metrics.present()),
            ("GET", "/api/pull", self.pull),
            ("POST", "/api/stop", self.stop),
            ("GET", "/logs_ws", self.stream),
        ]

    def submit(self, request: Request) -> None:
        """Take the job; again, as long as it was not started."""
        with self._lock:
            self._need(WAIT_SUBMIT, WAIT_RUN)
            self._submission = request.json()
            self.state = WAIT_RUN

    def upload_archive(self, request: Request) -> None:
        """Take one entry of `files:`."""
        with self._lock:
            self._need(WAIT_RUN)
            name, content = upload(request)
            path = self._folder / "file_archives" / os.path.basename(name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)

    def upload_code(self, request: Request) -> None:
        """Take the repo's archive, which is not unpacked here."""
        with self._lock:
            self._need(WAIT_RUN)
            (self._folder / "code.blob").write_bytes(request.body)

    def run(self, _request: Request) -> dict[str, str] | None:
        """Start the job; user and directory of it, nothing for an unknown user."""
        with self._lock:
            self._need(WAIT_RUN)
            self.state = SERVE_LOGS
        self.started.set()
        try:
            self._executor = Executor(
                self._submission, self._folder, self.journal,
                ssh_port=self._options.ssh_port, add_key=self.add_key,
            )  # fmt: skip
        except LookupError as error:
            self.journal.state("failed", "executor_error", f"Failed to set job user (job user from job spec: {error})")
            self._end()
            return None
        threading.Thread(target=self._follow, args=(self._executor,), daemon=True).start()
        return {"working_dir": self._executor.working_dir, "username": self._executor.user.name}

    def pull(self, request: Request) -> dict[str, Any]:
        """What is new since `timestamp`."""
        with self._lock:
            done = self.state == WAIT_LOGS_FINISHED
            if done:
                self.pulled.set()
            return {**self.journal.after(int(request.query.get("timestamp") or 0)), "has_more": not done}

    def stop(self, _request: Request | None) -> None:
        """Ask the job to end."""
        with self._lock:
            if self.state == SERVE_LOGS and self._executor:
                self._executor.stop()
            if self.state != SERVE_LOGS:
                self.state = WAIT_LOGS_FINISHED

    def stream(self, request: Request) -> object:
        """The job's output as it came from the terminal, until the job has ended."""
        socket = Websocket(request.handler)
        position = self.journal.raw_position(_milliseconds(request.query.get("start_time", "")))
        try:
            while not socket.gone.is_set():
                last = self.finished.is_set()
                for data in self.journal.raw(position):
                    socket.send(data)
                    position += 1
                if last:
                    self.streamed.set()
                    break
                time.sleep(_STREAM_POLL_S)
        except OSError:
            return TAKEN  # the client has gone
        socket.close()
        return TAKEN

    def add_key(self, key: str) -> None:
        """Let the owner of a public key into this container."""
        with self._keys.open("a") as file:
            file.write(key.strip() + "\n")

    def serve(self) -> int:
        """Serve until the job has ended and its logs were fetched; the exit status."""
        self._folder.mkdir(parents=True, exist_ok=True)
        server = self._start_sshd()
        serve(self._options.http_port, self.routes(), self._options.http_address)
        signal.signal(signal.SIGTERM, lambda *_: self.stop(None))
        if not self.started.wait(_START_S):
            print("job did not start in time", flush=True)
            return 1
        self.finished.wait()
        end = time.monotonic() + _LOGS_S
        for event in (self.pulled, self.streamed):
            event.wait(max(0.0, end - time.monotonic()))
        server.terminate()
        return 0

    def _need(self, *states: str) -> None:
        if self.state not in states:
            raise ApiError(409, f"the runner is in state {self.state}")

    def _follow(self, executor: Executor) -> None:
        executor.run()
        self._end()

    def _end(self) -> None:
        with self._lock:
            self.state = WAIT_LOGS_FINISHED
        self.finished.set()

    def _start_sshd(self) -> Any:
        folder = self._keys.parent
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(mode=0o755, parents=True)
        for key in self._options.ssh_authorized_key:
            self.add_key(key)
        sshd.make_host_keys(folder, ("ecdsa", "ed25519"))
        lines = [
            f"Port {self._options.ssh_port}", "UsePAM yes", "ClientAliveInterval 30", "ClientAliveCountMax 4",
            f"AuthorizedKeysFile {self._keys} .ssh/authorized_keys", "AcceptEnv LANG LC_* COLORTERM NO_COLOR",
        ]  # fmt: skip
        return sshd.start(folder, lines, folder.parent / "sshd.log")


def _milliseconds(start_time: str) -> int:
    """RFC 3339 as milliseconds since 1970, 0 for none. A plus sign in a query reads as a space."""
    if not start_time:
        return 0
    text = start_time.replace(" ", "+").replace("Z", "+00:00")
    return int(dt.datetime.fromisoformat(text).timestamp()) * 1000


def main(words: list[str]) -> int:
    """`dstack-runner --log-level 5 start ...`."""
    parser = argparse.ArgumentParser(prog="dstack-runner")
    parser.add_argument("--log-level")
    start = parser.add_subparsers(required=True).add_parser("start")
    start.add_argument("--temp-dir", default="/tmp/runner")
    start.add_argument("--http-address", default="")  # all interfaces
    for unused in ("--ssh-log-level", "--home-dir"):
        start.add_argument(unused)
    start.add_argument("--http-port", type=int, default=10999)
    start.add_argument("--ssh-port", type=int, default=10022)
    start.add_argument("--ssh-authorized-key", action="append", default=[])
    status = Runner(parser.parse_args(words), HostConfig.load()).serve()
    sys.stdout.flush()
    os._exit(status)  # threads that still serve a websocket must not keep the container
