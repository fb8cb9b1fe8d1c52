"""A durable job on two local nodes with verl: its driver is killed, and it goes on from the step that it has saved."""

import os
import signal
from pathlib import Path

import pytest
from child_processes import until
from drivers import driver

from cloudrl.foreign import parse_json
from cloudrl.verl.metrics import Step, parse_step

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TINY = ("--data", "addition", "--model", "tiny-adder")
STEPS, KILLED_AFTER = 8, 4
OWN_CALLBACK = """
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

class Own(CheckpointCallback):
    def on_save(self, trainer, global_step, checkpoint_dir, **_):
        open(f"{checkpoint_dir}/own-callback", "w").write(str(global_step))
"""


@pytest.fixture(scope="module")
def cluster(shell) -> Path:
    """The folder of a cluster with two durable jobs, of which the first lost its driver."""
    shell.run("up", "lost", "--on", "local", "--nodes", "2", *TINY)
    folder = Path(shell.home) / "home" / "clusters" / "lost"
    words = ("grpo-tiny", "--durable", "--no-wait", "--cluster", "lost", "trainer.save_freq=2")
    shell.run("submit", *words, "--name", "first", "--steps", str(STEPS))
    code = shell.home / "code"
    code.mkdir()
    (code / "own_callback.py").write_text(OWN_CALLBACK)
    own = ("--working-dir", str(code), "trainer.checkpoint_callback_class=own_callback.Own", "--save-every", "1s")
    second = ("grpo-tiny", "--durable", "--no-wait", "--cluster", "lost", "--name", "second", "--steps", "3")
    shell.run("submit", *second, *own)
    saved = folder / "checkpoints" / "first" / f"global_step_{KILLED_AFTER}" / "data.pt"
    until(saved.exists, "the step is saved", timeout_s=200.0)
    os.kill(driver("experiment_name=first"), signal.SIGKILL)
    shell.run("jobs", "logs", "-f", _id(folder, "first"), "--cluster", "lost")
    shell.run("jobs", "logs", "-f", _id(folder, "second"), "--cluster", "lost")
    return folder


def _id(folder: Path, run: str) -> str:
    [record] = (folder / "checkpoints" / ".cloudrl" / "jobs").glob(f"{run}-*.json")
    return record.stem


def test_it_goes_on_from_its_newest_step_and_does_them_all(cluster: Path, shell) -> None:
    [record] = (cluster / "checkpoints" / ".cloudrl" / "jobs").glob("first-*.json")
    job = parse_json(record.read_bytes())
    [first, second] = job["attempts"]
    steps = [step.step for step in map(parse_step, shell.driver_log("lost")) if isinstance(step, Step)]

    assert (first["verdict"], second["verdict"]) == ("infrastructure", "succeeded")
    assert second["from_step"] >= KILLED_AFTER
    assert first["saved_step"] >= KILLED_AFTER - 2, "it was killed when it had just saved"
    assert second["saved_step"] == STEPS, "the trainer has told what it saved"
    assert second["from_step"] + 1 in steps
    assert (cluster / "checkpoints" / "first" / f"global_step_{STEPS}" / "data.pt").exists()
    assert job["outcome"]["result"] == "succeeded"


def test_the_job_behind_it_has_waited_and_ended(cluster: Path) -> None:
    records = {path.stem.split("-")[0]: parse_json(path.read_bytes()) for path in cluster.rglob(".cloudrl/jobs/*.json")}

    assert records["second"]["outcome"]["result"] == "succeeded"
    assert records["second"]["attempts"][0]["started_at"] >= records["first"]["outcome"]["at"]


def test_a_trainer_saves_when_it_is_time_and_the_users_own_callback_runs_as_well(cluster: Path) -> None:
    saved = [int(path.read_text()) for path in (cluster / "checkpoints" / "second").glob("global_step_*/own-callback")]

    assert 3 in saved
    assert len(saved) > 1, "verl by itself would save the last step alone"
