"""Ctrl-C ends a merge or a check at once, though a node stays silent."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from patience import SLOWER
from shard_files import config_files, merge, opened

from cloudrl.checkpoints.remote import RangeClient, RemoteShard
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.client import AgentClient
from cloudrl.saves.places import FileCopy, Location
from cloudrl.shards import cancellation
from cloudrl.shards.source import LocalShard, MergeInputs
from cloudrl.shards.validate import verify

pytestmark = pytest.mark.io


class Silent(RemoteShard):
    """A shard whose node can still be read, but does not sum any more; the user loses patience."""

    def __init__(self, here: LocalShard) -> None:
        self._interrupted = threading.Event()
        backoff = Backoff(first_s=20.0, longest_s=20.0, give_up_s=30.0)
        agent = AgentClient("http://127.0.0.1:9", "t")
        place = Location((0,), ("127.0.0.1",), "checkpoints", "/checkpoints")
        client = RangeClient(agent, backoff=backoff, on_break=self._interrupt)
        super().__init__(client, FileCopy(place, here.path.name, here.size_bytes(), 0.0))
        self.read, self.read_many = here.read, here.read_many  # type: ignore[method-assign]

    def _interrupt(self, _sentence: str) -> None:
        if not self._interrupted.is_set():
            self._interrupted.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.fixture
def shards(actor: Path) -> dict[int, Any]:
    whole = opened(actor).shards
    return {0: Silent(whole[0]), 1: whole[1]}


def test_a_check_ends(shards: dict[int, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        verify(MergeInputs(shards))
    assert time.monotonic() - began < 10 * SLOWER


def test_a_merge_ends_and_leaves_nothing(shards: dict[int, Any], tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        merge(MergeInputs(shards, config_files()), tmp_path / "model")
    assert time.monotonic() - began < 10 * SLOWER
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]


def test_an_error_of_one_thread_ends_the_others() -> None:
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        cancellation.sleep(60 * SLOWER)
        cancellation.check()

    def fail() -> None:
        waits.wait(5 * SLOWER)
        raise ValueError

    def work() -> None:
        with cancellation.workers(2, "test") as pool:
            others = [pool.submit(wait), pool.submit(fail)]
            others[1].result()

    began = time.monotonic()
    with pytest.raises(ValueError):
        work()
    assert time.monotonic() - began < 10 * SLOWER


def test_elsewhere_nothing_is_stopped() -> None:
    cancellation.check()
    cancellation.sleep(0)
