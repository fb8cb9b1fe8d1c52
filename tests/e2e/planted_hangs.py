"""What a user's code may wait for without an end, or fill: each is switched on by a file in the folder `PLANTS`.

The code is a reward function, a reward manager, a data set and an agent loop of verl 0.9.1. A test copies this file
beside its job, with `PLANTS` replaced; it runs in the processes of that job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import ray
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.utils.dataset.rl_dataset import RLHFDataset

_PLANTS = Path("PLANTS")
_LOCK = threading.Lock()
_KEPT: list[tuple[float, bytearray]] = []
_EVIL = re.compile(r"(a+)+$")
_ANSWER = "a" * 24 + "b"
"""Takes about a second; each further letter doubles it."""


def _is_planted(name: str) -> bool:
    return (_PLANTS / name).exists()


def _number(name: str) -> int:
    """That a test has written: the port of a server that never answers, or how much is taken."""
    return int((_PLANTS / name).read_text())


def _sleep(name: str) -> None:
    while _is_planted(name):
        time.sleep(0.5)


def _match() -> None:
    while _is_planted("regular-expression"):
        _EVIL.match(_ANSWER)


def _hold(name: str, is_held: threading.Event) -> None:
    with _LOCK:
        is_held.set()
        _sleep(name)


def _take_lock(name: str) -> None:
    """Another thread has it, and waits itself."""
    is_held = threading.Event()
    threading.Thread(target=_hold, args=(name, is_held), daemon=True).start()
    is_held.wait()
    with _LOCK:
        pass


@ray.remote(num_gpus=3)
class Judge:
    """More than a node has."""


def _keep_memory() -> None:
    """So many bytes more in each second, as of a reward function that keeps what it has seen."""
    now = time.monotonic()
    _KEPT.append((now, bytearray(int(_number("memory") * (now - _KEPT[-1][0])) if _KEPT else 0)))


def _fill_shared_memory() -> None:
    with contextlib.suppress(FileExistsError), open("/dev/shm/planted", "xb") as file:
        os.posix_fallocate(file.fileno(), 0, _number("shm"))


async def _wait_for_an_actor() -> None:
    actor: Any = Judge
    judge = actor.remote()
    while _is_planted("actor"):  # noqa: ASYNC110  a file has no events
        await asyncio.sleep(0.5)
    ray.kill(judge)


def compute_score(*, solution_str: str, ground_truth: str, **_: Any) -> float:
    """verl's reward function, in a thread."""
    _sleep("reward")
    _match()
    if _is_planted("memory"):
        _keep_memory()
    if _is_planted("shm"):
        _fill_shared_memory()
    return float(solution_str.strip() == ground_truth)


class PlantedManager(NaiveRewardManager):
    """verl's manager, with a lock and a judge."""

    async def run_single(self, data: Any) -> dict[str, Any]:
        if _is_planted("manager"):
            _take_lock("manager")
        if _is_planted("actor"):
            await _wait_for_an_actor()
        if _is_planted("judge"):
            reader, _writer = await asyncio.open_connection("127.0.0.1", _number("judge"))
            await reader.readline()
        scored: dict[str, Any] = await super().run_single(data)
        return scored


class PlantedData(RLHFDataset):
    """verl's data set, with rows that take for ever."""

    def __getitem__(self, item: int) -> Any:
        _sleep("data")
        if _is_planted("lock"):
            _take_lock("lock")
        if _is_planted("pipe"):
            with (_PLANTS / "pipe").open("rb") as pipe:
                pipe.read(1)
        return super().__getitem__(item)


class PlantedLoop(SingleTurnAgentLoop):
    """verl's agent loop, with a tool that asks a server."""

    async def run(self, sampling_params: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if _is_planted("tool"):
            await self.loop.run_in_executor(None, _call_tool)
        return await super().run(sampling_params, *args, **kwargs)


def _call_tool() -> bytes:
    with socket.create_connection(("127.0.0.1", _number("tool"))) as connection:
        connection.sendall(f"{os.getpid()}\n".encode())
        return connection.recv(64)
