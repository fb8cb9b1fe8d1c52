"""Real verl on a real two-node Ray cluster: PPO with a critic, resume, and what a user does around it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

NAME = "train"


@pytest.fixture(scope="module")
def cluster(shell):
    shell.run("up", NAME, "--nodes", "2")
    return shell.home / "home" / "clusters" / NAME


def test_status_shows_both_nodes(shell, cluster):
    look = json.loads(shell.run("status", NAME, "--json").stdout)
    assert [(node["rank"], node["ray_up"], node["fetched"]) for node in look["nodes"]] == [
        (0, True, True),
        (1, True, True),
    ]


def test_raw_ray_works_with_what_env_prints(shell, cluster):
    ray = Path(sys.executable).parent / "ray"
    script = (
        f'eval "$({Path(sys.executable).parent / "cloudrl"} env)"; {ray} job submit -- echo hello from ray'
    )
    done = subprocess.run(["bash", "-c", script], env=shell.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "hello from ray" in done.stdout


def test_ppo_with_a_critic_saves_both_models_and_resumes(shell, cluster):
    done = shell.run("submit", "ppo-tiny", "--name", "ppo", "--steps", "2", "trainer.save_freq=1")
    assert "step 2/2" in done.stderr
    folder = cluster / "checkpoints" / "ppo"
    for model in ("actor", "critic"):
        names = {path.name for path in (folder / "global_step_2" / model).glob("*.pt")}
        assert names >= {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)}

    again = shell.run("submit", "ppo-tiny", "--name", "ppo", "--steps", "3", "trainer.save_freq=1")
    assert "run 'ppo' continues from step 2" in again.stderr
    steps = [line.split()[1] for line in again.stderr.splitlines() if line.startswith("step ")]
    assert steps == ["3/3"], "it went on where it stopped"
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "3"


def test_ten_lines_of_python(shell, cluster):
    program = """
import cloudrl
cluster = cloudrl.Cluster(name="python", nodes=1, data=["addition"], models=["tiny-qwen2"])
assert "nodes: 1" in cluster.to_dstack()
with cluster.up(on="local") as ray:
    job = ray.submit(cloudrl.recipe("grpo-tiny"), steps=2)
    events = list(job.follow())
print(events[-1].status, max(event.step for event in events if hasattr(event, "step_s")))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=shell.env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["SUCCEEDED", "2"]


def test_down_asks_nobody_when_told_so_and_leaves_the_checkpoints(shell, cluster):
    shell.run("down", NAME, "-y")
    assert shell.leftovers() == []
    assert list(cluster.glob("checkpoints/ppo/global_step_3/actor/*.pt"))
    assert shell.run("status", NAME).stdout.strip() == f"{NAME} on local: down"
