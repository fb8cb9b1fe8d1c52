"""A training by verl on a real Slurm that loses a node and comes to its time limit, beside one that is undisturbed."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dstack_hosts.runs import until
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

STEPS, EVERY, HELD_AT = 12, 2, 8
HELD = f"""
import pathlib, time
from cloudrl.verl_cpu import reward

HERE = pathlib.Path("/checkpoints")
TRACKER = HERE / "disturbed/latest_checkpointed_iteration.txt"

def compute_score(**answer):
    while (HERE / "hold").exists() and TRACKER.exists() and int(TRACKER.read_text() or 0) >= {HELD_AT}:
        time.sleep(0.1)
    return reward.compute_score(**answer)
"""
"""The recipe's reward function, which waits while there is a file `hold` and the step before is saved."""
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


def wait_until_saved(slurm: SlurmNodes, job: int, step: int) -> None:
    tracker = slurm.shared / "checkpoints/disturbed/latest_checkpointed_iteration.txt"
    is_saved = lambda: tracker.exists() and int(tracker.read_text() or 0) >= step  # noqa: E731
    until(is_saved, TRAINING_S, lambda: slurm.jobs.output(job))


@pytest.fixture(scope="module")
def disturbed(shared_slurm: SlurmNodes) -> Iterator[Run]:
    """Lost a node after its first save, and was signalled before its time limit while its ninth step stood still."""
    slurm = shared_slurm
    slurm.login.run("mkdir", "/shared/checkpoints", user="alice")
    (slurm.shared / "checkpoints/held.py").write_text(HELD)
    (slurm.shared / "checkpoints/hold").touch()
    try:
        job = submit(slurm, "disturbed")
        wait_until_saved(slurm, job, EVERY)
        slurm.nodes[1].power_off()
        slurm.jobs.wait(job, "PENDING")
        slurm.jobs.release_now(job)
        wait_until_saved(slurm, job, HELD_AT)
        slurm.jobs.limit_soon(job)  # the signal is due two minutes before that; Slurm looks every 30 s
        slurm.jobs.wait(job, "PENDING", timeout_s=180)
        (slurm.shared / "checkpoints/hold").unlink()
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
    begins = [each["from_step"] for each in attempts]
    assert begins[0] == 0
    assert EVERY <= begins[1] < HELD_AT, "the loss has cost no step that was saved"
    assert begins[1] % EVERY == 0, "only whole saves are resumed from"
    assert begins[2] == HELD_AT


def test_no_step_is_missing(disturbed: Run) -> None:
    begins = [each["from_step"] for each in disturbed.record["attempts"]]
    for begin, steps in zip(begins, disturbed.starts, strict=True):
        numbers = [step.step for step in steps]
        assert numbers == [*range(begin + 1, begin + 1 + len(numbers))]
    assert sorted(disturbed.metrics) == [*range(1, STEPS + 1)]


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
