"""A shard on another node: the same bytes as a local one, also over a link that is cut again and again."""

import os
import struct
import zlib
from collections.abc import Iterator

import pytest
from cut_link import CutLink
from fake_clock import Clock
from node.server_harness import TOKEN, Served

from cloudrl.checkpoints.remote import RangeClient, RemoteShard
from cloudrl.errors import CheckpointError, ConnectionFailed
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.client import AgentClient
from cloudrl.saves.places import FileCopy, Location
from cloudrl.shards.dtypes import DType
from cloudrl.shards.source import LocalShard, ShardSource

pytestmark = pytest.mark.io

PATH = "my run/global_step_3/actor/model_world_size_2_rank_1.pt"
VALUES = struct.pack("<500000f", *((index - 250_000) / 7 for index in range(500_000)))
SIZE = len(VALUES)
FLOATS = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The head of two nodes; the shard is on node 1."""
    folder = tmp_path_factory.mktemp("nodes")
    head = Served(folder / "head", 0, nodes=2)
    worker = Served(folder / "worker", 1, nodes=2)
    file = worker.checkpoints / PATH
    file.parent.mkdir(parents=True)
    file.write_bytes(VALUES)
    head.state.record_heartbeat(worker.state.own)
    head.worker = worker  # type: ignore[attr-defined]
    yield head
    worker.close()
    head.close()


@pytest.fixture
def link(served: Served) -> Iterator[CutLink]:
    with CutLink(served.port) as link:
        yield link


def shard(link: CutLink, clock: Clock, *, size: int = SIZE, path: str = PATH,
          token: str = TOKEN, said: list[str] | None = None) -> RemoteShard:  # fmt: skip
    client = RangeClient(
        AgentClient(link.url, token), backoff=Backoff(give_up_s=60.0), clock=clock, sleep=clock.sleep,
        on_break=(said if said is not None else []).append,
    )  # fmt: skip
    return at(client, path, size)


def at(client: RangeClient, path: str = PATH, size: int = SIZE) -> RemoteShard:
    location = Location((1,), ("10.0.0.2",), "checkpoints", "/checkpoints")
    return RemoteShard(client, FileCopy(location, path, size, 0.0))


@pytest.fixture
def local(served: Served) -> LocalShard:
    return LocalShard(served.worker.checkpoints / PATH)  # type: ignore[attr-defined]


def same(one: ShardSource, other: ShardSource) -> None:
    assert one.size_bytes() == other.size_bytes()
    assert one.read(0, 0) == b""
    for offset, length in ((0, 10), (10, 10), (20, 100_000), (SIZE - 5, 5), (3, 7), (0, SIZE)):
        assert one.read(offset, length) == other.read(offset, length)
    for wanted in FLOATS:
        for span in ((0, 100), (400, 100), (800, 90_000), (64, 3), (SIZE - 4, 1), (SIZE, 0), (0, 500_000)):
            cast = (*span, DType.FLOAT32, wanted)
            assert one.read_cast(*cast) == other.read_cast(*cast)
    assert one.read_cast(8, 20, DType.INT64, DType.BFLOAT16) == VALUES[8:168]
    ranges = [(0, 3), (SIZE - 3, 3), (7, 0), (100, 30)]
    assert one.read_many(ranges) == other.read_many(ranges)
    assert one.read_many([]) == []
    assert one.crc32(0, SIZE) == zlib.crc32(VALUES)
    assert one.crc32(17, 1000) == zlib.crc32(VALUES[17:1017])


def test_the_same_bytes_as_a_local_file(link: CutLink, clock: Clock, local: LocalShard) -> None:
    same(shard(link, clock), local)
    assert clock.slept == []


def test_a_name_that_is_no_utf_8(served: Served, link: CutLink, clock: Clock) -> None:
    name = os.fsdecode(b"\xff.json")
    (served.worker.checkpoints / name).write_bytes(b"odd")  # type: ignore[attr-defined]
    assert shard(link, clock, path=name, size=3).read(0, 3) == b"odd"


def test_a_cast_where_it_lies_lets_half_of_it_travel(link: CutLink, clock: Clock) -> None:
    shard(link, clock).read_cast(0, 15_000, DType.FLOAT32, DType.BFLOAT16)
    assert link.connections == 1
    assert link.passed < 34_000


def test_a_cut_link_costs_nothing_that_has_come(link: CutLink, clock: Clock) -> None:
    link.cut_at = [200_000, 500_000, 900_000]
    said: list[str] = []
    assert shard(link, clock, said=said).read(0, SIZE) == VALUES
    assert link.cut_at == []
    assert link.passed < SIZE + 100_000
    assert clock.slept == [0.5, 0.5, 0.5], "each piece that comes starts the pauses anew"
    assert len(said) == 3
    assert "node 1 (10.0.0.2)" in said[0]


def test_a_cast_over_a_cut_link(link: CutLink, clock: Clock, local: LocalShard) -> None:
    link.cut_at = [100_001, 300_003, 600_000]
    got = shard(link, clock).read_cast(0, 500_000, DType.FLOAT32, DType.BFLOAT16)
    assert got == local.read_cast(0, 500_000, DType.FLOAT32, DType.BFLOAT16)
    assert link.cut_at == []
    assert link.passed < SIZE // 2 + 100_000


@pytest.mark.parametrize("cut", range(5, 260, 10))
def test_a_link_that_is_cut_in_the_head_of_an_answer(link: CutLink, clock: Clock, local: LocalShard, cut: int) -> None:
    """What has come of it looks like a whole one without some of its lines."""
    source = shard(link, clock)
    cast = (0, 500, DType.FLOAT32, DType.BFLOAT16)
    for read in (lambda of: of.crc32(0, 10), lambda of: of.read_many([(0, 3), (9, 3)]), lambda of: of.read_cast(*cast)):
        link.cut_at = [link.passed + cut]
        assert read(source) == read(local)
    link.cut_at = []
    before = link.passed
    source.read_cast(0, 5000, *cast[2:])
    assert link.passed - before < 12_000, "it still casts where it is"


def test_a_link_that_is_away_for_a_while(link: CutLink, clock: Clock) -> None:
    link.down()
    clock.on_sleep = lambda: link.up() if len(clock.slept) == 5 else None
    assert shard(link, clock).read(5, 10) == VALUES[5:15]
    assert clock.slept == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_a_link_that_stays_away(link: CutLink, clock: Clock) -> None:
    link.down()
    with pytest.raises(CheckpointError, match=r"node 1 .* cannot be read: nothing has come for 1 min 0\d s") as raised:
        shard(link, clock).read(5, 10)
    assert "cloudrl status" in str(raised.value.hint)
    assert sum(clock.slept) < 76


def test_a_node_that_the_head_has_not_heard_of_yet(served: Served, link: CutLink, clock: Clock) -> None:
    known = dict(served.state._members)
    served.state._members.clear()
    clock.on_sleep = lambda: served.state._members.update(known)
    assert shard(link, clock).read(5, 10) == VALUES[5:15]
    assert clock.slept == [0.5]


@pytest.mark.parametrize("path", ["../secret", "run/missing.pt"])
def test_what_is_not_there_is_not_waited_for(link: CutLink, clock: Clock, path: str) -> None:
    source = shard(link, clock, path=path)
    for read in (
        lambda: source.read(0, 1),
        lambda: source.read_many([(0, 1)]),
        lambda: source.crc32(0, 1),
        lambda: source.read_cast(0, 1, DType.FLOAT32, DType.BFLOAT16),
    ):
        with pytest.raises(CheckpointError, match=r"node 1 \(10.0.0.2\): /checkpoints/"):
            read()
    assert clock.slept == []


def test_a_refused_token(link: CutLink, clock: Clock) -> None:
    with pytest.raises(CheckpointError, match="refuses the token"):
        shard(link, clock, token="wrong").read(0, 1)


def test_a_cluster_that_is_being_started_again(link: CutLink, clock: Clock) -> None:
    def renew(refused: str) -> str:
        if len(clock.slept) < 3:
            raise ConnectionFailed("there are no new tokens yet")
        return TOKEN

    client = RangeClient(AgentClient(link.url, "old", refresh=renew), clock=clock, sleep=clock.sleep)
    assert at(client).read(0, 5) == VALUES[:5]
    assert len(clock.slept) == 3


@pytest.mark.parametrize(("offset", "length"), [(SIZE, 1), (SIZE - 1, 2), (-1, 1), (0, SIZE + 1)])
def test_beyond_the_end(link: CutLink, clock: Clock, offset: int, length: int) -> None:
    with pytest.raises(CheckpointError, match="it is cut off"):
        shard(link, clock).read(offset, length)


def test_a_file_that_has_become_shorter(link: CutLink, clock: Clock) -> None:
    source = shard(link, clock, size=SIZE + 4000)
    with pytest.raises(CheckpointError, match=r"has changed since it was listed, .*: 2\.0 MB, 2000000 bytes") as caught:
        source.read(SIZE, 100)
    assert "416" not in caught.value.message
    assert "cloudrl checkpoints list" in str(caught.value.hint)
    with pytest.raises(CheckpointError):
        source.crc32(SIZE - 10, 100)
