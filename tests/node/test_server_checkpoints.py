"""Checkpoints over HTTP: what there is, ranges, casts and sums of them, and the removal of a step."""

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from patience import SLOWER
from server_harness import SECRET, Answer, Served

from cloudrl.node.checkpoint_store import CheckpointStore
from cloudrl.node.shard_worker import cast
from cloudrl.node.shard_worker_client import ShardWorkerClient, ShardWorkerFailed

pytestmark = pytest.mark.io

SHARD = "run/global_step_3/actor/model_world_size_2_rank_0.pt"
PACKAGE = "session_2025-05-28_15-53-09_958478_132003/runtime_resources/working_dir_files/_ray_pkg_c461f3378ff510ed"
IN_RAY_TMP = f"{PACKAGE}/checkpoints"
VALUES = struct.pack("<200000f", *(index / 7 for index in range(200_000)))


@pytest.fixture
def head(head: Served) -> Served:
    return fill(head)


@pytest.fixture
def worker(worker: Served) -> Served:
    return fill(worker)


def fill(served: Served) -> Served:
    for root in (served.checkpoints, served.folder / "ray" / IN_RAY_TMP):
        (root / SHARD).parent.mkdir(parents=True)
        (root / SHARD).write_bytes(VALUES)
    (served.folder / "ray" / "secret").write_bytes(SECRET)
    (served.folder / "secret").write_bytes(SECRET)
    return served


def at(rank: int, path: str = SHARD, root: str = "checkpoints") -> str:
    return f"/v1/nodes/{rank}/{root}/{path}"


def ranges(head: Served, rank: int, *wanted: tuple[int, int], path: str = SHARD) -> Answer:
    return head.call("POST", at(rank, path), body=json.dumps({"ranges": wanted}).encode())


@pytest.mark.parametrize("rank", [0, 1])
def test_the_inventory_of_any_node(head: Served, worker: Served, rank: int) -> None:
    answer = head.get(f"/v1/nodes/{rank}/inventory").json()
    ours, left = answer["locations"]
    assert answer["rank"] == rank
    assert ours["folder"] == str((head, worker)[rank].checkpoints)
    assert [run["run"] for run in ours["runs"]] == ["run"]
    assert [run["run"] for run in left["runs"]] == [f"{IN_RAY_TMP}/run"]
    cast_there = head.get(f"{at(rank, f'{IN_RAY_TMP}/{SHARD}', 'ray_tmp')}?cast=F32,F16", Range="bytes=8-799999")
    assert cast_there.body == cast(VALUES[8:], "F16")


def test_nodes_know_a_shared_folder_by_each_others_word(tmp_path: Path) -> None:
    nodes = [Served(tmp_path / str(rank), rank) for rank in range(3)]
    for node in nodes[:2]:
        node.checkpoint_store.folder = nodes[0].checkpoints
    for node in nodes:
        node.checkpoint_store.start()
    places = [node.checkpoint_store.inventory()["locations"][0] for node in nodes]
    assert places[0]["markers"] == places[1]["markers"] == [places[0]["marker"], places[1]["marker"]]
    assert places[2]["markers"] == [places[2]["marker"]]
    assert len({place["marker"] for place in places}) == 3
    once = [node.get(f"/v1/nodes/{node.rank}/inventory?once=").json()["locations"][0] for node in nodes]
    assert once[1]["same_as"] == {"rank": 0, "marker": places[0]["marker"]}
    assert ["runs" in place for place in once] == [True, False, True]
    assert "runs" in nodes[1].get("/v1/nodes/1/inventory?once=0").json()["locations"][0]
    assert nodes[1].get("/v1/nodes/1/inventory?once=0,x").status == 400
    assert [node.checkpoint_store._is_leader() for node in nodes] == [True, False, True]
    killed = next(nodes[0].checkpoints.glob("*cloudrl-marker-run-0"))
    os.utime(killed, (1.0, 1.0))
    assert nodes[1].checkpoint_store._is_leader(), "rank 0 has not been there for long"
    for node in nodes:
        node.close()
    assert not list(tmp_path.rglob("*cloudrl-marker*"))


@pytest.mark.parametrize("asked", ["F32,F64", "BF16,F32", "", "F32", "F32,BF16,F16", "../x"])
def test_no_other_cast(head: Served, asked: str) -> None:
    answer = head.get(f"{at(0)}?cast={asked}", Range="bytes=0-799")
    assert answer.status == (206 if asked == "" else 400)


def test_no_half_values(head: Served) -> None:
    assert head.get(f"{at(0)}?cast=F32,BF16", Range="bytes=0-798").status == 400


def test_a_child_that_dies_is_started_again(head: Served) -> None:
    assert head.get(f"{at(0)}?crc32=0").status == 200
    os.kill(head.child.pid, 9)
    head.child.wait(10 * SLOWER)
    assert head.get(f"{at(0)}?crc32=0").json()["crc32"] == zlib.crc32(VALUES)


def test_a_sum_goes_on_from_another(head: Served) -> None:
    first = head.get(f"{at(0)}?crc32=0", Range="bytes=5-9").json()
    assert first == {"size_bytes": 5, "crc32": zlib.crc32(VALUES[5:10])}
    both = head.get(f"{at(0)}?crc32={first['crc32']}", Range="bytes=10-19").json()
    assert both["crc32"] == zlib.crc32(VALUES[5:20])
    assert head.get(f"{at(0)}?crc32=x").status == 400


class Unreadable(ShardWorkerClient):
    """Asks its child for a file that gives nothing, whatever it is asked for."""

    def crc32(self, file: BinaryIO, **which: Any) -> dict[str, int]:
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # nothing is at address 0
            return super().crc32(memory, **{**which, "offset": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_file_that_cannot_be_read_is_no_matter_of_the_connection(head: Served, worker: Served, rank: int) -> None:
    """Clients asked again for ten minutes."""
    node = (head, worker)[rank]
    node.checkpoint_store.child = Unreadable(node._shard_child)
    answers = [head.get(f"{at(rank)}?crc32=0"), head.get(f"{at(rank)}?cast=F32,BF16", Range="bytes=0-7")]
    node.checkpoint_store.folder = Path("/proc/self")
    answers += [head.get(at(rank, "mem")), ranges(head, rank, (0, 1), path="mem")]
    assert [answer.status for answer in answers] == [422] * 4
    said = [answer.json()["error"] for answer in answers]
    assert all("Input/output error" in text for text in (*said[:2], said[3])), said
    assert "Invalid argument" in said[2], "its end is looked for first"


class LengthOnly(CheckpointStore):
    """Files whose length can be told, and which cannot be read."""

    def open(self, root: str, path: str) -> BinaryIO:
        with super().open(root, path) as file:
            return os.fdopen(os.open(f"/proc/self/fd/{file.fileno()}", os.O_WRONLY), "wb")


def test_a_plain_read_that_fails_says_so_before_it_begins(tmp_path: Path) -> None:
    served = Served(tmp_path / "node", 0, checkpoint_store=LengthOnly)
    fill(served)
    answer = served.get(at(0), Range="bytes=5-9")
    served.close()
    assert (answer.status, answer.json()) == (422, {"error": "Bad file descriptor", "code": "unreadable"})


def test_a_child_that_has_ended_may_be_asked_again(head: Served) -> None:
    class Gone(ShardWorkerClient):
        def crc32(self, file: BinaryIO, **which: Any) -> dict[str, int]:
            raise ShardWorkerFailed("the child for shards has ended")

    head.checkpoint_store.child = Gone(head._shard_child)
    assert head.get(f"{at(0)}?crc32=0").status == 500
    assert head.get(f"{at(0)}?cast=F32,BF16", Range="bytes=0-7").status == 500


@pytest.mark.parametrize("wanted", [(799_999, 2), (800_000, 1), (1 << 61, 1)])
def test_ranges_outside(head: Served, worker: Served, wanted: tuple[int, int]) -> None:
    for rank in (0, 1):
        answer = ranges(head, rank, (0, 1), wanted)
        assert answer.status == 416
        assert "800000 bytes" in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"ranges": 3}', b'{"ranges": [[1]]}', b'{"ranges": [["a", 1]]}', b'{"ranges": [[-1, 1]]}',
     b'{"ranges": [[0, true]]}', b'{"ranges": [[0, 1.5]]}', b'{"ranges": [[0, 99999999999]]}',
     b'{"ranges": [[0, 99999999999999999999999]]}'],
)  # fmt: skip
def test_what_is_no_list_of_ranges(head: Served, body: bytes) -> None:
    assert head.call("POST", at(0), body=body).status == 400


LEAVING = ["../secret", "%2e%2e/secret", "/etc/passwd", "run/../../secret", "run", "run/global_step_3", "etc"]


@pytest.mark.parametrize("root", ["checkpoints", "ray_tmp"])
@pytest.mark.parametrize("path", [*LEAVING, "secret", f"{IN_RAY_TMP}/../secret", f"{IN_RAY_TMP}/../../../../secret"])
def test_no_call_leaves_the_folder(head: Served, path: str, root: str) -> None:
    body = json.dumps({"ranges": [[0, 1]]}).encode()
    answers: list[Any] = [
        head.get(at(0, path, root)),
        head.get(f"{at(0, path, root)}?cast=F32,BF16", Range="bytes=0-3"),
        head.get(f"{at(0, path, root)}?crc32=0"),
        head.call("POST", at(0, path, root), body=body),
    ]
    assert {answer.status for answer in answers} <= {403, 404}


# -- removing a step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_is_removed(head: Served, worker: Served, rank: int) -> None:
    node = (head, worker)[rank]
    assert head.call("DELETE", at(rank, "run/global_step_3")).json() == {"removed": "run/global_step_3"}
    assert not (node.checkpoints / "run" / "global_step_3").exists()
    assert head.call("DELETE", at(rank, "run/global_step_3")).status == 404


def test_a_step_that_was_left_is_removed(head: Served) -> None:
    assert head.call("DELETE", at(0, f"{IN_RAY_TMP}/run/global_step_3", "ray_tmp")).status == 200
    assert not (head.folder / "ray" / IN_RAY_TMP / "run" / "global_step_3").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_volume_that_does_not_let_it_go_says_why(head: Served, worker: Served, rank: int) -> None:
    node = (head, worker)[rank]
    node.checkpoint_store.folder = node.no_folder
    answer = head.call("DELETE", at(rank, "run/global_step_3"))
    assert answer.status == 409
    assert "Not a directory" in answer.json()["error"]


@pytest.mark.parametrize(
    "path", [*LEAVING[:5], SHARD, "run/global_step_3/actor", "run/global_step_3/", "./run/global_step_3", "run/link"]
)
def test_nothing_but_a_step_is_removed(head: Served, path: str) -> None:
    (head.checkpoints / "run" / "link").symlink_to(head.checkpoints / "run" / "global_step_3")
    assert head.call("DELETE", at(0, path)).status in (403, 404)
    assert (head.checkpoints / SHARD).exists()
    assert (head.folder / "secret").read_bytes() == SECRET


def test_a_link_that_looks_like_a_step_is_not_followed(head: Served) -> None:
    (head.checkpoints / "run" / "global_step_9").symlink_to(head.folder)
    assert head.call("DELETE", at(0, "run/global_step_9")).status == 403
    assert (head.folder / "secret").exists()
    assert head.call("DELETE", at(0, f"{IN_RAY_TMP}/../x/global_step_9", "ray_tmp")).status == 403
