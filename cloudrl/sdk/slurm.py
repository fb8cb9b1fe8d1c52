"""A job and its cluster as one script for sbatch: for sites where nothing may listen, and no client has to stay."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl import jobs, recipes
from cloudrl.errors import InputError
from cloudrl.jobs import Submission, SubmitOptions, run_plan
from cloudrl.options.job import JobKeywords, submit_options
from cloudrl.protocol.mirrors import parse_mirror
from cloudrl.providers.slurm.cluster import SlurmCluster
from cloudrl.providers.slurm.script import TASK, to_slurm
from cloudrl.sdk.callbacks import Notice, OnProgress, notify, silent
from cloudrl.sdk.cluster import Cluster
from cloudrl.sdk.runs import cluster_fields
from cloudrl.spec import Job

if TYPE_CHECKING:
    from typing_extensions import Unpack


def slurm_script(
    job: Job | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | Mapping[str, Any] | str | None = None,
    on_progress: OnProgress = silent,
    **options: Unpack[JobKeywords],
) -> str:
    """The text of a job script: cluster, training, and the exit code of the training.

    The run has its name from here on: the same script submitted again continues it, and so does Slurm when it starts
    the job again: the agents carry it through as they do with `durable=True`. In a job array each task is a run of its
    own.

    Args:
        job: what to run, or a recipe by its name or path.
        overrides: in verl's own keys.
        cluster: as it shall be, or some of its fields, or only its name; the others are the recipe's.
        on_progress: receives what the user should know of the job.
        options: see `cloudrl.jobs.SubmitOptions`.

    Raises:
        InputError: job and cluster do not go together, or the job needs what this machine alone has.
    """
    return render_script(job, submit_options(overrides, options), cluster, on_progress=on_progress)


def render_script(
    job: Job | str,
    options: SubmitOptions,
    cluster: Cluster | Mapping[str, Any] | str | None,
    *,
    on_progress: OnProgress = silent,
) -> str:
    """As `slurm_script`."""
    job = recipes.load(job) if isinstance(job, str) else job
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:41]
    declared = Cluster.load({"name": name, **cluster_fields(job, options, cluster)[0]})
    run = options.name or f"{job.name[:80]}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    submission_id = (options.submission_id or run) + TASK
    options = replace(options, name=run + TASK, submission_id=submission_id, durable=True)
    plan = declared.plan("slurm")
    notify(on_progress, *(f"note: {note}" for note in plan.notes))
    snapshot = replace(run_plan.expected_snapshot(plan, job, options), is_script=True)
    submission = jobs.prepare(job, options, snapshot, on_progress=lambda update: on_progress(_readable(update)))
    _refuse_what_is_here(submission)
    assert submission.durable is not None  # noqa: S101  it was asked for
    notify(on_progress, *(f"warning: {text}" for text in _look_at_mirror(declared, submission.durable.mirror)))
    fields = ("submission_id", "runtime_env", "metadata")
    sent = {"argv": list(submission.argv), **{field: submission.request()[field] for field in fields}}
    return to_slurm(declared, {**sent, "durable": asdict(submission.durable)})


def _look_at_mirror(declared: Cluster, mirror: str) -> Iterator[str]:
    """What can be said here of a folder that the nodes are to write. Only they can judge it, and they look again.

    Raises:
        InputError: it cannot be a mirror.
    """
    place = parse_mirror(mirror) if mirror else None
    if place is None or place.bucket:
        return
    on_slurm, where = SlurmCluster.read(declared), f"--mirror {mirror}"
    on_host = place.prefix if on_slurm.back_end == "bare" else on_slurm.on_host(place.prefix)
    if on_host is None:
        if on_slurm.back_end in ("docker", "podman") and not on_slurm.own.container_options:
            raise InputError(
                f"{where}: it is on none of the volumes in section slurm, and goes with each node's container",
                hint=f"Add it there: '/SHARED{place.prefix}:{place.prefix}'\nOr a bucket: --mirror s3://BUCKET/PREFIX",
            )
        return
    folder, is_login_node = Path(on_host), on_slurm.own.login is None
    is_there = is_login_node and os.access(folder, os.F_OK)
    if is_there and not folder.is_dir():
        raise InputError(f"{where}: {folder} is a file", hint="Name a folder that all nodes share")
    if is_there and not (_can_write(folder) or on_slurm.runs_as_root):
        yield f"{where}: you cannot write {folder} on this machine; if a node cannot either, the job ends at its start"
    elif not is_there and not (is_login_node and _can_write(folder.parent)):
        yield f"{where}: this machine cannot tell whether {folder} can be a mirror; if not, the job ends at its start"


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK) and folder.is_dir()


def _readable(update: Any) -> Any:
    return replace(update, text=update.text.replace(TASK, "")) if isinstance(update, Notice) else update


def _refuse_what_is_here(submission: Submission) -> None:
    for upload in submission.uploads:
        what = upload.entries[0].path if len(upload.entries) == 1 else "it"
        raise InputError(
            f"{upload.text} is a file of this machine, and a script for sbatch takes none along",
            hint=f"Put {what} where all nodes see it, and give its absolute path",
        )
    if submission.package is not None:
        raise InputError(
            "a working directory cannot go along in a script for sbatch",
            hint="Put it where all nodes see it: --env PYTHONPATH=/shared/my-code",
        )
    for name in submission.secrets:
        raise InputError(
            f"the value of {name} would stand in the script",
            hint=f"Take it from the environment of sbatch: --secret {name}",
        )
