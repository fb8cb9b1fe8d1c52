"""A cluster on dstack while its link, or the dstack server, is away. Commands are typed as a user types them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from dstack_hosts.runs import until
from dstack_hosts.user import COUNT_END

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dstack_hosts.client import Client
    from dstack_hosts.user import User

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

CUT_S = 20.0


def numbers(log: str) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("line ")]


@pytest.fixture
def follower(user: User, first: str) -> Iterator[Client]:
    """`cloudrl jobs logs -f` of a job that writes numbered lines; the job ends with the test."""
    [head, *_] = user.hosts_of(first)
    user.counts(first, "count")
    client = user.lab.popen("cloudrl", "jobs", "logs", "-f", "count", "--cluster", first)
    until(lambda: len(numbers(client.output)) > 20, 60, lambda: client.output)
    yield client
    head.restore()
    user.lab.server.be_patient(False)
    head.path(COUNT_END).touch()
    client.close()


def test_nothing_is_lost_while_server_and_link_are_away(user: User, first: str, follower: Client) -> None:
    lab = user.lab
    [head, *_] = user.hosts_of(first)
    attempts = lab.runs.attempts(first)
    before = user.types("cloudrl", "env", "--cluster", first).stdout
    lab.server.stop()
    try:
        said = user.types("cloudrl", "status", first, code=5).stdout
        assert "no dstack server answers at http://127.0.0.1:3000" in said
        assert "With a server of your own: dstack server" in said  # the next command
        seen = numbers(follower.output)[-1]
        until(lambda: numbers(follower.output)[-1] > seen + 20, 30, lambda: follower.output[-500:])
    finally:
        lab.server.start()
    assert user.status(first)["phase"] == "ready"

    lab.server.be_patient(True)  # the stock server's patience is two minutes, that of the tests 15 s
    head.cut()
    time.sleep(CUT_S)  # of the real clock: ssh's keep-alives and Ray's heartbeats are what is tested
    silent = numbers(follower.output)[-1]
    head.restore()
    until(lambda: numbers(follower.output)[-1] > silent + 40, 60, lambda: follower.output[-500:])
    assert "connection lost, trying again" in follower.output
    head.path(COUNT_END).touch()
    done = follower.finish(60)
    assert done.returncode == 0, done.stdout[-2000:]
    lines = numbers(done.stdout)
    assert lines == list(range(len(lines)))
    assert len(lines) > CUT_S / 0.05  # also those of the time without a link

    assert lab.runs.attempts(first) == attempts
    assert user.status(first)["phase"] == "ready"
    assert user.types("cloudrl", "env", "--cluster", first).stdout == before
