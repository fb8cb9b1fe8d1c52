"""Mirrors in Google's storage: the child with pyarrow, on a folder and on a stand-in for GCS."""

import io
import json
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from patience import SLOWER

from cloudrl.child_process import Child
from cloudrl.errors import InputError
from cloudrl.node.mirror_arrow import ArrowStore
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.node.mirror_stores import open_store
from cloudrl.protocol.mirrors import MirrorUrl, parse_mirror

MIB = 1 << 20
ON_A_FOLDER = """
import socket, sys
from pathlib import Path
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from cloudrl.node.arrow_worker import Files, serve

class Folder(Files):
    def write(self, key, source, count):
        Path(sys.argv[1], self.path(key)).parent.mkdir(parents=True, exist_ok=True)
        if "forbidden" in key:
            source.read(1)
            raise OSError("you may not write here: 'https://storage/a?se=2030&sig=SECRET%3D&sp=rw' (403), why?")
        super().write(key, source, count)

    def read(self, key, offset, count):
        if key == "gone":
            raise FileNotFoundError('404: "https://storage/gone?sig=SECRET" is absent, GET /gone?sig=SECRET')
        return super().read(key, offset, count)

connection = socket.socket(fileno=int(sys.argv[2]))
connection.sendall(b'{"answer": null}\\n')
serve(Folder(SubTreeFileSystem(sys.argv[1], LocalFileSystem()), "bucket/runs"), connection)
"""


class Started:
    """A store on a folder, and the children that it has started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.children = folder, list[Child]()
        self.log = folder / "mirror.log"
        self.store = ArrowStore(self._start)

    def _start(self, descriptor: int) -> Child:
        command = [sys.executable, "-c", ON_A_FOLDER, str(self.folder), str(descriptor)]
        env = {"PYTHONPATH": ":".join(filter(None, sys.path))}
        self.children.append(Child(command, log=self.log, env=env, pass_fds=(descriptor,), bound=False))
        return self.children[-1]

    def on_disk(self) -> dict[str, bytes]:
        root = self.folder / "bucket" / "runs"
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    made = Started(tmp_path_factory.mktemp("storage"))
    yield made
    made.store.close()
    assert all(child.poll() is not None for child in made.children)


def test_small_files_come_and_go(started: Started) -> None:
    store = started.store
    assert store.get("small/a.json", 100) is None
    assert store.names("small/") == {}

    store.put("small/a.json", b"one")
    store.put("small/a.json", b"another")
    store.put("small/below/b.json", b"b")

    assert store.get("small/a.json", 100) == b"another"
    assert store.names("small/") == {"small/a.json": 7}
    with pytest.raises(OSError, match="larger than 3 bytes"):
        store.get("small/a.json", 3)
    store.remove(["small/a.json", "small/absent.json"])
    assert store.get("small/a.json", 100) is None
    assert not any(name.startswith("small/a") for name in started.on_disk())


def test_a_large_file_is_paced_compared_and_read_from_any_place(started: Started) -> None:
    content, paced = bytes(range(256)) * (17 * MIB // 256) + b"end", []

    started.store.upload("run/large.gz", io.BytesIO(content), len(content), zlib.crc32(content), paced.append)

    assert started.on_disk()["run/large.gz"] == content  # and nothing was compressed
    assert sum(paced) == len(content)
    with started.store.open("run/large.gz") as file:
        assert file.seek(9 * MIB) == 9 * MIB
        assert file.read() == content[9 * MIB :]
    with pytest.raises(FileNotFoundError):
        started.store.open("run/absent")


def test_what_is_there_and_equal_is_not_sent_again(started: Started) -> None:
    content, sent = b"x" * 1000, []
    started.store.upload("run/equal", io.BytesIO(content), 1000, zlib.crc32(content), sent.append)
    sent.clear()

    started.store.upload("run/equal", io.BytesIO(content), 1000, zlib.crc32(content), sent.append)
    assert sum(sent) == 0

    started.store.upload("run/equal", io.BytesIO(b"y" * 1000), 1000, zlib.crc32(b"y" * 1000), sent.append)
    assert sum(sent) == 1000


def test_a_file_that_has_changed_on_its_way_is_not_taken_for_whole(started: Started) -> None:
    with pytest.raises(OSError, match="not in the mirror as it was sent"):
        started.store.upload("run/changed", io.BytesIO(b"abc"), 3, zlib.crc32(b"abd"), lambda _: None)
    with pytest.raises(OSError, match="has changed while it was copied"):
        started.store.upload("run/short", io.BytesIO(b"abc"), 9, 0, lambda _: None)


def test_an_error_of_the_storage_is_told_and_the_next_call_has_another_child(started: Started) -> None:
    before = len(started.children)

    with pytest.raises(OSError, match="you may not write here"):
        started.store.upload("forbidden", io.BytesIO(b"x" * 20 * MIB), 20 * MIB, 0, lambda _: None)

    started.store.put("after.json", b"after")
    assert started.store.get("after.json", 10) == b"after"
    assert len(started.children) >= before + 1
    assert started.children[before - 1].wait(10.0 * SLOWER) is not None


def test_an_error_that_leaves_the_child_has_no_query_of_a_url(started: Started, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="you may not write here") as refused:
        started.store.put("forbidden.json", b"x")
    with pytest.raises(FileNotFoundError) as absent:
        started.store.read("gone", 0, 1)

    assert str(refused.value) == "you may not write here: 'https://storage/a' (403), why?"
    assert str(absent.value) == '404: "https://storage/gone" is absent, GET /gone'
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("raise OSError('no https://storage/a?sig=SECRET')")
    env = {"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = "import sys; from cloudrl.node.arrow_worker import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, "gs://runs", str(theirs.fileno())]
        subprocess.run(command, env=env, pass_fds=[theirs.fileno()], check=True, timeout=60 * SLOWER)
        assert json.loads(ours.recv(1000)) == {"error": "no https://storage/a"}
    assert b"SECRET" not in started.log.read_bytes()


def test_calls_beside_a_long_upload_do_not_wait_for_it(started: Started) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def pace(count: int) -> None:
        if count:
            begun.set()
            assert go_on.wait(60)

    content = b"x" * MIB
    upload = threading.Thread(
        target=started.store.upload, args=("run/slow", io.BytesIO(content), MIB, zlib.crc32(content), pace)
    )
    upload.start()
    assert begun.wait(60)
    started.store.put("beside.json", b"beside")
    assert started.store.get("beside.json", 10) == b"beside"
    go_on.set()
    upload.join(60)
    assert started.on_disk()["run/slow"] == content


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("gs://my_runs.example/a/b/", MirrorUrl("my_runs.example", "a/b", scheme="gs")),
        ("gs://runs", MirrorUrl("runs", "", scheme="gs")),
    ],
)
def test_addresses(text: str, url: MirrorUrl) -> None:
    assert parse_mirror(text) == url
    assert not url.is_s3


@pytest.mark.parametrize(
    "text",
    [
        "gs://", "gs://Runs/x", "gs://key@runs/x", "gs://runs/../x", "gs://runs/a//b", "gs://runs/x?key=secret",
        "az://runs/x", "abfss://runs@account1.dfs.core.windows.net/x",
        "abfss://runs:secret@account1.dfs.core.windows.net/x", "abfss://account1.dfs.core.windows.net/x?sig=secret",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_a_secret_in_the_message(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_mirror(text)

    assert "secret" not in refused.value.message
    assert text.startswith("gs:") or "is neither an absolute path nor" in refused.value.message
    assert "gs://BUCKET/PREFIX" in str(refused.value.hint)


def test_a_python_without_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'pyarrow'\")")
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    monkeypatch.setattr(sys, "argv", [str(_program(tmp_path))])
    copier = MirrorCopier(tmp_path, {"PYTHONPATH": path}, log=tmp_path / "mirror.log")

    check = copier.check("gs://runs/x", "token", writes=True)

    assert "no pyarrow for this storage: No module named 'pyarrow'" in check.error
    assert """--setup "pip install 'pyarrow>=19'\"""" in check.hint


def _program(folder: Path) -> Path:
    program = folder / "agent.py"
    program.write_text("import sys\nfrom cloudrl.node.main import main\nsys.exit(main())\n")
    return program


class FakeGcs(ThreadingHTTPServer):
    """Objects of one bucket; an object appears when its upload is finished, as in GCS.

    It has what pyarrow 26 calls of the JSON API: metadata, lists, media, deletes, and uploads whole or in pieces.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Gcs)
        self.objects: dict[str, bytes] = {}
        self.generations: dict[str, int] = {}
        self.uploads: dict[str, tuple[str, bytearray]] = {}

    def store(self, name: str, content: bytes) -> None:
        """Have an object, in place of an older generation."""
        self.objects[name] = content
        self.generations[name] = self.generations.get(name, 0) + 1


class _Gcs(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeGcs

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def _answer(self, status: int, value: Any = None, headers: dict[str, str] | None = None) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value or {}).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def _resource(self, name: str) -> dict[str, Any]:
        size = str(len(self.server.objects[name]))
        return {
            "kind": "storage#object", "name": name, "bucket": "runs", "size": size,
            "generation": self._generation(name),
            "timeCreated": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z",
        }  # fmt: skip

    def _generation(self, name: str) -> str:
        return str(self.server.generations.get(name, 0))

    @property
    def _query(self) -> dict[str, str]:
        return {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        name = unquote(path.rpartition("/o/")[2]) if "/o/" in path else unquote(path).removeprefix("/runs/")
        if path.endswith("/o"):
            found = [key for key in sorted(self.server.objects) if key.startswith(self._query.get("prefix", ""))]
            self._answer(200, {"kind": "storage#objects", "items": [self._resource(key) for key in found]})
        elif name not in self.server.objects or self._query.get("generation", self._generation(name)) != (
            self._generation(name)
        ):
            self._answer(404, {"error": {"code": 404, "message": "Not Found"}})
        elif self._query.get("alt") == "media" or "/o/" not in path:
            content, begin = self.server.objects[name], 0
            if wanted := self.headers.get("Range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                begin, content = int(first), content[int(first) : int(last) + 1 if last else None]
            end = begin + len(content) - 1
            ranges = {"Content-Range": f"bytes {begin}-{end}/{len(self.server.objects[name])}"}
            self._answer(206 if wanted else 200, content, {**ranges, "x-goog-generation": self._generation(name)})
        else:
            self._answer(200, self._resource(name))

    def do_DELETE(self) -> None:
        name = unquote(urlsplit(self.path).path.rpartition("/o/")[2])
        self._answer(204 if self.server.objects.pop(name, None) is not None else 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._query.get("uploadType") == "resumable":
            name = self._query.get("name") or json.loads(body)["name"]
            number = str(len(self.server.uploads))
            self.server.uploads[number] = name, bytearray()
            host = self.headers["Host"]
            self._answer(200, headers={"Location": f"http://{host}/upload/session?upload_id={number}&name={name}"})
            return
        boundary = self.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
        _, metadata, media, _ = body.split(b"--" + boundary)
        name = self._query.get("name") or json.loads(metadata.partition(b"\r\n\r\n")[2])["name"]
        self.server.store(name, media.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n"))
        self._answer(200, self._resource(name))

    def do_PUT(self) -> None:
        name, content = self.server.uploads[self._query["upload_id"]]
        content += self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Range", "").endswith("/*"):
            self._answer(308, headers={"Range": f"bytes=0-{len(content) - 1}"} if content else {})
            return
        self.server.store(name, bytes(content))
        self._answer(200, self._resource(name))


@pytest.fixture
def gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_google_storage_by_its_own_client(gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(_program(tmp_path))])
    environment = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{gcs.server_address[1]}",
        "PYTHONPATH": ":".join(filter(None, sys.path)), "CLOUDSDK_CONFIG": str(tmp_path),
    }  # fmt: skip
    store = open_store("gs://runs/night", environment, tmp_path / "mirror.log")
    assert isinstance(store, ArrowStore)
    content = bytes(range(256)) * (20 * MIB // 256)

    store.put(".cloudrl/a.json", b"one")
    store.put(".cloudrl/a.json", b"two")
    store.upload("run/large.pt", io.BytesIO(content), len(content), zlib.crc32(content), lambda _: None)

    assert store.get(".cloudrl/a.json", 10) == b"two"
    assert store.get(".cloudrl/b.json", 10) is None
    assert store.names(".cloudrl/") == {".cloudrl/a.json": 3}
    assert store.names("absent/") == {}
    with store.open("run/large.pt") as file:
        file.seek(19 * MIB)
        assert file.read() == content[19 * MIB :]
    store.remove([".cloudrl/a.json", ".cloudrl/absent"])
    assert gcs.objects == {"night/run/large.pt": content}

    nodes = [MirrorCopier(tmp_path, environment, log=tmp_path / "mirror.log") for _ in range(2)]
    for token in ("token", "another token"):
        for node in nodes:
            check = node.check("gs://runs/night", token, writes=node is nodes[0])
            assert (check.error, check.warning, check.is_seen) == ("", "", True)
    for node in nodes:
        assert node.store("gs://runs/night") is node.store("gs://runs/night")
        node.store("gs://runs/night").close()  # type: ignore[attr-defined]

    cut = io.BytesIO(content)
    with pytest.raises(OSError, match="has changed while it was copied"):
        store.upload("run/cut.pt", cut, len(content) + 5, 0, lambda _: None)
    time.sleep(1.0)  # for a child that would finish it
    assert "night/run/cut.pt" not in gcs.objects
    store.close()
