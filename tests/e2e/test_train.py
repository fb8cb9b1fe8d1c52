"""Real verl from Python: PPO with a critic on a real two-node Ray cluster, and a run that goes on where it stopped."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

PROGRAM = """
import cloudrl
cluster = cloudrl.Cluster(name="python", nodes=2, data=["addition"], models=["tiny-qwen2"])
assert "nodes: 2" in cluster.to_dstack()
with cluster.up(on="local") as ray:
    for steps in (2, 3):
        job = ray.submit("ppo-tiny", {"trainer.save_freq": 1}, name="ppo", steps=steps, model="tiny-qwen2")
        events = list(job.follow())
        print(events[-1].status, *(event.step for event in events if hasattr(event, "eta_s")))
"""


def test_a_program_trains_saves_both_models_and_resumes(shell):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=shell.env,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["SUCCEEDED 1 2", "SUCCEEDED 3"]

    folder = shell.home / "home" / "clusters" / "python" / "checkpoints" / "ppo"
    for step in (2, 3):
        for model in ("actor", "critic"):
            names = {path.name for path in (folder / f"global_step_{step}" / model).glob("*.pt")}
            assert names >= {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)}
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert shell.leftovers() == []
