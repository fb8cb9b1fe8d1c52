"""`cloudrl demo`: what a newcomer runs first."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def test_demo_trains_on_two_nodes_and_cleans_up(shell):
    done = shell.run("demo")

    before, after = map(float, re.search(r"accuracy +(\S+) -> (\S+)", done.stdout).groups())
    assert before < 0.35
    assert after > 0.6
    folder = re.search(r"checkpoint (\S+)", done.stdout)[1]
    assert folder.startswith(str(shell.home))
    names = {path.name for path in shell.home.glob("home/clusters/demo/checkpoints/*/global_step_20/actor/*.pt")}
    assert names >= {f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)}
    model = Path(re.search(r"model +(\S+)", done.stdout)[1])
    assert (model / "model.safetensors").stat().st_size > 200_000
    assert len(re.findall(r"^ +(\d+\+\d+=)\S* -> \1\S*$", done.stdout, re.MULTILINE)) == 3
    assert shell.leftovers() == []
    assert shell.temporary_files() == []
    assert "step 20/20" in done.stderr
    assert any("step:20 - " in line for line in shell.driver_log("demo")), "the job's log outlives the cluster"
    beside = {path.name for path in shell.home.iterdir()}
    assert beside == {"home", "tmp"}, "verl and Ray leave nothing in the folder where it was called"
