"""Hangs planted in a real training on two nodes: each is found, with its phase, process and frame.

The eight of which the rules were made, and five that came later: a regular expression, a lock in the reward manager, a
tool, a data loader's worker, and an actor that no node has room for.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from planted_training import CODE, NAME, Training, start_training

from cloudrl.jobs import find_job
from cloudrl.protocol.job_phases import Grade

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

IN_ROLLOUT, IN_DATA = ("gen", "reward", "testing"), ("data", "step")
SLOW = pytest.mark.slow


@dataclass(frozen=True)
class Plant:
    """What is switched on, and what has to be said.

    Attributes:
        name: of the file that switches it on.
        actor: that is to blame.
        function: of the user's, in which it stands; "" for what has no frame.
        phases: one of them.
    """

    name: str
    actor: str
    function: str
    phases: tuple[str, ...]


REWARD = Plant("reward", "RewardLoopWorker", "_sleep", IN_ROLLOUT)
OF_ONE = [
    Plant("regular-expression", "RewardLoopWorker", "_match", IN_ROLLOUT),
    Plant("manager", "RewardLoopWorker", "_take_lock", IN_ROLLOUT),
    Plant("judge", "RewardLoopWorker", "", IN_ROLLOUT),
    Plant("tool", "AgentLoopWorker", "_call_tool", IN_ROLLOUT),
    Plant("data", "TaskRunner", "_sleep", IN_DATA),
    Plant("lock", "TaskRunner", "_take_lock", IN_DATA),
]
PIPE = Plant("pipe", "TaskRunner", "__getitem__", IN_DATA)


@pytest.fixture(scope="module")
def training(shell) -> Iterator[Training]:
    training = start_training(shell)
    yield training
    for plant in training.plants.iterdir():
        plant.unlink()


def check(training: Training, plant: Plant) -> None:
    """The warning names phase, process and frame."""
    state, hang = training.hang()
    assert state.phase in plant.phases
    blamed = {
        (blame.actor.removesuffix("V1").removesuffix("TQ"), blame.frame.partition(" ")[0]) for blame in hang.blame
    }
    assert (plant.actor, plant.function) in blamed
    assert all(f"({CODE}:" in blame.frame for blame in hang.blame if blame.frame)


def test_a_reward_function_that_does_not_return(training: Training):
    with training.plant(REWARD.name):
        check(training, REWARD)
        said = training.shell.run("why", "one", "--cluster", NAME).stdout
        assert "RewardLoopWorker" in said
        assert f"_sleep ({CODE}:" in said
        assert "_sleep" in training.shell.run("why", "one", "--cluster", NAME, "--stacks").stdout
    training.goes_on()


def test_a_rank_that_was_stopped(training: Training):
    workers = [process for process in training.agent.look(1) if process.title.startswith("ray::WorkerDict")]
    os.kill(workers[0].pid, signal.SIGSTOP)
    try:
        _, hang = training.hang()
        assert hang.grade is Grade.PROOF
        assert (hang.blame[0].pid, hang.blame[0].actor) == (workers[0].pid, "WorkerDict")
        assert hang.blame[0].reason.startswith("is stopped")
    finally:
        os.kill(workers[0].pid, signal.SIGCONT)
    training.goes_on()


@SLOW
def test_a_stop_of_40_seconds_is_no_hang(training: Training):
    [process, *_] = [process for process in training.agent.look(0) if process.title.startswith("ray::WorkerDict")]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(40)
        state = training.agent.status().job
        assert state is not None
        assert state.hang is None or state.hang.grade is Grade.SUSPECTED
    finally:
        os.kill(process.pid, signal.SIGCONT)
    training.goes_on()


@SLOW
@pytest.mark.parametrize("plant", OF_ONE, ids=lambda plant: plant.name)
def test_code_of_the_user_that_does_not_return(training: Training, plant: Plant):
    with training.plant(plant.name):
        check(training, plant)
    training.goes_on()


@SLOW
def test_a_save_onto_a_share_that_does_not_answer(training: Training):
    """A pipe without a reader stands for it."""
    state = training.wait_for(lambda state: (state.step or 0) > 10, 300)
    first = ((state.step or 0) // 10 + 1) * 10
    [root] = {path.parent for path in training.shell.home.glob("home/clusters/*/checkpoints/**/global_step_*")}
    with ExitStack() as stack:
        for step in range(first, first + 30, 10):
            folder = root / f"global_step_{step}" / "actor"
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(training.pipe(folder / "model_world_size_2_rank_1.pt"))
        training.wait_for(lambda state: state.phase == "save_checkpoint", 300)
        state, hang = training.hang()
        assert state.phase == "save_checkpoint"
        assert hang.blame[0].actor == "WorkerDict"
        assert "fsdp_checkpoint_manager.py" in hang.blame[0].frame
        assert hang.waiting.endswith("in barrier")
    training.goes_on()


def raw_job(training: Training, way: str) -> None:
    """A job that cloudrl would refuse beside a training."""
    script = Path(__file__).with_name("other_jobs.py")
    entrypoint = shlex.join([sys.executable, str(script), way])
    training.connection.ray().submit_job({"entrypoint": entrypoint, "submission_id": way})


@SLOW
def test_a_second_submission_is_refused_and_the_first_goes_on(training: Training):
    """It would end the queue of the first, which then hangs."""
    before = training.wait_for(lambda state: state.step is not None, 60).step or 0
    words = ("grpo-tiny", "--cluster", NAME, "--no-wait", "--steps", "5", "--name", "second")
    second = training.shell.run("submit", *words, check=False)
    assert second.returncode
    assert "job one is training on this cluster, and a second one would stop it" in " ".join(second.stderr.split())
    after = training.wait_for(lambda state: (state.step or 0) > before + 5, 240)
    assert (after.submission_id, after.hang) == (training.job, None)


@SLOW
def test_an_actor_that_no_node_has_room_for(training: Training):
    with training.plant("actor"):
        _, hang = training.hang()
        assert (hang.grade, hang.blame[0].actor) == (Grade.PROOF, "Judge")
        assert "no node has more than GPU 1" in hang.blame[0].reason
    training.goes_on()


@SLOW
def test_another_job_that_ends_the_queue(training: Training):
    raw_job(training, "queue")
    assert find_job(training.connection, "queue").wait(timeout_s=600) == "SUCCEEDED"
    _, hang = training.hang()
    assert hang.grade is Grade.PROOF
    assert hang.blame[0].actor == "TransferQueueController"
    assert "killed" in hang.blame[0].reason


@SLOW
def test_a_worker_of_the_data_loader(training: Training):
    training.submit("two", "data.dataloader_num_workers=1")
    with training.pipe(training.plants / PIPE.name):
        check(training, PIPE)
    training.goes_on()


@SLOW
def test_resources_that_another_job_holds(training: Training):
    raw_job(training, "cpus")
    training.submit("three", has_to_train=False)
    training.wait_for(lambda state: (state.submission_id, state.phase) == ("three", "placement"), 600)
    state, hang = training.hang()
    assert (state.submission_id, hang.grade) == ("three", Grade.PROOF)
    assert hang.blame[0].actor == "placement group"
    assert "CPU 3" in hang.blame[0].reason
