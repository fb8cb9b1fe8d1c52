"""A durable job on dstack: its cluster ends itself before `max_duration`, and dstack starts it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dstack_hosts.fixtures import start_or_skip
from dstack_hosts.lab import Lab
from dstack_hosts.runs import until
from dstack_hosts.user import User

from cloudrl.foreign import parse_json

pytestmark = [pytest.mark.dstack, pytest.mark.ray, pytest.mark.slow]

JOURNAL = "/var/lib/cloudrl/checkpoints/.cloudrl/jobs/night.json"
LASTS = "import time; print('it runs', flush=True); time.sleep(900)"


@pytest.fixture(scope="module")
def mine() -> Iterator[User]:
    """A user of a lab with three hosts, one of which is spare."""
    lab = start_or_skip(Lab(hosts=3))
    try:
        lab.create_fleet("own")
        yield User(lab)
    finally:
        lab.stop()


def attempts_of(user: User) -> list[dict[str, object]]:
    """The job's attempts, as the disk that knows most of them remembers."""
    records = [host.path(JOURNAL) for host in user.lab.hosts]
    known = [parse_json(path.read_bytes())["attempts"] for path in records if path.exists()]
    return max(known, key=len, default=[])


def test_it_goes_on_after_the_time_of_its_cluster_is_up(mine: User) -> None:
    lab = mine.lab
    mine.up("night", "own", "--set", "dstack.max_duration=100s", "--set", "dstack.retry=true")
    recipe = mine.recipe("night", LASTS)
    words = ("--cluster", "night", "--submission-id", "night", "--name", "night", "--durable", "--no-wait")
    said = mine.types("cloudrl", "submit", str(recipe), *words, "trainer.save_freq=1", "--steps", "1000").stdout
    assert "each start of the cluster lasts 1 min 40 s (max_duration)" in " ".join(said.split())
    told = lambda: f"{attempts_of(mine)}\n{lab.runs.log('night')[-3000:]}"  # noqa: E731

    until(lambda: len(attempts_of(mine)) == 2, 240, told)
    mine.wait_ready("night")
    reason = "this start may run for 1 min 40 s; the cluster starts again"
    assert reason in mine.types("cloudrl", "status", "night").stdout
    assert attempts_of(mine)[0]["verdict"] == "infrastructure"
