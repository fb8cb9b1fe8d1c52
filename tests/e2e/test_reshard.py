"""A run of two ranks goes on with one, and with four, after its step was cut anew: unmodified verl loads it."""

from pathlib import Path

import pytest

from cloudrl.verl.metrics import parse_step

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TINY = ("--data", "addition", "--model", "tiny-adder")
JOB = ("grpo-tiny", "--name", "sums", "trainer.save_freq=2")


@pytest.fixture(scope="module")
def saved(shell) -> Path:
    """The checkpoints of a run of two ranks, two steps long."""
    shell.run("up", "two", "--on", "local", "--nodes", "2", *TINY)
    shell.run("submit", *JOB, "--steps", "2", "--cluster", "two")
    shell.run("down", "two", "-y")
    return Path(shell.home) / "home" / "clusters" / "two" / "checkpoints" / "sums" / "global_step_2"


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_run_goes_on_with_another_number_of_ranks(saved: Path, shell, nodes: int) -> None:
    name = f"of-{nodes}"
    target = Path(shell.home) / "home" / "clusters" / name / "checkpoints" / "sums"
    shell.run("checkpoints", "reshard", "--dir", str(saved), "--world-size", str(nodes), "--to", str(target))
    shell.run("up", name, "--on", "local", "--nodes", str(nodes), *TINY)

    shell.run("submit", *JOB, "--steps", "4", "--cluster", name)

    steps = [step for step in map(parse_step, shell.driver_log(name)) if step is not None]
    assert [step.step for step in steps] == [3, 4]
    assert (target / "global_step_4" / "actor" / f"optim_world_size_{nodes}_rank_{nodes - 1}.pt").exists()
    shell.run("down", name, "-y")
