"""The agent's side of the child for shards: how long it waits, and what it does with a child that hangs."""

import json
import os
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import SLOWER
from server_harness import Served

from cloudrl.checkpoints.remote import READ_TIMEOUT_S
from cloudrl.node.shard_worker import SEND_TIMEOUT_S
from cloudrl.node.shard_worker_client import SILENT_S, ShardWorkerClient, ShardWorkerFailed
from cloudrl.protocol.client import LISTING_TIMEOUT_S

pytestmark = pytest.mark.io

BODY = b"weights" * 99


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(BODY)
    return tmp_path / "file"


def total(child: ShardWorkerClient, path: Path) -> int:
    with path.open("rb") as file:
        return child.crc32(file, offset=0, count=len(BODY))["crc32"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_it_is_waited_for_longer_than_any_client_waits() -> None:
    assert max(LISTING_TIMEOUT_S, SEND_TIMEOUT_S, READ_TIMEOUT_S) < SILENT_S


def test_a_child_that_hangs_is_ended_and_another_one_asked(tmp_path: Path, file: Path) -> None:
    node = Served(tmp_path / "node", 0)
    client = node.checkpoint_store.child
    assert total(client, file) == zlib.crc32(BODY)
    client._silent_s, hung = 0.3, node.child
    os.kill(hung.pid, signal.SIGSTOP)
    before = descriptors()
    threads = [threading.Thread(target=_fails, args=(client, file)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20 * SLOWER)
    assert [hung.wait(10 * SLOWER), descriptors()] == [-signal.SIGKILL, before - 1], "its socket goes, too"

    client._silent_s = 20.0
    assert total(client, file) == zlib.crc32(BODY)
    assert node.child is not hung
    node.close()


def _fails(child: ShardWorkerClient, file: Path) -> None:
    with pytest.raises(ShardWorkerFailed, match=r"does not answer|has ended|cannot be (ended|asked)"):
        total(child, file)


class Stubborn:
    """A process in a read that nothing can break off, until the volume is back."""

    def __init__(self, asked: int) -> None:
        self.asked = socket.socket(fileno=os.dup(asked))
        self.ended = 0
        self.back = False

    def poll(self) -> int | None:
        return -9 if self.back and self.ended else None

    def end(self, _grace_s: float) -> int | None:
        self.ended += 1
        return self.poll()


@pytest.fixture
def made() -> Iterator[list[Stubborn]]:
    children: list[Stubborn] = []
    yield children
    for child in children:
        child.asked.close()


def test_one_that_cannot_be_ended_is_the_only_one(file: Path, made: list[Stubborn]) -> None:
    def start(descriptor: int) -> Any:
        made.append(Stubborn(descriptor))
        return made[-1]

    child = ShardWorkerClient(start, silent_s=0.05)
    with pytest.raises(ShardWorkerFailed, match=r"does not answer: silent for 0\.05 s"):
        total(child, file)
    for _ in range(3):
        with pytest.raises(ShardWorkerFailed, match="cannot be ended"):
            total(child, file)
    assert (len(made), made[0].ended) == (1, 1)
    made[0].back = True
    with pytest.raises(ShardWorkerFailed, match="does not answer"):
        total(child, file)
    assert len(made) == 2
    child.close()


def test_one_that_is_slow_and_alive_is_waited_for(file: Path, made: list[Stubborn]) -> None:
    def start(descriptor: int) -> Any:
        made.append(Stubborn(descriptor))
        threading.Thread(target=answer_slowly).start()
        return made[-1]

    def answer_slowly() -> None:
        _, given, _, _ = socket.recv_fds(made[0].asked, 4096, 3)
        for _ in range(5):
            os.write(given[1], b" ")
            time.sleep(1.0)
        os.write(given[1], json.dumps({"size_bytes": 1, "crc32": 7}).encode())
        for each in given:
            os.close(each)

    child = ShardWorkerClient(start, silent_s=4.0)
    assert total(child, file) == 7
    child.close()
