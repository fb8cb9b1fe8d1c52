"""Is a healthy training ever ended? A durable job with verl on two local nodes, under load, with slow agents.

    make soak-durable                  # or: python benchmarks/soak_durable.py [--minutes 3] [--seed 2] [--stress 1]

Other processes take CPU time from the job in bursts. Again and again one of the two agents is stopped for up to eight
seconds, so that its heartbeats and all its answers are late, and then continued. Nothing is wrong with the job, so an
attempt that ends is one that cloudrl has ended. The last line has their number, and the exit code is 1 if it is not
zero. The clock starts with the first saved step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudrl.providers.local import processes
from cloudrl.units import duration_text

CLOUDRL = Path(sys.executable).with_name("cloudrl")
NAME = "soak"
UP = ("up", NAME, "--on", "local", "--nodes", "2", "--data", "addition", "--model", "tiny-adder")
SUBMIT = ("submit", "grpo-tiny", "--durable", "--no-wait", "--cluster", NAME, "--name", NAME, "--submission-id", NAME)
OVERRIDES = ("trainer.save_freq=2", "trainer.max_actor_ckpt_to_keep=2", "--steps", "100000")
LONGEST_STOP_S, LONGEST_PAUSE_S, LOADED_SHARE = 8.0, 20.0, 0.7
FIRST_SAVE_S, COMMAND_S = 900.0, 900.0
STRESS = "while True: sum(range(100_000))"


class Failed(Exception):
    """The soak could not begin, so there is nothing to count."""


@dataclass(frozen=True)
class Soaked:
    """What a soak has seen.

    Attributes:
        attempts: as the job's record has them.
        stops_s: how long an agent was stopped, each time.
        loads: how many processes wanted a CPU, at each of these times (the mean of a minute).
        took_s: from the first saved step on.
        is_up: whether both agents were there to the end.
    """

    attempts: list[dict[str, Any]]
    stops_s: list[float]
    loads: list[float]
    took_s: float
    is_up: bool

    @property
    def ends(self) -> list[str]:
        """Why attempts have ended, and the cluster."""
        lost = [] if self.is_up else ["an agent of the cluster has ended"]
        return [f"{each['verdict']}: {each['reason']}" for each in self.attempts if each["ended_at"]] + lost

    @property
    def summary(self) -> str:
        """All of it in one line."""
        step = max((max(each["step"], each["saved_step"]) for each in self.attempts), default=0)
        load = f"{min(self.loads, default=0.0):.0f} to {max(self.loads, default=0.0):.0f}"
        return (
            f"soak-durable: {duration_text(self.took_s)}, {step} steps, load {load}; an agent was stopped "
            f"{len(self.stops_s)} times, for {sum(self.stops_s):.0f} s in all and at most "
            f"{max(self.stops_s, default=0.0):.1f} s; attempts that were ended: {len(self.ends)}"
        )


class Cluster:
    """Two local nodes, and what is recorded of the job on them.

    Args:
        home: its `$CLOUDRL_HOME`.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = home / "clusters" / NAME

    def type(self, *words: str) -> None:
        """Run a command of cloudrl. Raises Failed with what it says."""
        env = {**os.environ, "CLOUDRL_HOME": str(self._home)}
        done = subprocess.run(
            [CLOUDRL, *words], env=env, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        if done.returncode:
            raise Failed(f"cloudrl {' '.join(words)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}")

    @property
    def agents(self) -> list[int]:
        """The process ids of those that run."""
        state = json.loads((self._folder / "cluster.json").read_text())
        return sorted(processes.agents(str(state["id"])))

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """All of the job, the newest last."""
        record = self._folder / "checkpoints" / ".cloudrl" / "jobs" / f"{NAME}.json"
        return list(json.loads(record.read_text())["attempts"]) if record.exists() else []

    @property
    def is_healthy(self) -> bool:
        """Whether both agents run, and no attempt has ended."""
        return len(self.agents) == 2 and not any(each["ended_at"] for each in self.attempts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="after the first saved step")
    parser.add_argument("--seed", type=int, default=1, help="of which agent is stopped, when and for how long")
    parser.add_argument("--stress", type=int, default=os.cpu_count() or 2, help="processes that compute in bursts")
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="soak-"))
    cluster = Cluster(home)
    try:
        cluster.type(*UP)
        try:
            soaked = soak(cluster, args.minutes * 60, random.Random(args.seed), args.stress)
        finally:
            cluster.type("down", NAME, "-y")
    except Failed as error:
        print(f"soak-durable failed: {error}\nThe logs are in {home}", file=sys.stderr)
        return 1
    for reason in soaked.ends:
        print(f"  {reason}; the logs are in {home}")
    if not soaked.ends:
        shutil.rmtree(home)
    print(soaked.summary, flush=True)
    return int(bool(soaked.ends))


def soak(cluster: Cluster, seconds: float, chance: random.Random, stress: int) -> Soaked:
    """Train for so long with agents that stand still again and again, or until something has ended."""
    cluster.type(*SUBMIT, *OVERRIDES)
    _wait_for_save(cluster)
    began, stops_s, loads = time.monotonic(), list[float](), list[float]()
    while time.monotonic() < began + seconds and cluster.is_healthy:
        with _load(stress if chance.random() < LOADED_SHARE else 0):
            time.sleep(chance.uniform(1.0, LONGEST_PAUSE_S))
            if agents := cluster.agents:
                stops_s.append(chance.uniform(0.5, LONGEST_STOP_S))
                loads.append(os.getloadavg()[0])
                _stop(chance.choice(agents), stops_s[-1])
    took_s, is_up = time.monotonic() - began, len(cluster.agents) == 2
    return Soaked(cluster.attempts, stops_s, loads, took_s, is_up)


def _wait_for_save(cluster: Cluster) -> None:
    deadline = time.monotonic() + FIRST_SAVE_S
    while not any(each["saved_step"] for each in cluster.attempts):
        if time.monotonic() > deadline or not cluster.is_healthy:
            raise Failed(f"no step was saved: {cluster.attempts}")
        time.sleep(1.0)


@contextlib.contextmanager
def _load(count: int) -> Iterator[None]:
    children = [subprocess.Popen([sys.executable, "-c", STRESS]) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def _stop(pid: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())
