"""SerpAPI as far as the engine uses it (serpapi.com: search-api, account-api, api-status-and-error-codes)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

KEY = "s3cret"
ACCOUNT = {"account_id": "1", "total_searches_left": 4900, "account_rate_limit_per_hour": 1000}


def page(query: str, rank: int) -> dict[str, Any]:
    return {
        "position": rank, "title": f"{query} {rank}", "link": f"https://example.org/{rank}", "snippet": f"text {rank}",
    }  # fmt: skip


class FakeSerpApi(ThreadingHTTPServer):
    """Finds ten pages for each query, or what `says` has for it: a status and a body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.says: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []

    def answer(self, path: str, asked: dict[str, str]) -> tuple[int, Any]:
        if asked.get("api_key") != KEY:
            return 401, {"error": "Invalid API key. Your API key should be here: https://serpapi.com/manage-api-key"}
        if path == "/account.json":
            return 200, ACCOUNT
        assert (path, asked["engine"]) == ("/search.json", "google")
        query = asked["q"]
        self.asked.append(query)
        return self.says.get(query, (200, {"organic_results": [page(query, rank) for rank in range(1, 11)]}))


class _Handler(BaseHTTPRequestHandler):
    server: FakeSerpApi

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        status, said = self.server.answer(parts.path, dict(parse_qsl(parts.query)))
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def fake_serpapi() -> Iterator[FakeSerpApi]:
    """One that runs within the block."""
    with FakeSerpApi() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
