"""A cluster and a job for tests of planning, and the overrides that come out."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cloudrl import jobs, recipes
from cloudrl.errors import InputError
from cloudrl.jobs import JobHandle, Submission, SubmitOptions, plan_job
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import digests_of, inspect_files
from cloudrl.jobs.uploads import plan_uploads
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.spec import HydraText, Job, parse_override
from cloudrl.transport import Connection
from cloudrl.verl.releases import RELEASE

NOW = datetime(2026, 11, 21, 10, 5, 9, tzinfo=timezone.utc)


def cluster(**changes: Any) -> ClusterFacts:
    lab: dict[str, Any] = {
        "name": "lab",
        "id": "id-1",
        "provider": "local",
        "nodes": 2,
        "is_one_machine": changes.get("provider", "local") == "local",
        "disks_stay": changes.get("provider", "local") in ("local", "slurm"),
        "gpu_nodes": changes.get("nodes", 2),
        "gpus_per_node": 8,
        "device": "gpu",
        "places_controllers": True,
        "places_training": True,
        "divides_nodes": True,
        "checkpoint_dir": "/checkpoints",
        "data": {"gsm8k": {"train": "/data/gsm8k/train.parquet", "test": "/data/gsm8k/test.parquet"}},
        "models": {"Qwen/Qwen2.5-7B-Instruct": "/models/qwen"},
        "services": ("search",),
        "verl_version": RELEASE.verl,
    }
    return ClusterFacts(**{**lab, **changes})


PATHS = {"train": "/d/train.parquet", "test": "/d/test.parquet"}
PLAIN: dict[str, Any] = {
    "id": "", "provider": "", "checkpoint_dir": "", "places_controllers": False, "places_training": False,
    "divides_nodes": False, "data": {}, "models": {}, "services": (), "verl_version": None, "is_one_machine": False,
    "disks_stay": False,
}  # fmt: skip


LEAST = {"actor_rollout_ref.actor.use_dynamic_bsz": True, "actor_rollout_ref.rollout.name": "vllm"}
"""Without an engine, and this or sizes of micro batches, verl refuses every job."""


def job(**changes: Any) -> Job:
    base: dict[str, Any] = {
        "name": "grpo",
        "overrides": {"algorithm.adv_estimator": "grpo", **LEAST},
        "data": ["gsm8k"],
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "verl": RELEASE.verl,
    }
    return Job(**{**base, **changes})


def plan(
    job_: Job,
    shape: ClusterFacts,
    options: SubmitOptions | None = None,
    *,
    shell: Mapping[str, str] | None = None,
    here: Path = Path("/nowhere"),
    now: datetime = NOW,
) -> Submission:
    """What would be sent to a cluster of this shape; of this machine's files none is read."""
    options = options or SubmitOptions()
    snapshot = Snapshot(shape, inspect_files(job_, options, here=here), shell=shell or {}, now=now)
    return plan_job(job_, options, snapshot)


def planned(job_: Job | None = None, view: ClusterFacts | None = None, **options: Any) -> Submission:
    return plan(job_ or job(), view or cluster(), SubmitOptions(**options))


def typed(*arguments: str) -> dict[str, str]:
    """Overrides as the command line gives them."""
    return dict(parse_override(argument) for argument in arguments)


def overrides(submission: Submission) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in submission.argv[3:])


def settled(draft: JobDraft) -> JobDraft:
    """The draft of a pass that has found nothing.

    Raises:
        InputError: The first thing that it has found.
    """
    for finding in draft.findings:
        raise InputError(finding.text, hint=finding.hint or None)
    return draft


def planned_uploads(cluster_: ClusterFacts, options: SubmitOptions, *, here: Path | None = None) -> JobDraft:
    """A job after the pass that plans its files, which are read once they are known to go along."""
    job_ = Job(name="x")
    draft = JobDraft(job=job_, options=options, cluster=cluster_, overrides=options.overrides)
    files = inspect_files(job_, options, here=here)
    sent = [entry for item in settled(plan_uploads(draft, Snapshot(cluster_, files))).uploads for entry in item.entries]
    if files.working_dir is not None:
        sent += files.working_dir.entries
    return settled(plan_uploads(draft, Snapshot(cluster_, replace(files, digests=digests_of(sent)))))


def prepare(connection: Connection, job_: Job, options: SubmitOptions | None = None) -> Submission:
    """What would be sent to a cluster that is up, from a shell without variables."""
    options = options or SubmitOptions()
    return jobs.prepare(job_, options, jobs.take_snapshot(connection, job_, options, {}))


def submit(connection: Connection, job_: Job, options: SubmitOptions | None = None) -> JobHandle:
    return jobs.send(connection, prepare(connection, job_, options))


def notes(recipe: str, overrides: dict[str, HydraText] | None = None, **changes: Any) -> tuple[str, ...]:
    """What is said of a recipe on a cluster of two nodes with eight GPUs each, but for the changes."""
    job = recipes.load(recipe)
    view = cluster(data=dict.fromkeys(job.data, PATHS), models={str(job.model): "/m"}, **changes)
    return plan(job, view, SubmitOptions(overrides=overrides or {})).notes


SFT_RAY = ("python3", "-m", "verl.trainer.sft_trainer_ray")
SFT_TORCHRUN = ("torchrun", "--nproc_per_node=8", "-m", "verl.trainer.sft_trainer")
MESSAGES = "data.train_files=/d/messages.parquet"


def fine_tuned(
    *words: str, entrypoint: tuple[str, ...] = SFT_RAY, verl: str = RELEASE.verl, **facts: Any
) -> Submission:
    """A supervised fine-tuning with these overrides on a cluster with these facts."""
    job_ = Job(name="sft", entrypoint=entrypoint, model="Qwen/Qwen2.5-7B-Instruct", verl=verl)
    return planned(job_, cluster(verl_version=verl, **facts), overrides=typed(*words))
