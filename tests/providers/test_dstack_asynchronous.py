"""Trainings on two hosts that share no folder: what verl writes in one place is on the head, also for a resume."""

import json
import re
from pathlib import Path

import pytest
from dstack_hosts.user import MODEL, User

pytestmark = [pytest.mark.dstack, pytest.mark.ray, pytest.mark.slow]

CHECKPOINTS = "/var/lib/cloudrl/checkpoints"
PROMPTS = 8  # a batch of the tiny recipes


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
        pytest.param("grpo-tiny", (), 2, [], id="sync"),
        pytest.param("grpo-tiny", ("--async",), 2, [PROMPTS], id="colocate"),
        pytest.param("grpo-rollout-nodes-tiny", (), 1, [PROMPTS], id="separate"),
    ],
)
def test_a_run_is_saved_resumed_and_merged(
    user: User, first: str, recipe: str, words: tuple[str, ...], world_size: int, in_flight: list[int]
) -> None:
    run = f"{recipe}{len(words)}"
    typed = ("submit", recipe, *words, *MODEL, "--name", run, "--cluster", first)
    user.types("cloudrl", *typed, "--steps", "2", timeout_s=500)
    queue = {"transfer_queue"} if in_flight else set()
    placed = saved(user, first, run, 2)
    on_head, on_worker = placed
    assert on_head >= {"data.pt", *queue}
    assert not on_worker & {"data.pt", "transfer_queue"}
    shards = {f"model_world_size_{world_size}_rank_{rank}.pt" for rank in range(world_size)}
    assert (on_head | on_worker) - {"data.pt", "transfer_queue"} == shards
    tracker = "latest_checkpointed_iteration.txt"
    assert [(host.path(CHECKPOINTS) / run / tracker).exists() for host in user.hosts_of(first)] == [True, False]

    again = user.types("cloudrl", *typed, "--steps", "3", "--submission-id", f"{run}-again", timeout_s=500)
    assert f"run '{run}' continues from {'step 2' if world_size == 2 else 'the newest checkpoint'}" in again.stdout
    assert [line.split()[1] for line in again.stdout.splitlines() if line.startswith("step ")] == ["3/3"]
    assert restored(user, first, f"{run}-again") == in_flight
    assert saved(user, first, run, 3) == placed

    target = user.lab.home / f"{run}-merged"
    merge = ("checkpoints", "merge", "latest", "--name", run, "--cluster", first, "--to", str(target))
    assert "merging step 3" in user.types("cloudrl", *merge).stdout
    assert json.loads((target / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]
    assert Path(target / "model.safetensors").stat().st_size > 200_000
