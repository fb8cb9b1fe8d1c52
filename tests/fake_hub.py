"""A stand-in for the Hugging Face Hub, for its real client: repositories, commits, and weights as LFS objects.

Source: git-lfs, docs/api/batch.md; huggingface_hub 1.33, lfs.py and _commit_api.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from patience import SLOWER


class FakeHub(ThreadingHTTPServer):
    """Keeps objects by their SHA-256, and remembers what commits name; a context manager.

    Repositories in `repos` are there, private or not, and have `files`; others can be made unless `is_read_only`.
    `role` is that of every token.
    Objects in `refuses` are refused, once another one has arrived. `on_commit` is called before a commit, which fails
    if that raises ConnectionError, and `on_object` before an object is read.

    Data sets in `data_sets` can be downloaded: repository -> file -> content. `sends` is called with each file that is
    asked for and what of it is left to send, and returns what is sent of that.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repos = {"me/closed": True, "me/open": False}
        self.files: list[str] = []
        self.lfs: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.refuses: set[str] = set()
        self.has_stored = threading.Event()
        self.sent: list[str] = []
        self.committed: list[dict[str, Any]] = []
        self.is_read_only = False
        self.role = "write"
        self.on_commit: Callable[[], object] = lambda: None
        self.on_object: Callable[[], object] = lambda: None
        self.data_sets: dict[str, dict[str, bytes]] = {}
        self.sends: Callable[[str, bytes], bytes] = lambda _name, content: content

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def paths(self, *keys: str) -> dict[str, str]:
        """Path -> object, of what was committed as `file`, `lfsFile` or `deletedFile`."""
        values = [line["value"] for line in self.committed if line["key"] in keys]
        return {value["path"]: value.get("oid", "") for value in values}

    def contents(self) -> dict[str, bytes]:
        """Path -> bytes, of what was committed as `file`."""
        values = [line["value"] for line in self.committed if line["key"] == "file"]
        return {value["path"]: base64.b64decode(value["content"]) for value in values}


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        repo = self.path.partition("?")[0].removeprefix("/api/models/")
        data_set = repo.removeprefix("/api/datasets/").removesuffix("/revision/main")
        if data_set in self.server.data_sets:
            self._answer(
                {
                    "id": data_set,
                    "sha": "1" * 40,
                    "siblings": list(map(_sibling, self.server.data_sets[data_set].items())),
                }
            )
        elif (wanted := self.path.removeprefix("/datasets/").split(f"/resolve/{'1' * 40}/"))[
            0
        ] in self.server.data_sets:
            self._send_file(*wanted)
        elif self.path == "/api/whoami-v2":
            self._answer({"name": "me", "auth": {"type": "access_token", "accessToken": {"role": self.server.role}}})
        elif "/tree/" in self.path:
            self._answer([{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in self.server.files])
        elif repo in self.server.repos:
            self._answer({"id": repo, "private": self.server.repos[repo]})
        else:
            self._answer({"error": "not found"}, 404, "RepoNotFound")

    do_HEAD = do_GET  # noqa: N815

    def _send_file(self, repo: str, name: str) -> None:
        content = self.server.data_sets[repo][name]
        digest = hashlib.sha256(content).hexdigest()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if "Range" in self.headers else 200)
        headers = {
            "ETag": f'"{digest}"', "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": len(content),
            "X-Repo-Commit": "1" * 40, "Content-Length": len(content) - start, "Accept-Ranges": "bytes",
            "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}",
        }  # fmt: skip
        for header, value in headers.items():
            self.send_header(header, str(value))
        self.end_headers()
        if self.command == "GET":
            self.close_connection = True
            self.wfile.write(self.server.sends(name, content[start:]))

    def do_PUT(self) -> None:
        self.server.on_object()
        oid, content = self.path.rpartition("/")[2], self._content()
        self.server.sent.append(oid)
        if oid in self.server.refuses:
            self.server.has_stored.wait(10 * SLOWER)
            self._answer({"error": "the storage refuses"}, 403)
            return
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.objects[oid] = content
        self.server.has_stored.set()
        self._answer({})

    def do_POST(self) -> None:
        content = self._content()
        if self.path.endswith("/preupload/main"):
            names = [each["path"] for each in json.loads(content)["files"]]
            modes = {name: "lfs" if name in self.server.lfs else "regular" for name in names}
            self._answer(
                {"files": [{"path": name, "uploadMode": modes[name], "shouldIgnore": False} for name in names]}
            )
        elif self.path.endswith("/info/lfs/objects/batch"):
            wanted = list(map(self._wanted, json.loads(content)["objects"]))
            self._answer({"transfer": "basic", "objects": wanted})
        elif "/commit/" in self.path:
            try:
                self.server.on_commit()
            except ConnectionError as error:
                self._answer({"error": str(error)}, 507)  # which the client does not try again
                return
            self.server.committed += [json.loads(line) for line in content.splitlines()]
            commit = {"commitUrl": "https://huggingface.co/me/open/commit/1", "commitOid": "1", "hookOutput": ""}
            self._answer({"success": True, **commit})
        elif self.path == "/api/repos/create" and not self.server.is_read_only:
            asked = json.loads(content)
            repo = f"{asked['organization']}/{asked['name']}"
            self.server.repos.setdefault(repo, asked["visibility"] == "private")
            self._answer({"url": f"{self.server.url}/{repo}"})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        else:
            self._answer({"error": "You may not write here"}, 403)

    def _wanted(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What is there already has no action."""
        upload = {"upload": {"href": f"{self.server.url}/store/{asked['oid']}"}}
        return {**asked, **({} if asked["oid"] in self.server.objects else {"actions": upload})}

    def _content(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, value: Any, status: int = 200, code: str = "") -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)


def _sibling(file: tuple[str, bytes]) -> dict[str, Any]:
    name, content = file
    lfs = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
    return {"rfilename": name, "size": len(content), "blobId": "0" * 40, "lfs": lfs}
