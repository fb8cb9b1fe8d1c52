"""A stand-in for `ray start ... --block`, as far as the node agent can see it. Standard library only, Python 3.9.

One stateful fake: the folder in $FAKE_RAY steers it and remembers what it was asked.

    starts-RANK      each `ray start` of a rank, one line of JSON with its options
    hold-RANK        while this file is there, that rank's Ray does not come up
    fail-RANK        how many of the next starts of that rank exit at once
    fail-late        how many of the next starts of the head exit once their dashboard answers
    leave-RANK       while this file is there, such a start leaves a process that has --port, as Ray's control store
    alone            while this file is there, the dashboard counts no node but the head
    actors           what it lists as actors that live, JSON; none while it is not there
    jobs             what the dashboard lists as jobs, JSON; none while it is not there. It takes jobs, which run until
                     they are stopped
    refuse           while this file is there, it refuses jobs with what the file says
    nodes, tasks, workers      what its state API says of these, likewise

Like Ray's, its head keeps a control store at --port and a dashboard at --dashboard-port that wants the token;
a worker belongs to the cluster as long as its connection to the store lives, and ends when the store goes. Each
node has a child in its own session, as Ray has its raylet, which a signal to one group does not end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION = "2.60.0"
CONTROL = Path(os.environ.get("FAKE_RAY", "/tmp/fake-ray"))
ALIVE_ACTORS = "/api/v0/actors?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE&detail=true&limit=1000"
STARTED = "Ray runtime started."
RAYLETS: list[subprocess.Popen[bytes]] = []
"""Held here: one ends with us, as Ray's does: when its standard input, which we hold, is closed."""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Store:
    """The control store: who belongs to the cluster."""

    def __init__(self, ip: str, port: int) -> None:
        self.members, self.lock = 1, threading.Lock()
        self.listener = socket.create_server((ip, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._member, args=(connection,), daemon=True).start()

    def _member(self, connection: socket.socket) -> None:
        with connection:
            if connection.recv(100) == b"join\n":  # a mere probe says nothing
                self._count(1)
                connection.sendall(b"welcome\n")
                connection.recv(1)
                self._count(-1)

    def _count(self, change: int) -> None:
        with self.lock:  # hundreds come at once
            self.members += change


class Dashboard(BaseHTTPRequestHandler):
    store: Store
    session: str
    token: str

    def do_GET(self) -> None:
        head = {"nodeId": "0head", "state": "ALIVE", "isHeadNode": True}
        others = [{"nodeId": f"{index}node", "state": "ALIVE"} for index in range(1, self.store.members)]
        if (CONTROL / "alone").exists():
            others = []
        nodes = [{"raylet": node} for node in (head, *others, {"nodeId": "9gone", "state": "DEAD"})]
        answers: dict[str, object] = {
            "/api/version": {"ray_version": VERSION, "session_name": self.session},
            "/nodes?view=summary": {"data": {"summary": nodes}},
            "/api/v0/logs?node_id=0head&glob=raylet.out": {"result": True},
            "/api/jobs/": _listed("jobs"),
            ALIVE_ACTORS: _state("actors"),
        }
        for job in answers["/api/jobs/"]:  # type: ignore[attr-defined]
            answers[f"/api/jobs/{job.get('submission_id')}"] = job
        kind = self.path.partition("?")[0].rpartition("/")[2]
        if kind in ("nodes", "tasks", "workers", "actors"):
            answers.setdefault(self.path, _state(kind))
        status = 404 if self.path not in answers else 200
        if self.headers["Authorization"] != f"Bearer {self.token}":
            status = 401
        body = json.dumps(answers[self.path] if status == 200 else status).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        refusal = CONTROL / "refuse"
        jobs = {job["submission_id"]: job for job in _listed("jobs")}  # type: ignore[attr-defined]
        status, text = 200, "{}"
        if self.path.endswith("/stop"):
            jobs[self.path.split("/")[3]]["status"] = "STOPPED"
        elif refusal.exists():
            status, text = 500, refusal.read_text()
        else:
            jobs[body["submission_id"]] = {**body, "status": "RUNNING"}
        written = CONTROL / "jobs.part"
        written.write_text(json.dumps(list(jobs.values())))
        written.replace(CONTROL / "jobs")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


def _state(kind: str) -> dict[str, object]:
    return {"result": True, "data": {"result": {"result": _listed(kind)}}}


def _listed(name: str) -> object:
    file = CONTROL / name
    return json.loads(file.read_text()) if file.exists() else []


def main(argv: list[str]) -> int:
    options = dict(word[2:].partition("=")[::2] for word in argv[1:])
    rank, control = os.environ.get("CLOUDRL_NODE_RANK") or os.environ["DSTACK_NODE_RANK"], CONTROL
    control.mkdir(parents=True, exist_ok=True)
    with (control / f"starts-{rank}").open("a") as file:
        file.write(json.dumps(options) + "\n")
    if _fails_now(control / f"fail-{rank}"):
        say("ray start: something is not right yet")
        if (control / f"leave-{rank}").exists():
            _leave_a_store(options)
        return 1
    RAYLETS.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True))
    while (control / f"hold-{rank}").exists():
        time.sleep(0.1)
    return _head(options) if "head" in options else _worker(options)


def _leave_a_store(options: dict[str, str]) -> None:
    code = "import socket, sys, time; kept = socket.create_server((sys.argv[1], int(sys.argv[2]))); print()"
    code += "; time.sleep(600)"
    words = [sys.executable, "-u", "-c", code, options["node-ip-address"], options["port"]]
    left = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    assert left.stdout is not None
    left.stdout.readline()


def _fails_now(counter: Path) -> bool:
    left = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(max(left - 1, 0)))
    return left > 0


def _head(options: dict[str, str]) -> int:
    session = f"session_{os.getpid()}"
    logs = Path(options.get("temp-dir", "/tmp/ray")) / session / "logs"
    logs.mkdir(parents=True)
    (logs / "job-driver-job1.log").write_text("step 1\nstep 2\n")
    Dashboard.store = Store(options["node-ip-address"], int(options["port"]))
    Dashboard.session = session
    Dashboard.token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    server = ThreadingHTTPServer((options["dashboard-host"], int(options["dashboard-port"])), Dashboard)
    if _fails_now(CONTROL / "fail-late"):
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        time.sleep(1.0)
        say("The current node timed out during startup.")
        return 1
    say(STARTED)
    server.serve_forever(0.1)
    return 0


def _worker(options: dict[str, str]) -> int:
    ip, port = options["address"].split(":")
    with socket.create_connection((ip, int(port)), timeout=5) as store:
        store.sendall(b"join\n")
        if store.recv(100) == b"welcome\n":
            say(STARTED)
            store.settimeout(None)
            store.recv(1)
    say("the control store is gone")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
