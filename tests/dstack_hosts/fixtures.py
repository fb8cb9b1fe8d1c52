"""What tests need of a lab. `tests/conftest.py` offers `dstack_lab` to all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .lab import Lab, LabUnavailable
from .runs import until
from .standin.config import ImageConfig
from .user import FILES, User

MISSING_IMAGE = "nowhere/nothing:1"  # cannot be pulled on the shared lab's hosts
NOT_THERE = ImageConfig(pull_error=f"manifest for {MISSING_IMAGE} not found: manifest unknown: manifest unknown")


def start_or_skip(lab: Lab) -> Lab:
    """Start a lab; where the machine cannot, skip the test with the reason, or fail in a CI that runs as root."""
    try:
        lab.start()
    except LabUnavailable as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))
    return lab


@pytest.fixture(scope="session")
def dstack_lab() -> Iterator[Lab]:
    """Six stand-in hosts and the real dstack server with short intervals, one for all tests. Fleets: none.

    The last host says to have eight GPUs.
    """
    settings = {"DSTACK_SERVER_LOG_QUOTA_PER_JOB_HOUR": "5000000"}  # a tenth of dstack's own
    own = {"gpus": {"cpus": 32, "gpus": 8}}
    lab = start_or_skip(Lab(hosts=5, images={MISSING_IMAGE: NOT_THERE}, settings=settings, own=own))
    try:
        yield lab
    finally:
        lab.stop()


@pytest.fixture(scope="session")
def dstack_pair(dstack_lab: Lab) -> Lab:
    """The lab with an idle fleet "pair" of the hosts 0 and 1."""
    dstack_lab.create_fleet("pair", (0, 1))
    return dstack_lab


@pytest.fixture(scope="session")
def user(dstack_lab: Lab) -> Iterator[User]:
    """A user of the lab, with a fleet "mine" of the hosts 2, 3 and 4, made by `cloudrl fleet create`."""
    typist = User(dstack_lab)
    done = typist.types("cloudrl", "fleet", "create", "mine", *fleet_words(dstack_lab), "-y")
    assert "fleet mine: 3 machines ready" in done.stdout
    yield typist
    typist.types("cloudrl", "fleet", "delete", "mine", "-y")


@pytest.fixture(scope="session")
def first(user: User) -> Iterator[str]:
    """A READY cluster of two nodes in the fleet "mine", by `cloudrl up`; the third host is spare."""
    assert "READY: first with 2 nodes" in user.up("first", "mine", *FILES)
    yield "first"
    user.types("cloudrl", "down", "first", "-y")
    left = [process for host in user.lab.hosts[2:] for process in host.processes(containers_only=True)]
    assert not left

    def daemons() -> str:
        return user.lab.run("pgrep", "-f", "cloudrl.transport.tunnel_daemon").stdout

    until(lambda: not daemons(), 20, daemons)  # the last one may be on its way out


def fleet_words(lab: Lab) -> list[str]:
    """The options of `cloudrl fleet create` for the hosts 2, 3 and 4."""
    names = [word for host in lab.hosts[2:5] for word in ("--ssh-host", host.address)]
    return [*names, "--ssh-user", "root", "--ssh-key", str(lab.fleet_key)]
