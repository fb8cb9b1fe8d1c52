"""verl's asynchronous modes on two local nodes: they train, save, resume with prompts in flight, and merge."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from child_processes import until
from drivers import driver

from cloudrl.verl.metrics import Step, parse_step

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STALENESS = "training/off_policy/trajectory_staleness/max"
TINY = ("--data", "addition", "--model", "tiny-adder")
SEPARATE = ("grpo-rollout-nodes-tiny", "trainer.save_freq=2")
SAVED = 2
COLOCATED = ("grpo-tiny", "--async", "--name", "colocated", "trainer.save_freq=2")


@pytest.fixture(scope="module")
def log(shell) -> list[str]:
    """What three jobs print: a rollout with a node of its own, the same resumed, and one that shares all nodes."""
    shell.run("up", "two", "--on", "local", "--nodes", "2", *TINY)
    twice = ((*SEPARATE, "--name", "separate", "--steps", number) for number in ("2", "4"))
    for words in (*twice, (*COLOCATED, "--steps", "4")):
        shell.run("submit", *words, "--cluster", "two")
    shell.run("checkpoints", "merge", "--cluster", "two", "--name", "separate", "--to", "model")
    return shell.driver_log("two")


def steps(log: list[str]) -> list[Step]:
    return [step for step in map(parse_step, log) if step is not None]


def test_all_steps_are_trained(log: list[str]) -> None:
    assert [step.step for step in steps(log)] == [1, 2, 3, 4, 1, 2, 3, 4]


def test_answers_come_from_older_weights(log: list[str]) -> None:
    ages = [step.metrics.get(STALENESS, 0.0) for step in steps(log)]
    assert max(ages[:4]) >= 1
    assert max(ages[4:]) >= 1


def test_a_resume_takes_up_the_prompts_that_were_in_flight(log: list[str]) -> None:
    restored = [int(found[1]) for line in log if (found := re.search(r"Restored (\d+) training prompt groups", line))]
    assert restored == [8]  # a batch of prompts is under way


def test_what_was_saved_merges(log: list[str], shell) -> None:
    assert log
    config = json.loads((Path(shell.home) / "model" / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (Path(shell.home) / "model" / "model.safetensors").stat().st_size > 200_000


@pytest.fixture(scope="module")
def lasting(log: list[str], shell) -> tuple[dict[str, Any], list[str]]:
    """The record of a durable job whose driver was killed, and what its attempts have printed."""
    assert log
    shell.run("submit", *SEPARATE, "--name", "lasting", "--steps", "5", "--durable", "--no-wait", "--cluster", "two")
    folder = Path(shell.home) / "home" / "clusters" / "two" / "checkpoints"
    tracker = folder / "lasting" / "latest_checkpointed_iteration.txt"
    until(tracker.exists, f"step {SAVED} is saved", timeout_s=300.0)
    os.kill(driver("experiment_name=lasting"), signal.SIGKILL)
    [record] = (folder / ".cloudrl" / "jobs").glob("lasting-*.json")
    shell.run("jobs", "logs", "-f", record.stem, "--cluster", "two")
    return json.loads(record.read_bytes()), shell.driver_log("two")[len(log) :]


def test_a_durable_job_goes_on_with_its_prompts_in_flight(lasting: tuple[dict[str, Any], list[str]]) -> None:
    job, printed = lasting
    first, second = job["attempts"]
    assert (first["verdict"], second["verdict"]) == ("infrastructure", "succeeded")
    assert second["from_step"] >= SAVED
    assert job["outcome"]["result"] == "succeeded"
    assert [step.step for step in steps(printed)][-1] == 5
    assert sum("Restored 8 training prompt groups" in line for line in printed) == 1
