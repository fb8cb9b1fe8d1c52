"""Several threads over one client: new tokens, files that cannot be read, requests side by side."""

import io
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from fake_cluster import FakeCluster
from patience import SLOWER
from shard_files import edit, shard_path
from small_step import write_step

from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.remote import RangeClient, RemoteShard
from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.errors import CheckpointError
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.exchange import Request, Response
from cloudrl.protocol.routes import CAST_HEADER
from cloudrl.saves.places import FileCopy, Location
from cloudrl.shards.dtypes import DType
from cloudrl.shards.source import LocalShard
from cloudrl.shards.torch_zip import open_archive

pytestmark = pytest.mark.io

FILE = "mine/global_step_7/actor/model_world_size_2_rank_1.pt"
AT = FileCopy(Location((1,), ("10.0.0.2",), "checkpoints", "/checkpoints"), FILE, 100 << 20, 0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    """Rank 1's shard is on node 1; a storage of it is longer than what is read at the end of a file."""
    step = write_step(tmp_path / "whole" / "mine", 7)
    edit(shard_path(step / "actor", 1), lambda content: content.update({"data/0": content["data/0"] + bytes(300_000)}))
    with FakeCluster() as fake:
        fake.hold_run(tmp_path / "whole" / "mine", tmp_path)
        yield fake


def latest(cluster: FakeCluster, said: list[str]) -> CheckpointHandle:
    return Checkpoints(ClusterSource(cluster.connection(), on_break=said.append)).latest()


# -- tokens --------------------------------------------------------------------------------------------------------


def test_a_refusal_that_comes_after_another_thread_has_renewed_the_token(cluster: FakeCluster) -> None:
    """The first request was sent with the old token, and is refused when there is a newer one already."""
    arrived, renewed, asked = threading.Event(), threading.Event(), []

    def renew(refused: str) -> str:
        asked.append(refused)
        renewed.set()
        return "new"

    def on_request(_method: str, path: str) -> None:
        if path == "/v1/status":
            arrived.set()
            assert renewed.wait(10 * SLOWER)

    cluster.agent_token, cluster.on_request = "new", on_request
    client = AgentClient(cluster.agent_url, "old", refresh=renew)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.status)
        assert arrived.wait(10 * SLOWER)
        client.note_transfer()
        assert slow.result(10)
    assert asked == ["old"]


def test_many_threads_renew_once(cluster: FakeCluster) -> None:
    together, asked = threading.Barrier(4, timeout=60), []

    def renew(refused: str) -> str:
        asked.append(refused)
        return "new"

    def first_together(_method: str, _path: str) -> None:
        if len(cluster.requests) <= 4:
            together.wait()

    cluster.agent_token, cluster.on_request = "new", first_together
    client = AgentClient(cluster.agent_url, "old", refresh=renew)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.status) for _ in range(4)]
        assert all(call.result(10) for call in calls)
    assert asked == ["old"]


# -- a disk that cannot read ---------------------------------------------------------------------------------------


def break_storage(cluster: FakeCluster) -> None:
    """In the filling at the end of a storage of rank 1."""
    member = open_archive(LocalShard(cluster.disks[1] / FILE)).members["data/0"]
    cluster.bad_bytes[FILE] = member.offset + member.size_bytes // 2


def test_verify_reports_what_a_disk_cannot_read_and_goes_on(cluster: FakeCluster) -> None:
    said: list[str] = []
    shard = cluster.disks[1] / FILE
    member = open_archive(LocalShard(shard)).members["data/3"]
    content = bytearray(shard.read_bytes())
    content[member.offset] ^= 1
    shard.write_bytes(content)
    found = latest(cluster, said)
    break_storage(cluster)
    unreadable, rotten = [finding for finding in found.verify().findings if finding.fatal]
    assert (unreadable.rank, rotten.rank) == (1, 1)
    assert unreadable.message.startswith("data/0 cannot be read: ")
    assert unreadable.message.endswith("the file cannot be read: Input/output error")
    assert "is damaged: data/3" in rotten.message
    assert said == [], "it was not asked for again"


def test_a_merge_ends_at_once_at_what_cannot_be_read(cluster: FakeCluster, tmp_path: Path) -> None:
    said: list[str] = []
    found = latest(cluster, said)
    break_storage(cluster)
    with pytest.raises(CheckpointError, match=r"node 1 .*rank_1\.pt.*Input/output error"):
        found.merge(tmp_path / "model")
    assert said == []
    assert not (tmp_path / "model").exists()


# -- what a shard asks for -----------------------------------------------------------------------------------------


class Zeros:
    """An agent with a file of zeros; remembers what it sums, and calls `on_read` while an answer is on its way."""

    def __init__(self, on_read: Callable[[], object] = lambda: None) -> None:
        self.sums: list[int] = []
        self._on_read = on_read
        self.shard = RemoteShard(RangeClient(AgentClient("http://head", "t", send=self._send)), AT)

    def _send(self, request: Request) -> Response:
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        count, query = last + 1 - first, dict(parse_qsl(urlsplit(request.url).query))
        if "crc32" in query:
            self.sums.append(count)
            crc = zlib.crc32(bytes(count), int(query["crc32"]))
            body = json.dumps({"size_bytes": count, "crc32": crc}).encode()
        else:
            self._on_read()
            body = bytes(count // 2 if query else count)
        headers = {"Content-Length": str(len(body)), CAST_HEADER: query.get("cast", "")}
        return Response(200, headers, io.BytesIO(body))


def test_no_sum_takes_longer_than_an_answer_may() -> None:
    """Within the 30 s of a client also where a busy volume gives 1 MB/s."""
    agent = Zeros()
    assert agent.shard.crc32(5, 50 << 20) == zlib.crc32(bytes(50 << 20))
    assert max(agent.sums) < 30e6
    assert sum(agent.sums) == 50 << 20


@pytest.mark.parametrize("length", [1000, 8 << 20])
def test_threads_read_one_shard_side_by_side(length: int) -> None:
    """Each answer waits until as many are on their way as there are threads."""
    together = threading.Barrier(4, timeout=60)
    shard = Zeros(together.wait).shard
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(shard.read, number * (10 << 20), length) for number in range(4)]
        casts = [pool.submit(shard.read_cast, number * (10 << 20), length // 4, DType.FLOAT32, DType.BFLOAT16)
                 for number in range(4)]  # fmt: skip
        assert all(read.result(20) == bytes(length) for read in reads)
        assert all(cast.result(20) == bytes(length // 2) for cast in casts)
