"""A durable job on two local nodes with verl loses a process, a rank, all of its machines, and all of its disks.

It loses them one after the other, in a save, in a resume, in a step, while it stands still, and while a step is
copied to its mirror. Then its curve is compared with that of the same job undisturbed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from child_processes import until
from drivers import driver
from patience import SLOWER

from cloudrl.foreign import parse_json
from cloudrl.protocol.mirrors import parse_manifest_name
from cloudrl.providers.local import processes
from cloudrl.verl.metrics import Step, parse_step

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

NAME, STEPS, EVERY = "losses", 40, 2
TINY = ("--data", "addition", "--model", "tiny-adder")
RATE = "0.2MB"
"""A node needs some seconds for its half of a step."""
OF_DATA = "prompt_length/mean"
"""Says which prompts a step had: it differs from step to step, and is the same in each run of one seed."""


class Job:
    """One job and what its cluster remembers of it."""

    def __init__(self, shell: Any, run: str) -> None:
        self.shell, self.run = shell, run
        self.stories: list[str] = []
        self.safe = 0
        self._before: dict[int, Step] = {}
        self._records_before: dict[str, dict[str, Any]] = {}
        self.folder = Path(shell.home) / "home" / "clusters" / NAME / "checkpoints"
        self.mirror = Path(shell.home) / "mirror"

    @property
    def records(self) -> list[dict[str, Any]]:
        """The job, and what `jobs resume` has made of it on other clusters, in this order."""
        paths = (self.folder / ".cloudrl" / "jobs").glob(f"{self.run}-*.json")
        found = {record["job_id"]: record for record in (parse_json(path.read_bytes()) for path in paths)}
        return sorted({**self._records_before, **found}.values(), key=lambda record: record["submitted_at"])

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return [attempt for record in self.records for attempt in record["attempts"]]

    @property
    def saved(self) -> int:
        """The newest step whose save is finished: verl writes `data.pt` last."""
        return max((_step(path.parent) for path in (self.folder / self.run).glob("global_step_*/data.pt")), default=0)

    def mirrored(self, state: str = "") -> set[int]:
        """The steps of the mirror that count, or those that are "coming"."""
        names = [path.name for path in (self.mirror / self.run / ".cloudrl").glob("*")]
        found = [parsed for parsed in map(parse_manifest_name, names) if parsed is not None]
        return {int(step.rpartition("_")[2]) for _, step, of in found if of == state}

    def submit(self, *words: str) -> None:
        own = ("--durable", "--no-wait", "--cluster", NAME, "--name", self.run, "--steps", str(STEPS))
        self.shell.run("submit", "grpo-tiny", *own, *words, f"trainer.save_freq={EVERY}")

    def resume(self, *words: str) -> None:
        """On a new cluster."""
        self.shell.run("up", NAME, "--on", "local", "--nodes", "2", *TINY)
        self.shell.run("jobs", "resume", self.records[-1]["job_id"], "--cluster", NAME, *words)

    def saves_beyond(self, step: int) -> None:
        until(lambda: self.saved > step, f"a step after {step} is saved", timeout_s=240.0)

    def is_in_a_save(self) -> bool:
        """Whether the newest step has shards, but not yet its last file."""
        newest = max((self.folder / self.run).glob("global_step_*"), key=_step, default=None)
        return newest is not None and any(newest.rglob("*.pt")) and not (newest / "data.pt").exists()

    def has_attempts(self, count: int, timeout_s: float = 120.0) -> None:
        until(lambda: len(self.attempts) == count, f"attempt {count} has started", timeout_s=timeout_s)

    def follow(self) -> None:
        self.shell.run("jobs", "logs", "-f", self.records[-1]["job_id"], "--cluster", NAME)

    def lose_the_cluster(self) -> None:
        """All of its machines end at once; what it has said and kept is remembered."""
        self.stories.append(self.shell.run("jobs", "status", self.records[-1]["job_id"], "--cluster", NAME).stdout)
        processes.end(cluster_id(self.shell))
        self._before = self.steps()
        self._records_before = {record["job_id"]: record for record in self.records}

    def steps(self) -> dict[int, Step]:
        """The last line of each step, of all attempts on all clusters."""
        lines = self.shell.driver_log(NAME, f"{self.run}-*")
        texts = [line for line in lines if isinstance(parse_step(line), Step)]
        last = {step.step: step for step in map(parse_step, texts) if isinstance(step, Step) and step.step}
        return {**self._before, **last}


def _step(folder: Path) -> int:
    return int(folder.name.rpartition("_")[2])


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_in_a_save(job: Job, pid: int) -> None:
    """Kill a process as soon as one has begun; it may take less than a tenth of a second."""
    deadline = time.monotonic() + 240.0 * SLOWER
    while not job.is_in_a_save():
        assert time.monotonic() < deadline, "no save has begun"
        time.sleep(0.002)
    kill(pid)


def cluster_id(shell: Any) -> str:
    [state] = shell.states()
    return str(state["id"])


def rank_of(shell: Any, title: str) -> int:
    """The process id of one rank of the training."""
    for pid in sorted(processes.of_cluster(cluster_id(shell))):
        with suppress(OSError):
            if Path("/proc", str(pid), "cmdline").read_text().startswith(title):
                return pid
    raise AssertionError(f"no process is called {title}")


@pytest.fixture(scope="module")
def job(shell: Any) -> Job:
    """The one that was disturbed, after its end; each loss came after a newer step was saved."""
    shell.run("up", NAME, "--on", "local", "--nodes", "2", *TINY)
    job = Job(shell, "disturbed")
    job.submit("--mirror", str(job.mirror), "--mirror-rate", RATE)
    own_driver = lambda: driver("experiment_name=disturbed")  # noqa: E731
    job.saves_beyond(0)
    kill_in_a_save(job, rank_of(shell, "ray::WorkerDict"))  # without its driver, Ray lets a save end
    job.has_attempts(2)
    until(lambda: _is_there(own_driver), "the resume has begun", timeout_s=120.0)
    kill(own_driver())
    job.has_attempts(3)
    job.saves_beyond(job.attempts[-1]["from_step"])
    kill(rank_of(shell, "ray::WorkerDict"))
    job.has_attempts(4)
    job.saves_beyond(job.attempts[-1]["from_step"])
    os.kill(rank_of(shell, "ray::WorkerDict"), signal.SIGSTOP)
    job.has_attempts(5, 600.0)
    job.saves_beyond(job.attempts[-1]["from_step"])
    job.lose_the_cluster()
    job.resume()
    job.saves_beyond(job.attempts[-1]["from_step"])
    until(lambda: job.mirrored("coming") - job.mirrored(), "a step is on its way to the mirror", timeout_s=240.0)
    job.safe = max(job.mirrored())
    job.lose_the_cluster()
    shutil.rmtree(job.folder)
    job.resume("--mirror", str(job.mirror))
    job.follow()
    return job


def _is_there(pid: Callable[[], int]) -> bool:
    with suppress(AssertionError):
        return bool(pid())
    return False


def test_each_attempt_goes_on_from_what_the_ones_before_have_saved(job: Job) -> None:
    for attempt in job.attempts:
        print(attempt["number"], attempt["verdict"], "from", attempt["from_step"], attempt["reason"])
    starts = [attempt["from_step"] for attempt in job.attempts]
    assert starts[:-1] == sorted(starts[:-1]), "as long as there is a disk"
    assert [attempt["verdict"] for attempt in job.attempts[-1:]] == ["succeeded"]
    assert job.attempts[3]["verdict"] == "hang"
    assert all(start % EVERY == 0 for start in starts), "only whole saves are resumed from"
    assert starts[2] == starts[1] > 0, "the second one was killed before its first step"
    assert starts[3] > starts[2]
    assert starts[4] > starts[3]
    assert starts[-1] >= job.safe > 0, "what the mirror has had is not trained again"


def test_no_step_is_missing_and_the_last_one_is_saved(job: Job) -> None:
    """verl reports a step after its save, so of one that it was killed behind there may be the save alone."""
    unreported = {*range(1, STEPS + 1)} - job.steps().keys()
    assert unreported <= {attempt["from_step"] for attempt in job.attempts}
    assert job.saved == STEPS
    assert job.records[-1]["outcome"]["result"] == "succeeded"


def test_its_curve_is_that_of_a_run_that_nothing_has_disturbed(job: Job, shell: Any) -> None:
    disturbed = job.steps()
    other = Job(shell, "undisturbed")
    other.submit()
    other.follow()
    assert len(other.attempts) == 1
    undisturbed = other.steps()
    assert sorted(undisturbed) == [*range(1, STEPS + 1)]
    for step, row in sorted(disturbed.items()):
        print(f"{step:3} reward {row.reward:.3f} {undisturbed[step].reward:.3f}")
    assert {step: row.metrics[OF_DATA] for step, row in disturbed.items()} == {
        step: undisturbed[step].metrics[OF_DATA] for step in disturbed
    }, "each step had the same prompts"
    last = range(STEPS - 9, STEPS + 1)
    means = [
        statistics.fmean(steps[step].reward for step in last if step in steps) for steps in (disturbed, undisturbed)
    ]
    assert abs(means[0] - means[1]) < 0.1, means


def test_its_story_is_told(job: Job) -> None:
    print(job.stories[0])
    told = " ".join(job.stories[0].split())
    for attempt in job.records[0]["attempts"][:-1]:
        assert re.search(rf"\b{attempt['number']}\b.*{re.escape(attempt['reason'][:40])}", told)
