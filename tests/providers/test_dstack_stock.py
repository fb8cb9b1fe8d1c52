"""The same with the server's own polling intervals: two minutes until a silent host counts as lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from dstack_hosts.fixtures import start_or_skip
from dstack_hosts.lab import Lab
from dstack_hosts.runs import until
from dstack_hosts.user import User

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.dstack, pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def stock() -> Iterator[User]:
    """A user of a lab with stock intervals and a fleet of three hosts."""
    lab = start_or_skip(Lab(hosts=3, fast=False))
    try:
        lab.create_fleet("stock")
        yield User(lab)
    finally:
        lab.stop()


def test_a_cut_and_a_lost_host(stock: User) -> None:
    lab = stock.lab
    assert "READY: slow with 2 nodes" in stock.up("slow", "stock")
    head, worker = stock.hosts_of("slow")
    stock.counts("slow", "count")
    follower = stock.lab.popen("cloudrl", "jobs", "logs", "-f", "count", "--cluster", "slow")
    until(lambda: "line 9" in follower.output, 60, lambda: follower.output)
    head.cut()
    time.sleep(20)
    head.restore()
    said = len(follower.output)
    until(lambda: len(follower.output) > said + 500, 60, lambda: follower.output)
    lines = [int(line.split()[1]) for line in follower.output.splitlines()[:-1] if line.startswith("line ")]
    assert lines == list(range(len(lines)))
    assert lab.runs.attempts("slow") == 1

    worker.kill()
    until(lambda: lab.runs.attempts("slow") == 2, 400, lambda: lab.runs.status("slow"))
    look = stock.wait_ready("slow", timeout_s=300)
    assert [each["attempt"] for each in look["previous_attempts"]] == [1]
    assert "its jobs are gone" in follower.finish(120).stdout
    assert "nodes 2" in stock.probe("slow", "probe")
    stock.types("cloudrl", "down", "slow", "-y")
