"""Hangs planted in a real training on two nodes: each is found, with its phase, process and frame.

The eight of which the rules were made, and five that came later: a regular expression, a lock in the reward manager, a
tool, a data loader's worker, and an actor that no node has room for.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import SLOWER

from cloudrl.jobs import find_job
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.job_phases import Grade, Hang, JobState
from cloudrl.sdk.running import attach
from cloudrl.transport import Connection

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME, CODE = "hangs", "planted_hangs.py"
TOLD_S = 120.0
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


class SilentServer:
    """Takes connections and answers none, until it is closed."""

    def __init__(self) -> None:
        self._listening, self._held = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Answer all of them, and take no more."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._held:
            with suppress(OSError), connection:
                connection.sendall(b"yes\n")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._held.append(self._listening.accept()[0])


class Training:
    """The cluster, and the job that trains on it.

    Args:
        shell: of this module.
        connection: to the cluster.
    """

    def __init__(self, shell, connection: Connection) -> None:
        self.shell, self.connection = shell, connection
        agent = connection.agent()
        assert agent is not None
        self.agent: AgentClient = agent
        self.plants: Path = shell.home / "plants"
        self.job = ""

    def submit(self, job: str, *overrides: str, has_to_train: bool = True) -> None:
        """Start a training that goes on for ever, in place of the one before."""
        if self.job:
            self.shell.run("jobs", "stop", self.job, "--cluster", NAME, "-y")
        own = ("--submission-id", job, "--name", job, "--no-wait", "--steps", "100000", "--working-dir", "job")
        self.shell.run(
            "submit", "grpo-tiny", "--cluster", NAME, *own, "--reward", f"{CODE}:compute_score",
            f"data.custom_cls.path={CODE}", "data.custom_cls.name=PlantedData",
            "reward.reward_manager.source=importlib", "reward.reward_manager.name=PlantedManager",
            f"reward.reward_manager.module.path={CODE}", "reward.reward_manager.module.name=PlantedManager",
            "actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml",
            "actor_rollout_ref.rollout.agent.default_agent_loop=planted", *overrides,
        )  # fmt: skip
        self.job = job
        if has_to_train:
            self.wait_for(lambda state: state.submission_id == job and (state.step or 0) >= 5, 600)

    def wait_for(self, is_so: Callable[[JobState], bool], limit_s: float) -> JobState:
        """The first state that is so."""
        deadline = time.monotonic() + limit_s * SLOWER
        while True:
            state = self.agent.status().job
            if state is not None and is_so(state):
                return state
            assert time.monotonic() < deadline, state
            time.sleep(1)

    def hang(self) -> tuple[JobState, Hang]:
        """What is said of it, within two minutes; the time and the load are in the output of `pytest -s`."""
        began = time.monotonic()
        state = self.wait_for(lambda state: state.hang is not None and bool(state.hang.blame), TOLD_S)
        assert state.hang is not None
        took = f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.0f}, still for {state.hang.still_s:.0f} s"
        print(f"{state.phase}, {state.hang.grade}, {took}: {state.hang.blame[0]}")
        return state, state.hang

    def goes_on(self) -> None:
        """Steps come again, and no hang is said."""
        step = self.wait_for(lambda state: state.step is not None, 60).step
        after = self.wait_for(lambda state: state.step is not None and state.step > (step or 0) + 1, 240)
        assert after.hang is None

    @contextmanager
    def plant(self, name: str) -> Iterator[None]:
        """Switch one on, and off again."""
        path, server = self.plants / name, SilentServer()
        path.write_text(str(server.port))
        try:
            yield
        finally:
            path.unlink()
            server.close()

    @contextmanager
    def pipe(self, path: Path) -> Iterator[None]:
        """A pipe without a reader and a writer; in the end it takes and gives all that is wanted."""
        os.mkfifo(path)
        try:
            yield
        finally:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            path.unlink()
            os.write(descriptor, b"x" * 64)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                with suppress(BlockingIOError):
                    os.read(descriptor, 1 << 20)
                time.sleep(0.01)
            os.close(descriptor)


@pytest.fixture(scope="module")
def training(shell) -> Iterator[Training]:
    folder = shell.home / "job"
    folder.mkdir()
    (shell.home / "plants").mkdir()
    code = Path(__file__).with_name(CODE).read_text()
    (folder / CODE).write_text(code.replace('Path("PLANTS")', f"Path({str(shell.home / 'plants')!r})"))
    (folder / "loops.yaml").write_text("- name: planted\n  _target_: planted_hangs.PlantedLoop\n")
    shell.run("up", NAME, "--on", "local", "--nodes", "2", "--data", "addition", "--model", "tiny-adder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDRL_HOME", str(shell.home / "home"))
        connection = attach(NAME).connection
    training = Training(shell, connection)
    training.submit("one")
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
