"""A training by verl on a real Slurm that loses a node and comes to its time limit, beside one that is undisturbed."""

import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import SLOWER
from shard_files import shard_path
from slurm_nodes import SlurmNodes
from slurm_nodes.containers import IMAGE
from slurm_nodes.jobs import Job

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.sdk.slurm import slurm_script
from cloudrl.verl.metrics import Step, parse_step

pytestmark = [pytest.mark.slurm, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(3600)]

STEPS, EVERY, LOST_AT, LIMIT_AT = 12, 2, 2, 8
HELD = """
import pathlib, time
from cloudrl.verl_cpu import reward

HERE = pathlib.Path("/checkpoints")
TRACKER = HERE / "disturbed/latest_checkpointed_iteration.txt"

def compute_score(**answer):
    saved = lambda: int(TRACKER.read_text() or 0) if TRACKER.exists() else 0
    while any(int(each.name[5:]) <= saved() for each in HERE.glob("hold-*")):
        time.sleep(0.1)
    return reward.compute_score(**answer)
"""
"""The recipe's reward function. Where there is a file `hold-2`, it waits once step 2 is saved."""
CLUSTER = {
    "name": "two", "image": IMAGE, "nodes": 2, "cpu": 4, "memory": "8GB",
    "slurm": {
        "container": "docker", "python": sys.executable, "volumes": ["/shared/checkpoints:/checkpoints"],
        "output": "/shared/%x-%j.log",
    },
}  # fmt: skip
TRAINING_S = 300.0 * SLOWER
OF_DATA = "prompt_length/mean"
"""Says which prompts a step had: it differs from step to step, and is the same in each run of one seed."""


@dataclass(frozen=True)
class Run:
    """A training after its end.

    Attributes:
        ended: what Slurm says of its job.
        starts: the steps that each start of the job has trained.
        record: what the agents have recorded of it.
        folder: of its checkpoints.
    """

    ended: Job
    starts: list[list[Step]]
    record: dict[str, Any]
    folder: Path

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Of each step, as the last attempt that has trained it says."""
        return {step.step: dict(step.metrics) for steps in self.starts for step in steps}


def submit(slurm: SlurmNodes, name: str) -> int:
    overrides = {"trainer.save_freq": EVERY, "reward.custom_reward_function.path": "/checkpoints/held.py"}
    script = slurm_script("grpo-tiny", overrides, cluster=CLUSTER, name=name, steps=STEPS)
    return slurm.jobs.sbatch(script, "--time=60", cwd="/shared")


def follow(slurm: SlurmNodes, job: int, name: str) -> Run:
    ended = slurm.jobs.wait(job, timeout_s=TRAINING_S)
    output, checkpoints = slurm.jobs.output(job), slurm.shared / "checkpoints"
    texts = re.split(rf"job {job}, start \d+ on", output)[1:]
    starts = [[step for step in map(parse_step, text.splitlines()) if step is not None] for text in texts]
    record = json.loads((checkpoints / f".cloudrl/jobs/{name}.json").read_text())
    assert ended.state == "COMPLETED", output
    return Run(ended, starts, record, checkpoints / name)


def wait_until_held(slurm: SlurmNodes, job: int, step: int) -> None:
    """Until the step after this one stands still; what this one has printed has arrived by then."""
    slurm.jobs.wait_for(job, f"step:{step} - ", TRAINING_S)
    tracker = slurm.shared / "checkpoints/disturbed/latest_checkpointed_iteration.txt"
    assert int(tracker.read_text()) == step


@pytest.fixture(scope="module")
def disturbed(shared_slurm: SlurmNodes) -> Iterator[Run]:
    """Lost a node in its third step, and was signalled before its time limit in its ninth one."""
    slurm, hold = shared_slurm, shared_slurm.shared / f"checkpoints/hold-{LOST_AT}"
    slurm.login.run("mkdir", "/shared/checkpoints", user="alice")
    (slurm.shared / "checkpoints/held.py").write_text(HELD)
    hold.touch()
    try:
        job = submit(slurm, "disturbed")
        wait_until_held(slurm, job, LOST_AT)
        slurm.nodes[1].power_off()
        slurm.jobs.wait(job, "PENDING")
        hold = hold.rename(hold.with_name(f"hold-{LIMIT_AT}"))
        slurm.jobs.release_now(job)
        wait_until_held(slurm, job, LIMIT_AT)
        slurm.jobs.limit_soon(job)  # the signal is due two minutes before that; Slurm looks every 30 s
        slurm.jobs.wait(job, "PENDING", timeout_s=180)
        hold.unlink()
        slurm.login.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
        slurm.jobs.release_now(job)
        yield follow(slurm, job, "disturbed")
    finally:
        slurm.jobs.cancel_all()
        for node in slurm.nodes:  # with what lost and ended starts have left there
            node.power_off()
            node.replace_disk()
        slurm.restore()
        slurm.login.run("rm", "-rf", "/home/alice/.cloudrl", "/home/alice/.cache", "/shared/checkpoints")
        for log in slurm.shared.glob("two-*.log"):
            log.unlink()


@pytest.fixture(scope="module")
def undisturbed(shared_slurm: SlurmNodes, disturbed: Run) -> Run:
    """The same job on the same nodes afterwards."""
    return follow(shared_slurm, submit(shared_slurm, "undisturbed"), "undisturbed")


def test_each_start_goes_on_from_the_newest_step_that_was_saved(disturbed: Run) -> None:
    attempts = disturbed.record["attempts"]
    for attempt in attempts:
        print({key: value for key, value in attempt.items() if value})
    ended = disturbed.ended
    assert (ended.exit_code, ended.restarts, ended.nodes) == (0, 2, ("node0", "node2"))
    assert [each["verdict"] for each in attempts] == ["infrastructure", "infrastructure", "succeeded"]
    assert [each["submission_id"] for each in attempts] == ["disturbed", "disturbed-2", "disturbed-3"]
    assert disturbed.record["outcome"]["result"] == "succeeded"
    assert [each["from_step"] for each in attempts] == [0, LOST_AT, LIMIT_AT]


def test_no_step_is_missing(disturbed: Run) -> None:
    trained = [[step.step for step in steps] for steps in disturbed.starts]
    bounds = (0, LOST_AT, LIMIT_AT, STEPS)
    assert trained == [[*range(begin + 1, end + 1)] for begin, end in itertools.pairwise(bounds)]


def test_each_step_had_the_prompts_of_a_run_that_nothing_has_disturbed(disturbed: Run, undisturbed: Run) -> None:
    assert len(undisturbed.record["attempts"]) == 1
    for step, metrics in disturbed.metrics.items():
        print(step, *(f"{each['critic/score/mean']:.3f}" for each in (metrics, undisturbed.metrics[step])))
    prompts, expected = ({step: row[OF_DATA] for step, row in run.metrics.items()} for run in (disturbed, undisturbed))
    assert len(set(expected.values())) > 2
    assert prompts == expected


@pytest.mark.parametrize("name", ["disturbed", "undisturbed"])
def test_the_last_save_is_whole_and_has_an_update_of_each_step(request: pytest.FixtureRequest, name: str) -> None:
    import torch

    folder = request.getfixturevalue(name).folder
    newest = Checkpoints(LocalSource(folder)).latest()
    assert newest.step == STEPS
    assert newest.verify().ok
    for rank in (0, 1):
        saved = torch.load(shard_path(folder / f"global_step_{STEPS}/actor", rank, kind="optim"), weights_only=False)
        assert {int(each["step"]) for each in saved["state"].values()} == {STEPS}
