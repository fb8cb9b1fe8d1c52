"""A stand-in for the server of Weights & Biases: the few calls that its client makes for a run of numbers.

Sources: wandb 0.31.0, core/internal/api/gql (queries by name), core/internal/filestream (offsets of lines).
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HISTORY = "wandb-history.jsonl"


@dataclass
class Project:
    """What the server has been told.

    Attributes:
        runs: Id of a run -> its rows, by the place that the client gave them.
        keys: API keys that were shown, as Basic passwords in base64.
    """

    runs: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def curve(self, run: str, metric: str) -> list[tuple[int, Any]]:
        """Step and value of each row that has the metric, in the order of the rows."""
        rows = [row for _, row in sorted(self.runs[run].items())]
        return [(row["_step"], row[metric]) for row in rows if metric in row]

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """What GraphQL answers."""
        name, entity = variables.get("name"), {"id": "e", "name": "me"}
        project = {"id": "p", "name": variables.get("project"), "entity": entity}
        if "query Viewer" in query:
            return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        if "query RunResumeStatus" in query:
            return {"model": {**project, "bucket": self._saved(str(name)) if name in self.runs else None}}
        if "mutation UpsertBucket" in query:
            self.runs.setdefault(str(name), {})
            return {"upsertBucket": {"bucket": {**self._saved(str(name)), "project": project}, "inserted": True}}
        if "mutation CreateRunFiles" in query:
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}
        return {"serverInfo": {"features": []}}

    def _saved(self, run: str) -> dict[str, Any]:
        rows = [row for _, row in sorted(self.runs[run].items())]
        tail = json.dumps([json.dumps(rows[-1])] if rows else [])
        return {
            "id": "b", "name": run, "displayName": run, "summaryMetrics": "{}", "config": "{}", "wandbConfig": "{}",
            "historyLineCount": len(rows), "logLineCount": 0, "eventsLineCount": 0, "historyTail": tail,
            "eventsTail": "[]", "tags": [],
        }  # fmt: skip

    def stream(self, run: str, body: dict[str, Any]) -> None:
        """Keep the rows that a client has sent."""
        sent = (body.get("files") or {}).get(_HISTORY, {"offset": 0, "content": []})
        for at, line in enumerate(sent["content"]):
            self.runs[run][sent["offset"] + at] = json.loads(line)


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, Project]]:
    """The URL of a server on loopback, and the requests that it gets."""
    project = Project()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            project.keys.add(str(self.headers.get("Authorization", "")).removeprefix("Basic "))
            said: dict[str, Any] = {}
            if stream := re.search(r"/([^/]+)/file_stream$", self.path):
                project.stream(stream[1], json.loads(body))
            elif self.path == "/graphql":
                asked = json.loads(body)
                said = {"data": project.answer(asked["query"], asked.get("variables") or {})}
            answer = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", project
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
