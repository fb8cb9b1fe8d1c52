"""A cluster on dstack while its link or the dstack server is away, and after its hosts have lost their power.

Commands are typed as a user types them.
"""

import re
import time
from collections.abc import Iterator

import pytest
from dstack_hosts.client import Client
from dstack_hosts.fixtures import start_or_skip
from dstack_hosts.lab import Lab
from dstack_hosts.runs import until
from dstack_hosts.user import COUNT_END_ON_HOST, User

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
    head.path(COUNT_END_ON_HOST).touch()
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
    user.wait_ready(first)

    lab.server.be_patient(True)  # the stock server's patience is two minutes, that of the tests 15 s
    head.cut()
    time.sleep(CUT_S)  # of the real clock: ssh's keep-alives and Ray's heartbeats are what is tested
    silent = numbers(follower.output)[-1]
    head.restore()
    until(lambda: numbers(follower.output)[-1] > silent + 40, 60, lambda: follower.output[-500:])
    assert "connection lost, trying again" in follower.output
    head.path(COUNT_END_ON_HOST).touch()
    done = follower.finish(60)
    assert done.returncode == 0, done.stdout[-2000:]
    lines = numbers(done.stdout)
    assert lines == list(range(len(lines)))
    assert len(lines) > CUT_S / 0.05  # also those of the time without a link

    assert lab.runs.attempts(first) == attempts
    user.wait_ready(first)
    assert user.types("cloudrl", "env", "--cluster", first).stdout == before


def token(user: User, cluster: str) -> str:
    found = re.search(r"RAY_AUTH_TOKEN=(\w{64})", user.types("cloudrl", "env", "--cluster", cluster).stdout)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.slow, id="worker"), pytest.param(0, id="head")])
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
        assert "Submit it again, and it continues" in done.stdout

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


@pytest.fixture(scope="module")
def stock() -> Iterator[User]:
    """A user of a lab with stock intervals and a fleet of three hosts."""
    lab = start_or_skip(Lab(hosts=3, fast=False))
    try:
        lab.create_fleet("stock")
        yield User(lab)
    finally:
        lab.stop()


@pytest.mark.slow
def test_a_cut_and_a_lost_host_with_stock_intervals(stock: User) -> None:
    """Two minutes until a silent host counts as lost."""
    lab = stock.lab
    assert "READY: slow with 2 nodes" in stock.up("slow", "stock")
    head, worker = stock.hosts_of("slow")
    stock.counts("slow", "count")
    follower = stock.lab.popen("cloudrl", "jobs", "logs", "-f", "count", "--cluster", "slow")
    until(lambda: "line 9" in follower.output, 60, lambda: follower.output)
    head.cut()
    time.sleep(CUT_S)
    head.restore()
    said = len(follower.output)
    until(lambda: len(follower.output) > said + 500, 60, lambda: follower.output)
    lines = numbers(follower.output.rpartition("\n")[0])
    assert lines == list(range(len(lines)))
    assert lab.runs.attempts("slow") == 1

    worker.kill()
    until(lambda: lab.runs.attempts("slow") == 2, 400, lambda: lab.runs.status("slow"))
    look = stock.wait_ready("slow", timeout_s=300)
    assert [each["attempt"] for each in look["previous_attempts"]] == [1]
    assert "its jobs are gone" in follower.finish(120).stdout
    assert "nodes 2" in stock.probe("slow", "probe")
    stock.types("cloudrl", "down", "slow", "-y")
