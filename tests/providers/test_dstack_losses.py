"""Hosts of a cluster on dstack lose their power; dstack starts the run again. Commands as a user types them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from dstack_hosts.runs import until

if TYPE_CHECKING:
    from dstack_hosts.user import User

pytestmark = [pytest.mark.dstack, pytest.mark.ray]


def token(user: User, cluster: str) -> str:
    found = re.search(r"RAY_AUTH_TOKEN=(\w{64})", user.types("cloudrl", "env", "--cluster", cluster).stdout)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("rank", [1, 0], ids=["worker", "head"])
def test_a_lost_host_brings_up_the_whole_cluster_again(user: User, first: str, rank: int) -> None:
    """The fleet's spare host takes the place of the lost one, which is back for the next test."""
    lab, before = user.lab, token(user, first)
    attempts = lab.runs.attempts(first)
    host = user.hosts_of(first)[rank]
    job = f"lost-{rank}"
    user.counts(first, job)
    follower = user.lab.popen("cloudrl", "jobs", "logs", "-f", job, "--cluster", first)
    until(lambda: "line 9" in follower.output, 60, lambda: follower.output)
    host.kill()
    try:
        until(lambda: lab.runs.attempts(first) > attempts, 120, lambda: lab.runs.status(first))
        until(lambda: lab.runs.status(first) == "running", 90, lambda: lab.runs.status(first))
        look = user.wait_ready(first)
        assert [node["phase"] for node in look["nodes"]] == ["ready", "ready"]

        done = follower.finish(90)  # with the old token; it reads the new one by itself
        assert done.returncode == 4, done.stdout[-2000:]
        assert "the cluster was restarted, and its jobs are gone" in done.stdout
        assert "Submit it again with --name" in done.stdout

        said = user.types("cloudrl", "status", first).stdout
        [line] = [line for line in said.splitlines() if line.startswith(f"attempt {attempts} ")]
        assert re.match(rf"attempt {attempts} \(20\d\d-\d\d-\d\d \d\d:", line)
        assert "ended and was started again: " in line
        assert host.address in line
        assert attempts in [each["attempt"] for each in look["previous_attempts"]]

        assert "nodes 2" in user.probe(first, f"probe-{rank}")
        assert host not in user.hosts_of(first)
        assert token(user, first) != before
    finally:
        host.start()
