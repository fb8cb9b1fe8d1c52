"""Files over HTTP: ranges, and never a byte from outside the folder."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_harness import SECRET, Served

from cloudrl.node.fetch import pull
from cloudrl.protocol.client import AgentClient, AgentRefused
from cloudrl.protocol.failures import ApiError

BODY = b"0123456789"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node with checkpoints and data, secrets beside them, and links that lead there."""
    served = Served(tmp_path_factory.mktemp("node"), 0)
    for folder in (served.checkpoints, served.data):
        (folder / "step").mkdir()
        (folder / "step" / "shard.pt").write_bytes(BODY)
        (folder / "empty").touch()
        (folder / "link").symlink_to(served.folder / "secret")
        (folder / "up").symlink_to("..")
        (folder / "etc").symlink_to("/etc")
    (served.checkpoints / os.fsdecode(b"\xff \xc3\xbc%2e#?&;")).write_bytes(BODY)
    (served.folder / "secret").write_bytes(SECRET)
    yield served
    served.close()


SHARD = "/v1/nodes/0/checkpoints/step/shard.pt"


def test_a_whole_file(node: Served) -> None:
    answer = node.get(SHARD)
    assert (answer.status, answer.body) == (200, BODY)
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert "Content-Range" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-", 0, 9), ("bytes=0-9", 0, 9), ("bytes=0-0", 0, 0), ("bytes=3-5", 3, 5), ("bytes=9-", 9, 9),
        ("bytes=5-99", 5, 9), ("bytes=0-9999999999999999999", 0, 9), ("bytes=-1", 9, 9), ("bytes=-4", 6, 9),
        ("bytes=-10", 0, 9), ("bytes=-99", 0, 9), (" bytes=3-5 ", 3, 5),
    ],
)  # fmt: skip
def test_a_range(node: Served, asked: str, first: int, last: int) -> None:
    answer = node.get(SHARD, Range=asked)
    assert (answer.status, answer.body) == (206, BODY[first : last + 1])
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/10"


@pytest.mark.parametrize(
    "asked",
    ["bytes=10-", "bytes=10-12", "bytes=5-3", "bytes=-0", "bytes=-", "bytes=", "bytes=a-b", "bytes=0-1,3-4",
     "lines=0-1", "bytes=-1-2", "bytes=\xb2-", "bytes=" + "9" * 5000 + "-", "bytes=" + "9" * 30 + "-3", ""],
)  # fmt: skip
def test_a_range_outside_the_file(node: Served, asked: str) -> None:
    answer = node.get(SHARD, Range=asked)
    assert answer.status == 416
    assert "10 bytes" in answer.json()["error"]


def test_an_empty_file(node: Served) -> None:
    answer = node.get("/v1/nodes/0/checkpoints/empty")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")
    assert node.get("/v1/nodes/0/checkpoints/empty", Range="bytes=0-").status == 416
    assert node.get("/v1/nodes/0/checkpoints/empty", Range="bytes=-1").status == 416


def test_a_large_file_in_ranges(node: Served) -> None:
    whole = os.urandom(3 << 20)
    (node.checkpoints / "large").write_bytes(whole)
    parts = [
        node.get("/v1/nodes/0/checkpoints/large", Range=f"bytes={first}-{first + 999_999}").body
        for first in range(0, len(whole), 1_000_000)
    ]
    assert b"".join(parts) == whole == node.get("/v1/nodes/0/checkpoints/large").body
    (node.checkpoints / "large").unlink()


def test_whatever_there_is_can_be_read_by_its_name(node: Served) -> None:
    files = [path for path in node.checkpoints.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) == 3
    for path in files:
        answer = node.get("/v1/nodes/0/checkpoints/" + quote(os.fsencode(path.relative_to(node.checkpoints))))
        assert (answer.status, answer.body) == (200, path.read_bytes())


LEAVING = [
    "../secret", "../../../../../../etc/passwd", "step/../../secret", "step/../link", "./../secret", "/etc/passwd",
    "//etc/passwd", "link", "up/secret", "up/checkpoints/step/shard.pt", "etc/passwd", ".", "..", "...", "step",
    "step/", "step//shard.pt", "./step/shard.pt", "step/shard.pt/", "proc/self/environ", "~/secret", "$HOME",
    "file:///etc/passwd",
]  # fmt: skip
DOTS = [{".": "%2e"}, {"..": ".%2e"}, {".": "%uff0e"}]
SLASHES = [{"/": "%2F"}, {"/": "%5c"}, {"/": "\\"}]
BOTH = [{".": "%2E", "/": "%2f"}, {".": "%252e", "/": "%252f"}, {".": "%c0%ae", "/": "%c0%af"}]
NULS = ["step/shard.pt%00", "..%00/secret", "step/shard.pt%00.txt", "%00"]
ODD = [*NULS, "%", "step/shard.pt;x=../secret", "x" * 5000]


def spelled(path: str, encoded: dict[str, str]) -> str:
    for plain, code in encoded.items():
        path = path.replace(plain, code)
    return path


@pytest.mark.parametrize(
    "path", sorted({spelled(path, each) for path in LEAVING for each in ({}, *DOTS, *SLASHES, *BOTH)} | set(ODD))
)
def test_no_path_leaves_the_folder(node: Served, path: str) -> None:
    for root in ("/v1/nodes/0/checkpoints/", "/v1/data/", "/v1/data/step/"):
        answer = node.get(root + path)
        assert answer.status in (403, 404)
        assert set(answer.json()) == {"error", "code"}
        assert SECRET not in answer.body
        assert b"root:" not in answer.body


PARTS = st.sampled_from(
    ["..", ".", "%2e%2e", "%2f", "%5c", "/", "//", "step", "shard.pt", "secret", "link", "up", "etc", "passwd", "%00",
     "%252e", "checkpoints", "data", "?", "#", "%", "a"]
)  # fmt: skip


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(PARTS, min_size=1, max_size=8), between=st.sampled_from(["", "/", "%2f"]))
def test_no_spelling_leaves_the_folder(node: Served, parts: list[str], between: str) -> None:
    answer = node.get("/v1/nodes/0/checkpoints/" + between.join(parts))
    assert answer.status in (200, 403, 404)
    assert SECRET not in answer.body
    assert b"root:" not in answer.body


def test_prepared_data(node: Served) -> None:
    assert node.get("/v1/data/step/shard.pt").body == BODY
    assert node.get("/v1/data/step/missing").status == 404
    assert node.get("/v1/data/step").status == 404


# -- a node pulls a file from another ---------------------------------------------------------------------------


def _pull(node: Served, file: str, to: Path, sha256: str = "0" * 64, token: str = "right-token") -> None:
    client = AgentClient(f"http://127.0.0.1:{node.port}", token, timeout_s=5.0)
    pull(client, "step", file, sha256, to=to)


def test_a_file_is_pulled(node: Served, tmp_path: Path) -> None:
    digest = hashlib.sha256(BODY).hexdigest()
    _pull(node, "shard.pt", tmp_path / "deep" / "copy", digest)
    assert (tmp_path / "deep" / "copy").read_bytes() == BODY
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["copy"]


def test_a_damaged_file_never_appears(node: Served, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=rf"step/shard.pt from http://127.0.0.1:{node.port} is damaged"):
        _pull(node, "shard.pt", tmp_path / "copy")
    with pytest.raises(AgentRefused, match="there is no such file"):
        _pull(node, "missing", tmp_path / "copy")
    with pytest.raises(AgentRefused, match="token"):
        _pull(node, "shard.pt", tmp_path / "copy", token="wrong")
    assert list(tmp_path.iterdir()) == []
