"""`--track wandb` with verl's own logger and wandb's own client, against a stand-in for the server."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
import wandb_server
from patience import SLOWER
from planning import cluster, plan
from verl_forks import Script

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions

pytestmark = pytest.mark.verl

KEY = "0123456789" * 4
SCORE = "critic/score/mean"
TRAINER = f"""
import sys
from verl.utils.tracking import Tracking

logger = Tracking("grpo-tiny", "mine", ["console", "wandb"], config={{"trainer": {{}}}})
for step in map(int, sys.argv[1:]):
    logger.log({{"{SCORE}": step / 10}}, step=step)
logger.finish()
"""
LAB = cluster(
    gpus_per_node=1, device="cpu", data={"addition": {"train": "/vol/train.parquet", "test": "/vol/test.parquet"}},
    models={"tiny-adder": "/vol/tiny"}, secrets_dir="/dev/shm/cloudrl-0-1", ray_version="2.60.0",
)  # fmt: skip


def trains(url: str, folder: Path, *steps: int, **env: str) -> None:
    """One start of a job that was submitted as `--track wandb --name mine`."""
    options = SubmitOptions(track=("wandb",), name="mine", env=env)
    submission = plan(recipes.load("grpo-tiny"), LAB, options, shell={"WANDB_API_KEY": KEY})
    variables = {name: str(value) for name, value in submission.runtime_env["env_vars"].items()}
    here = {"WANDB_BASE_URL": url, "WANDB_DIR": str(folder), "HOME": str(folder), "WANDB_SILENT": "true"}
    environ = {"PATH": os.environ["PATH"], **variables, **submission.secrets, **here}
    Script(TRAINER, steps, environ=environ, folder=folder).end(120 * SLOWER)


def test_a_job_that_ended_and_resumes_is_one_run(tmp_path: Path) -> None:
    with wandb_server.serving() as (url, project):
        trains(url, tmp_path, 1, 2)
        trains(url, tmp_path, 3, 4)
    assert [*project.runs] == ["mine"]
    assert project.curve("mine", SCORE) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert base64.b64encode(f"api:{KEY}".encode()).decode() in project.keys


def test_offline_it_keeps_files_for_the_same_run(tmp_path: Path) -> None:
    with wandb_server.serving() as (url, project):
        trains(url, tmp_path, 1, WANDB_MODE="offline")
    assert project.runs == {}
    [kept] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert kept.name == "run-mine.wandb"
