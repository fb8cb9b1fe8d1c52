"""A durable job with verl on dstack loses the server, its link, room on a disk, and at last a machine for good.

One job meets them in this order. Its attempts are counted after each, and at the end every step has been trained.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from dstack_hosts.fixtures import start_or_skip
from dstack_hosts.lab import Lab
from dstack_hosts.runs import until
from dstack_hosts.user import FILES, MODEL, User

from cloudrl.foreign import parse_json
from cloudrl.verl.metrics import Step, parse_step

if TYPE_CHECKING:
    from dstack_hosts.hosts import Host

pytestmark = [pytest.mark.dstack, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(5400)]

NAME, STEPS, EVERY = "train", 100, 2
CHECKPOINTS = "/var/lib/cloudrl/checkpoints"
DISK, HALF_A_SAVE = "3g", 350_000
CUT_S = 20.0


class Training:
    """A durable job on two of three hosts, each with a disk for checkpoints, and what is remembered of it there."""

    def __init__(self, user: User) -> None:
        self.user, self.lab = user, user.lab

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """Host -> what its disk remembers of the job; those that have power."""
        paths = {host.name: host.path(f"{CHECKPOINTS}/.cloudrl/jobs/{NAME}.json") for host in self.powered}
        return {name: parse_json(path.read_bytes()) for name, path in paths.items() if path.exists()}

    @property
    def powered(self) -> list[Host]:
        return [host for host in self.lab.hosts if host.is_up]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """As the disk that knows most of them remembers."""
        return max((record["attempts"] for record in self.records.values()), key=len, default=[])

    @property
    def saved(self) -> int:
        """The newest step whose save is finished: verl writes `data.pt` last."""
        steps = [path.parent for host in self.powered for path in host.path(CHECKPOINTS).glob(f"{NAME}/*/data.pt")]
        return max((int(path.name.rpartition("_")[2]) for path in steps), default=0)

    def saves_another(self, timeout_s: float = 240.0) -> None:
        """Wait until a step is saved that is not saved yet."""
        before = self.saved
        until(lambda: self.saved > before, timeout_s, self.told)

    def waits_for_attempt(self, number: int, timeout_s: float = 240.0) -> None:
        until(lambda: len(self.attempts) >= number, timeout_s, self.told)

    def told(self) -> str:
        return f"{self.records}\n{self.lab.runs.log(NAME)[-3000:]}"

    def safe_step(self) -> int:
        """The newest one that two nodes have had."""
        found = re.findall(r"step (\d+): two nodes have it now", self.lab.runs.logs(NAME))
        return max(map(int, found), default=0)

    def is_undisturbed(self) -> bool:
        """Whether its first attempt still runs, on the first start of its cluster."""
        return self.lab.runs.attempts(NAME) == 1 and [each["verdict"] for each in self.attempts] == [None]


def limit_disk(host: Host, size: str) -> None:
    done = host.run("mount", "-o", f"remount,size={size}", CHECKPOINTS)
    assert done.returncode == 0, done.stderr


def fill_disk(host: Host) -> None:
    """Leave room for half of a save at most; does nothing where the job writes more meanwhile."""
    disk = os.statvfs(host.path(CHECKPOINTS))
    if disk.f_bfree * disk.f_frsize > HALF_A_SAVE:
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        host.run("mount", "-o", f"remount,size={used + HALF_A_SAVE}", CHECKPOINTS)


def steps_in(log: str) -> list[int]:
    return [step.step for step in map(parse_step, log.splitlines()) if isinstance(step, Step) and step.step]


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    """It has saved its first step."""
    lab = start_or_skip(Lab(hosts=3))
    try:
        for host in lab.hosts:
            host.run("mkdir", "-p", CHECKPOINTS)
            host.run("mount", "-t", "tmpfs", "-o", f"size={DISK}", "checkpoints", CHECKPOINTS)
        lab.create_fleet("own")
        user = User(lab)
        user.up(NAME, "own", *FILES)
        words = ("--cluster", NAME, "--submission-id", NAME, "--name", NAME, "--no-wait", "--steps", str(STEPS))
        user.types("cloudrl", "submit", "grpo-tiny", *MODEL, *words, f"trainer.save_freq={EVERY}")
        made = Training(user)
        made.saves_another(900)
        yield made
    finally:
        lab.stop()


def test_it_trains_on_while_the_server_is_away(training: Training) -> None:
    server = training.lab.server
    server.stop()
    try:
        training.saves_another()
    finally:
        server.start()
    training.user.wait_ready(NAME)
    assert training.is_undisturbed()


def test_it_trains_on_while_its_user_cannot_reach_it(training: Training) -> None:
    """The routes to its hosts are gone, for tunnels of the client and of the server; the hosts see each other."""
    lab, user = training.lab, training.user
    follower = lab.popen("cloudrl", "jobs", "logs", "-f", NAME, "--cluster", NAME)
    hosts = user.hosts_of(NAME)
    try:
        until(lambda: steps_in(follower.output), 60, lambda: follower.output)
        lab.server.be_patient(True)  # the stock server's patience is two minutes, that of the tests 15 s
        for host in hosts:
            assert lab.run("ip", "route", "add", "blackhole", host.address).returncode == 0
        time.sleep(CUT_S)  # of the real clock: ssh's keep-alives are what is tested
        training.saves_another()
        silent = steps_in(follower.output)[-1]
        for host in hosts:
            assert lab.run("ip", "route", "del", "blackhole", host.address).returncode == 0
        until(lambda: steps_in(follower.output)[-1] > silent + EVERY, 120, lambda: follower.output[-500:])
        followed = steps_in(follower.output)
        assert followed == list(range(followed[0], followed[-1] + 1)), "each step once"
        assert "connection lost, trying again" in follower.output
    finally:
        lab.server.be_patient(False)
        follower.close()
    user.wait_ready(NAME)
    assert training.is_undisturbed()


def test_it_goes_on_once_a_full_disk_has_room(training: Training) -> None:
    user, job = training.user, ("--cluster", NAME)
    _, worker = user.hosts_of(NAME)

    def waits_for_room() -> bool:
        fill_disk(worker)  # again: agents remove copies that are old
        return any(record["waits_for"].startswith("the disk of rank 1") for record in training.records.values())

    until(waits_for_room, 300, training.told)
    listed = " ".join(user.types("cloudrl", "jobs", "list", *job).stdout.split())
    assert "; make room" in listed
    assert len(training.attempts) == 1, "an attempt that starts meanwhile would find the disk full again"
    limit_disk(worker, DISK)
    training.waits_for_attempt(2)
    training.saves_another()
    assert "a disk was full" in user.types("cloudrl", "jobs", "status", f"{NAME}-2", *job).stdout
    first, second = training.attempts
    assert first["verdict"] == "infrastructure"
    assert second["from_step"] >= first["saved_step"], "what was saved before is not trained again"


def test_it_goes_on_after_the_host_of_its_head_is_lost(training: Training) -> None:
    """With it go the driver, Ray's head, the supervisor of the job and half of each step, for good."""
    user, begun = training.user, len(training.attempts)
    head, safe_step = user.hosts_of(NAME)[0], training.safe_step()
    assert safe_step > 0
    head.kill()
    training.waits_for_attempt(begun + 1, 600)
    until(lambda: any(record["outcome"] for record in training.records.values()), 1200, training.told)
    until(lambda: len({json.dumps(each) for each in training.records.values()}) == 1, 60, training.told)
    record, other = training.records.values()
    assert record == other, "both machines remember it alike"
    assert record["outcome"]["result"] == "succeeded"
    lost, last = record["attempts"][-2:]
    assert lost["verdict"] == "infrastructure"
    assert last["from_step"] >= safe_step, "the step that was safe is not trained again"

    logged = user.types("cloudrl", "jobs", "logs", last["submission_id"], "--cluster", NAME, "--json").stdout
    events = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
    trained = [event["step"] for event in events if event["event"] == "step"]
    assert trained == list(range(last["from_step"] + 1, STEPS + 1)), "each step once, to the last"
    listed = user.types("cloudrl", "checkpoints", "list", "--cluster", NAME).stdout
    assert re.search(rf"^{NAME} +{STEPS} .*complete", listed, re.MULTILINE), listed
    print(user.types("cloudrl", "jobs", "status", last["submission_id"], "--cluster", NAME).stdout)
