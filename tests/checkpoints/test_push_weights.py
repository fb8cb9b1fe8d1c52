"""Weights that a Hub wants as LFS objects: the real client sends them to a stand-in, and not twice."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.io

WEIGHTS = {f"model-0000{number}-of-00003.safetensors": bytes([number]) * 20_000 for number in (1, 2, 3)}
PUSH = """
import sys
from pathlib import Path
from cloudrl.checkpoints.push import HuggingFaceHub
from cloudrl.errors import CloudrlError
try:
    HuggingFaceHub(sys.argv[1], "hf_x").upload("me/model", Path(sys.argv[2]), "step 1")
except CloudrlError as error:
    sys.exit(error.message)
"""


class Hub(ThreadingHTTPServer):
    """Keeps objects by their SHA-256, refuses those in `refuses`, and remembers what commits name.

    Source: git-lfs, docs/api/batch.md; huggingface_hub 1.33, lfs.py and _commit_api.py.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.objects: dict[str, bytes] = {}
        self.refuses: set[str] = set()
        self.sent: list[str] = []
        self.committed: dict[str, str] = {}


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer([] if "/tree/" in self.path else {"id": "me/model", "private": True})

    def do_PUT(self) -> None:
        oid, content = self.path.rpartition("/")[2], self._content()
        self.server.sent.append(oid)
        if oid in self.server.refuses:
            self._answer({"error": "the storage refuses"}, 403)
            return
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.objects[oid] = content
        self._answer({})

    def do_POST(self) -> None:
        content = self._content()
        if self.path.endswith("/preupload/main"):
            asked = json.loads(content)["files"]
            modes = {True: "lfs", False: "regular"}
            self._answer({
                "files": [
                    {"path": each["path"], "uploadMode": modes[each["path"] in WEIGHTS], "shouldIgnore": False}
                    for each in asked
                ]
            })  # fmt: skip
        elif self.path.endswith("/info/lfs/objects/batch"):
            self._answer(
                {"transfer": "basic", "objects": list(map(self._wanted, json.loads(content)["objects"]))}
            )
        elif "/commit/" in self.path:
            lines = [json.loads(line) for line in content.splitlines()]
            self.server.committed |= {
                line["value"]["path"]: line["value"].get("oid", "")
                for line in lines
                if line["key"] != "header"
            }
            self._answer({"success": True, "commitUrl": f"{self.server.url}/me/model/commit/1", "commitOid": "1",
                          "hookOutput": ""})  # fmt: skip
        else:  # /api/validate-yaml
            self._answer({"errors": [], "warnings": []})

    def _wanted(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What is there already has no action."""
        upload = {"upload": {"href": f"{self.server.url}/store/{asked['oid']}"}}
        return {**asked, **({} if asked["oid"] in self.server.objects else {"actions": upload})}

    def _content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    yield hub
    hub.shutdown()
    hub.server_close()


def pushed(hub: Hub, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a Python of its own, without Xet, whose storage has no open protocol; the Hub takes LFS as well."""
    return subprocess.run(
        [sys.executable, "-c", PUSH, hub.url, str(folder)],
        env={**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_what_has_arrived_is_not_sent_again(hub: Hub, tmp_path: Path) -> None:
    for name, content in {**WEIGHTS, "config.json": b"{}"}.items():
        (tmp_path / name).write_bytes(content)
    oids = {name: hashlib.sha256(content).hexdigest() for name, content in WEIGHTS.items()}
    late = oids["model-00002-of-00003.safetensors"]

    hub.refuses = {late}
    failed = pushed(hub, tmp_path)
    assert (failed.returncode, hub.committed) == (1, {}), failed.stderr
    assert "the Hub refuses me/model" in failed.stderr

    hub.refuses, arrived = set(), set(hub.objects)
    assert arrived
    hub.sent.clear()
    done = pushed(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert late in hub.sent
    assert not arrived & set(hub.sent)
    assert hub.committed == {**oids, "config.json": ""}
    assert {hub.objects[oid] for oid in oids.values()} == set(WEIGHTS.values())
