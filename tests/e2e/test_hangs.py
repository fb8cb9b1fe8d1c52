"""Hangs planted in a real training on two nodes: each is found, with its phase, rank and frame."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import SLOWER

from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.job_phases import Grade, Hang, JobState
from cloudrl.sdk.running import attach

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME, JOB = "hangs", "one"
REWARD = """
import os, socket, time

def _wait(plant):
    while os.path.exists(plant):
        time.sleep(0.5)

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    _wait("PLANT")
    return float(solution_str.strip() == ground_truth)
"""
TOLD_S = 120.0


@pytest.fixture(scope="module")
def plant(shell) -> Path:
    return shell.home / "plant"


@pytest.fixture(scope="module")
def agent(shell, plant: Path) -> Iterator[AgentClient]:
    """A cluster with a training that goes on for ever, unless something holds it up."""
    (shell.home / "reward.py").write_text(REWARD.replace("PLANT", str(plant)))
    shell.run("up", NAME, "--on", "local", "--nodes", "2", "--data", "addition", "--model", "tiny-adder")
    own = ("--submission-id", JOB, "--no-wait", "--steps", "100000", "--reward", "reward.py:compute_score")
    shell.run("submit", "grpo-tiny", "--cluster", NAME, *own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDRL_HOME", str(shell.home / "home"))
        connected = attach(NAME).connection.agent()
    assert connected is not None
    wait_for(connected, lambda state: (state.step or 0) >= 5, 400)
    yield connected
    plant.unlink(missing_ok=True)


def wait_for(agent: AgentClient, is_so: Callable[[JobState], bool], limit_s: float) -> JobState:
    deadline = time.monotonic() + limit_s * SLOWER
    while True:
        state = agent.status().job
        if state is not None and is_so(state):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(1)


def hang_of(agent: AgentClient) -> Hang:
    hang = wait_for(agent, lambda state: state.hang is not None and bool(state.hang.blame), TOLD_S).hang
    assert hang is not None
    return hang


def goes_on(agent: AgentClient) -> None:
    step = wait_for(agent, lambda state: state.step is not None, 60).step
    after = wait_for(agent, lambda state: state.step is not None and state.step > (step or 0) + 1, 120)
    assert after.hang is None


def test_a_reward_function_that_does_not_return(shell, agent: AgentClient, plant: Path):
    plant.write_text("")
    hang = hang_of(agent)
    state = agent.status().job
    assert state is not None
    assert state.phase in ("gen", "testing")
    assert {(blame.actor, blame.frame.split(":")[0]) for blame in hang.blame} == {
        ("RewardLoopWorker", "_wait (reward.py")
    }
    said = shell.run("why", JOB, "--cluster", NAME).stdout
    assert "RewardLoopWorker" in said
    assert "_wait (reward.py:" in said
    assert "_wait" in shell.run("why", JOB, "--cluster", NAME, "--stacks").stdout
    plant.unlink()
    goes_on(agent)


def test_a_rank_that_was_stopped(agent: AgentClient):
    workers = [process for process in agent.look(1) if process.title.startswith("ray::WorkerDict")]
    os.kill(workers[0].pid, signal.SIGSTOP)
    try:
        hang = hang_of(agent)
        assert hang.grade is Grade.PROOF
        assert (hang.blame[0].pid, hang.blame[0].actor) == (workers[0].pid, "WorkerDict")
        assert hang.blame[0].reason.startswith("is stopped")
    finally:
        os.kill(workers[0].pid, signal.SIGCONT)
    goes_on(agent)


def test_a_stop_of_40_seconds_is_no_hang(agent: AgentClient):
    [process, *_] = [process for process in agent.look(0) if process.title.startswith("ray::WorkerDict")]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(40)
        state = agent.status().job
        assert state is not None
        assert state.hang is None or state.hang.grade is Grade.SUSPECTED
    finally:
        os.kill(process.pid, signal.SIGCONT)
    goes_on(agent)
