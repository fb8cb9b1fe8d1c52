"""The metadata service of a cloud, as far as a node asks it, in the forms of the clouds' documentation."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "AQAEALZpZx7FMwuXAMUKlLGmTk1oBvWGYXzQ"


class Metadata:
    """What it says, which a test changes while it is asked.

    Args:
        cloud: "AWS", "GCP", "Azure"; any other word for a service that has other forms.

    Attributes:
        action: of AWS, as JSON; None for no notice.
        preempted, maintenance: of GCP.
        events: of Azure.
        token: that AWS takes.
        asked: method and path of each request.
        status: of every answer, in place of the right one.
        location: where such an answer sends its reader.
        clock: seconds since the epoch, as its answers have them.
    """

    def __init__(self, cloud: str) -> None:
        self.cloud = cloud
        self.action: dict[str, str] | None = None
        self.preempted, self.maintenance = "FALSE", "NONE"
        self.events: list[dict[str, Any]] = []
        self.token = TOKEN
        self.asked: list[str] = []
        self.status: int | None = None
        self.location = ""
        self.clock: Callable[[], float] = time.time

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, dict[str, str], str]:
        if self.status is not None:
            return self.status, {"Location": f"{self.location}{path}"}, ""
        if self.cloud == "AWS":
            return self._aws(method, path, headers)
        if self.cloud == "GCP":
            return self._gcp(path, headers)
        if self.cloud == "Azure":
            return self._azure(path, headers)
        return 200, {}, "<html>the page of a proxy for whatever is asked</html>"

    def _aws(self, method: str, path: str, headers: Any) -> tuple[int, dict[str, str], str]:
        if (method, path) == ("PUT", "/latest/api/token"):
            is_right = headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            return (200, {}, self.token) if is_right else (400, {}, "")
        if headers["X-aws-ec2-metadata-token"] != self.token:
            return 401, {}, ""
        if path == "/latest/meta-data/instance-id":
            return 200, {}, "i-1234567890abcdef0"
        if path == "/latest/meta-data/spot/instance-action" and self.action is not None:
            return 200, {}, json.dumps(self.action)
        return 404, {}, "<html>404 - Not Found</html>"

    def _gcp(self, path: str, headers: Any) -> tuple[int, dict[str, str], str]:
        if headers["Metadata-Flavor"] != "Google":
            return 403, {}, ""
        answers = {"preempted": self.preempted, "maintenance-event": self.maintenance}
        folder, _, name = path.rpartition("/")
        is_known = folder == "/computeMetadata/v1/instance" and name in answers
        return (200, {"Metadata-Flavor": "Google"}, answers[name]) if is_known else (404, {}, "")

    def _azure(self, path: str, headers: Any) -> tuple[int, dict[str, str], str]:
        if headers["Metadata"] != "true":
            return 400, {}, ""
        answers: dict[str, Any] = {
            "/metadata/instance/compute?api-version=2021-02-01": {"name": "gpu_1", "azEnvironment": "AzurePublicCloud"},
            "/metadata/scheduledevents?api-version=2020-07-01": {"DocumentIncarnation": 3, "Events": self.events},
        }
        return (200, {}, json.dumps(answers[path])) if path in answers else (404, {}, "")


@contextlib.contextmanager
def serving(metadata: Metadata, address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[str]:
    """Answer there; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            metadata.asked.append(f"{self.command} {self.path}")
            status, headers, text = metadata.answer(self.command, self.path, self.headers)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self) -> None:
            self.do_GET()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(metadata.clock(), usegmt=True)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(address, Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://{address[0]}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
