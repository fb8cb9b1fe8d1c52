"""A durable job on dstack: its cluster ends before `max_duration`, and then loses a host with its disk."""

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
TRAINS = """
import ray, sys, time, zipfile
from pathlib import Path

given = dict(word.split("=", 1) for word in sys.argv if "=" in word)
run = Path(given["trainer.default_local_dir"])
begin = int(given.get("trainer.resume_from_path", "_0").rpartition("_")[2])
KINDS = ("model", "optim", "extra_state")

def files(step, rank):
    return [run / f"global_step_{step}/actor/{kind}_world_size_2_rank_{rank}.pt" for kind in KINDS]

@ray.remote(num_cpus=0)
def load(rank):
    assert all(zipfile.ZipFile(path).read("data.pkl") == f"{begin} of {rank}".encode() for path in files(begin, rank))

@ray.remote(num_cpus=0)
def save(step, rank):
    for path in files(step, rank):
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.pkl", f"{step} of {rank}")
    if rank == 0:
        (path.parent / "huggingface").mkdir(exist_ok=True)
        (path.parent / "huggingface/config.json").write_text("{}")

ray.init(log_to_driver=False)
nodes = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])  # as verl counts its ranks

def on_all(work, *given):
    at = lambda rank: work.options(resources={f"node:{nodes[rank]}": 0.001})
    ray.get([at(rank).remote(*given, rank) for rank in range(2)])

if begin:
    on_all(load)
for step in range(begin + 1, int(given["trainer.total_training_steps"]) + 1):
    time.sleep(4)
    on_all(save, step)
    (run / f"global_step_{step}/data.pt").parent.mkdir(parents=True, exist_ok=True)
    (run / f"global_step_{step}/data.pt").write_bytes(b"x")
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
    print(f"step:{step} - reward:{step / 10}", flush=True)
"""
"""Saves as verl does, each rank on its own node's disk, and loads each file where its rank runs."""


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


def steps_of(user: User) -> list[int]:
    saved = [path.name for host in user.lab.hosts for path in host.path(JOURNAL).parents[2].glob("night/global_step_*")]
    return sorted({int(name.rpartition("_")[2]) for name in saved})


def test_it_goes_on_after_the_time_limit_and_after_a_host_is_lost(mine: User) -> None:
    lab = mine.lab
    mine.up("night", "own", "--set", "dstack.max_duration=180s", "--set", "dstack.retry=true")
    recipe = mine.recipe("night", f"exec({TRAINS!r})")  # an argument has no line breaks
    words = ("--cluster", "night", "--submission-id", "night", "--name", "night", "--durable", "--no-wait")
    said = mine.types("cloudrl", "submit", str(recipe), *words, "trainer.save_freq=1", "--steps", "1000").stdout
    assert "each start of the cluster lasts 3 min 00 s (max_duration)" in " ".join(said.split())
    told = lambda: f"{attempts_of(mine)}\n{lab.runs.log('night')[-3000:]}"  # noqa: E731

    until(lambda: len(attempts_of(mine)) == 2, 360, told)
    mine.wait_ready("night")
    assert (
        "this start may run for 3 min 00 s; the cluster starts again" in mine.types("cloudrl", "status", "night").stdout
    )
    first, second = attempts_of(mine)[:2]
    assert first["verdict"] == "infrastructure"
    assert int(str(second["from_step"])) > 0, told()

    newer = lambda: max(steps_of(mine)) >= int(str(second["from_step"])) + 4  # noqa: E731
    until(newer, 120, told)
    lost = mine.hosts_of("night")[1]
    lost.kill()
    until(lambda: len(attempts_of(mine)) == 3, 300, told)
    third = attempts_of(mine)[2]
    assert int(str(third["from_step"])) > int(str(second["from_step"])), told()
    until(lambda: max(steps_of(mine)) > int(str(third["from_step"])), 120, told)
    assert lost not in mine.hosts_of("night")
    mine.types("cloudrl", "jobs", "stop", "night", "--cluster", "night", "-y")
    mine.types("cloudrl", "down", "night", "-y")
