"""`cloudrl run search-tiny`: a model learns to search, on two nodes with a retrieval server each."""

import json
import os
import urllib.request

import psutil
import pytest
from patience import SLOWER

from cloudrl.providers.local import processes
from cloudrl.verl.metrics import Step, parse_step

pytestmark = pytest.mark.e2e

HELD_OUT = "val-core/cloudrl/capitals/acc/mean@1"
STEPS, LIMIT_S = (20, 480) if os.environ.get("CLOUDRL_SLOW") == "1" else (12, 360)
"""All steps of the recipe, or as many as it takes to see what it learns; and how much CPU time they may take."""


@pytest.fixture(scope="module")
def seen(shell) -> tuple[list[int], float, list[Step]]:
    """How many searches each server has answered, the CPU time of all processes, and what verl has reported."""
    shell.run("run", "search-tiny", "--steps", str(STEPS), "--on", "local", "--keep", "-y")
    [state] = shell.states()
    searches = [answered(port) for port in state["service_ports"]]
    used_s = sum(map(cpu_s, processes.of_cluster(str(state["id"]))))
    shell.run("down", str(state["name"]), "-y")
    steps = map(parse_step, shell.driver_log(str(state["name"])))
    return searches, used_s, [step for step in steps if step is not None]


def cpu_s(pid: int) -> float:
    """The CPU time of a process and of those that it has waited for; 0 where it has ended meanwhile."""
    try:
        return sum(psutil.Process(pid).cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0.0


def answered(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30 * SLOWER) as answer:
        return json.load(answer)["requests"]["answered"]


def test_the_reward_rises(seen):
    rewards = [step.reward for step in seen[2] if step.reward is not None]
    assert len(rewards) == STEPS
    assert sum(rewards[-4:]) / 4 - sum(rewards[:4]) / 4 >= 0.2


def test_it_answers_questions_that_it_was_not_trained_on_by_searching(seen):
    before, after = (step.metrics for step in seen[2] if HELD_OUT in step.metrics)
    assert after[HELD_OUT] - before[HELD_OUT] >= 0.3
    assert after["val-aux/num_turns/mean"] - before["val-aux/num_turns/mean"] >= 1, "with a search there are four turns"


def test_the_server_of_each_node_was_asked(seen):
    searches = seen[0]
    assert len(searches) == 2
    assert min(searches) > 100


def test_it_takes_some_minutes(seen):
    """Of CPU time, which does not depend on what else runs: two cores take about half of it."""
    assert seen[1] < LIMIT_S
