"""A real training over two nodes goes on over one and over four, from a step that was cut anew."""

import json

import pytest

from cloudrl.verl.metrics import parse_step

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TINY = ("--data", "addition", "--model", "tiny-adder")
JOB = ("grpo-tiny", "--name", "sums", "trainer.save_freq=1")


@pytest.fixture(scope="module")
def saved(shell) -> None:
    """Step 2 of a run over two ranks."""
    shell.run("up", "two", "--on", "local", "--nodes", "2", *TINY)
    shell.run("submit", *JOB, "--steps", "2", "--cluster", "two")
    shell.run("down", "two", "-y")


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_next_step_is_the_third(saved: None, shell, nodes: int) -> None:
    del saved
    name = f"of-{nodes}"
    run = shell.home / "home" / "clusters" / name / "checkpoints" / "sums"
    shell.run("up", name, "--on", "local", "--nodes", str(nodes), *TINY)
    words = ("--cluster", "two", "--name", "sums", "--world-size", str(nodes), "--to", str(run), "--json")
    done = json.loads(shell.run("checkpoints", "reshard", "2", *words).stdout)
    assert (done["step"], done["was"], done["world_size"]) == (2, 2, nodes)
    shell.run("submit", *JOB, "--steps", "4", "--cluster", name)
    steps = [step for step in map(parse_step, shell.driver_log(name)) if step is not None]
    assert [step.step for step in steps] == [3, 4]
    assert shell.run("checkpoints", "verify", "4", "--cluster", name).returncode == 0
    shell.run("down", name, "-y")
