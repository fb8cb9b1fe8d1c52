"""A training on two nodes whose code is `planted_hangs.py`: what it waits for, or keeps, is switched on and off."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from patience import SLOWER

from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.job_phases import Grade, Hang, JobState
from cloudrl.sdk.running import attach
from cloudrl.transport import Connection

NAME, CODE = "planted", "planted_hangs.py"
TOLD_S = 120.0


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

    def __init__(self, shell: Any, connection: Connection) -> None:
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
        # the agents would end a durable job that stands still
        lasting = ("--no-durable", "--no-wait", "--steps", "100000")
        own = (*lasting, "--submission-id", job, "--name", job, "--working-dir", "job")
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
        """What is said of it, within two minutes; prints when each grade was said (`pytest -s`)."""
        began = time.monotonic()
        grades: dict[Grade, float] = {}

        def is_told(state: JobState) -> bool:
            if state.hang is not None:
                grades.setdefault(state.hang.grade, time.monotonic() - began)
            return state.hang is not None and bool(state.hang.blame)

        state = self.wait_for(is_told, TOLD_S)
        assert state.hang is not None
        said = ", ".join(f"{grade} after {seconds:.0f} s" for grade, seconds in grades.items())
        print(f"{state.phase}: {said}, told after {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.0f}")
        print(f"still for {state.hang.still_s:.0f} s: {state.hang.blame[0]}")
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


def start_training(shell: Any, *before: str) -> Training:
    """A cluster of two nodes that trains.

    Args:
        shell: in whose home they are.
        before: what `cloudrl up` is started through.
    """
    folder = shell.home / "job"
    folder.mkdir()
    (shell.home / "plants").mkdir()
    code = (Path(__file__).with_name("e2e") / CODE).read_text()
    (folder / CODE).write_text(code.replace('Path("PLANTS")', f"Path({str(shell.home / 'plants')!r})"))
    (folder / "loops.yaml").write_text("- name: planted\n  _target_: planted_hangs.PlantedLoop\n")
    up = ("up", NAME, "--on", "local", "--nodes", "2", "--data", "addition", "--model", "tiny-adder")
    shell.run(*up, through=before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDRL_HOME", str(shell.home / "home"))
        connection = attach(NAME).connection
    training = Training(shell, connection)
    training.submit("one")
    return training
