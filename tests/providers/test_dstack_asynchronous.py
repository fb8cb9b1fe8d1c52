"""Trainings on hosts that share no folder, of which some train: a resume finds what each of them has saved."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from dstack_hosts.user import FILES, MODEL, User

pytestmark = [pytest.mark.dstack, pytest.mark.ray, pytest.mark.slow]

CHECKPOINTS = "/var/lib/cloudrl/checkpoints"
PROMPTS = 8  # a batch of the tiny recipes
OF_THE_CONTROLLER = {"data.pt", "transfer_queue"}


@pytest.fixture(scope="module")
def three(user: User) -> Iterator[str]:
    """A READY cluster of three nodes, the whole fleet."""
    assert "READY: three with 3 nodes" in user.up("three", "mine", *FILES, nodes=3)
    yield "three"
    user.types("cloudrl", "down", "three", "-y")


def saved(user: User, cluster: str, run: str, step: int) -> list[set[str]]:
    """Files and folders of a save on each host, by rank; those of a shard by name."""
    folders = [host.path(CHECKPOINTS) / run / f"global_step_{step}" for host in user.hosts_of(cluster)]
    shards = [{path.name for path in folder.glob("actor/model_world_size_*.pt")} for folder in folders]
    return [
        {path.name for path in folder.glob("*")} - {"actor"} | found
        for folder, found in zip(folders, shards, strict=True)
    ]


def restored(user: User, cluster: str, submission_id: str) -> list[int]:
    """Prompts that the job says it has taken up from a save."""
    said = user.types("cloudrl", "jobs", "logs", submission_id, "--cluster", cluster).stdout
    return [int(count) for count in re.findall(r"Restored (\d+) training prompt groups", said)]


@pytest.mark.parametrize(
    ("recipe", "words", "world_size", "in_flight"),
    [
        pytest.param("grpo-tiny", ("trainer.nnodes=2",), 2, [], id="sync"),
        pytest.param("grpo-tiny", ("--async", "trainer.nnodes=2"), 2, [PROMPTS], id="colocate"),
        pytest.param("grpo-rollout-nodes-tiny", (), 1, [PROMPTS], id="separate"),
    ],
)
def test_a_run_is_saved_resumed_and_merged(
    user: User, three: str, recipe: str, words: tuple[str, ...], world_size: int, in_flight: list[int]
) -> None:
    run = f"{recipe}{len(words)}"
    # the agents of a durable job would copy each shard to another disk
    typed = ("submit", recipe, *words, *MODEL, "--no-durable", "--name", run, "--cluster", three)
    user.types("cloudrl", *typed, "--steps", "1", timeout_s=500)
    placed = saved(user, three, run, 1)
    on_head, *on_workers = placed
    assert on_head >= {"data.pt", *(["transfer_queue"] if in_flight else [])}
    assert not OF_THE_CONTROLLER & set.union(*on_workers)
    shards = [files - OF_THE_CONTROLLER for files in placed]
    names = sorted(f"model_world_size_{world_size}_rank_{rank}.pt" for rank in range(world_size))
    assert sorted(name for files in shards for name in files) == names
    assert max(map(len, shards)) == 1, "each on a node of its own"
    tracker = "latest_checkpointed_iteration.txt"
    has_tracker = [(host.path(CHECKPOINTS) / run / tracker).exists() for host in user.hosts_of(three)]
    assert has_tracker == [True, False, False]

    again = user.types("cloudrl", *typed, "--steps", "2", "--submission-id", f"{run}-again", timeout_s=500)
    assert f"run '{run}' continues from step 1 of 2\n" in again.stdout
    assert "begins anew" not in again.stdout
    assert [line.split()[1] for line in again.stdout.splitlines() if line.startswith("step ")] == ["2/2"]
    assert restored(user, three, f"{run}-again") == in_flight
    assert saved(user, three, run, 2) == placed

    target = user.lab.home / f"{run}-merged"
    merge = ("checkpoints", "merge", "latest", "--name", run, "--cluster", three, "--to", str(target))
    assert "merging step 2" in user.types("cloudrl", *merge).stdout
    assert json.loads((target / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    assert Path(target / "model.safetensors").stat().st_size > 200_000
