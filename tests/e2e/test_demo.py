"""`cloudrl demo`: what a newcomer runs first."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def test_demo_trains_on_two_nodes_and_cleans_up(shell):
    done = shell.run("demo")

    first, last = map(float, re.search(r"reward +(\S+) -> (\S+)", done.stdout).groups())
    assert last - first >= 0.15
    folder = re.search(r"checkpoint (\S+)", done.stdout)[1]
    assert folder.startswith(str(shell.home))
    names = {
        path.name for path in shell.home.glob("home/clusters/demo/checkpoints/*/global_step_16/actor/*.pt")
    }
    assert names >= {f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)}
    model = Path(re.search(r"model +(\S+)", done.stdout)[1])
    assert (model / "model.safetensors").stat().st_size > 200_000
    answers = re.findall(r"^ +(\d+) \+ (\d+) = (\S+)$", done.stdout, re.MULTILINE)
    assert len(answers) == 3
    assert all(answer.isdecimal() for _, _, answer in answers), "it has learned to answer with a number"
    assert shell.leftovers() == []
    assert shell.temporary_files() == []
    assert "step 16/16" in done.stderr
    logs = list(shell.home.glob("home/clusters/demo/node-0/jobs/job-driver-*.log"))
    assert len(logs) == 1, "the job's log outlives the cluster"
    beside = {path.name for path in shell.home.iterdir()}
    assert beside == {"home", "tmp"}, "verl and Ray leave nothing in the folder where it was called"
