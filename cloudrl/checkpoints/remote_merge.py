"""Has the head merge a checkpoint onto its own disk, or publish it, as a Ray job that brings our code along.

The image has Python and numpy, and nothing of ours. The job outlives this program, as every job does.
"""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from cloudrl.checkpoints.handle import CheckpointHandle
from cloudrl.checkpoints.head_jobs import head_agent, no_note, no_result, result_of, start_on_head
from cloudrl.checkpoints.merge import Merged
from cloudrl.checkpoints.publishing import Publication
from cloudrl.checkpoints.push import PushPlan
from cloudrl.checkpoints.remote_merge_main import HeadMerge
from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.errors import InputError
from cloudrl.foreign import NOT_AS_EXPECTED, as_object, text_of
from cloudrl.jobs.handle import find_job
from cloudrl.options.merge import DEFAULTS, MergeOptions
from cloudrl.protocol.backoff import Backoff
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.transport import inspect_cluster

_MODULE = "remote_merge_main"
_STAGING = "cloudrl_staging"
"""In the metadata of a job that publishes: the folder of the head that the model is in until then."""


def merge_on_head(
    checkpoint: CheckpointHandle,
    path: str,
    options: MergeOptions = DEFAULTS,
    *,
    on_progress: OnProgress = silent,
) -> Merged:
    """Merge into a folder of the head, and follow the job that does it; the result's path is one there.

    Args:
        checkpoint: Of a cluster.
        path: Absolute, on the head; must not exist there.
        options: How; a base that is a folder is one of the head.
        on_progress: Called with bytes.

    Raises:
        InputError: It is in a folder of this machine, or the path is relative.
        CheckpointError: It cannot be merged.
        ConnectionFailed: the cluster no longer answers; the merge goes on.
        Interrupted: Ctrl-C; the merge goes on.
    """
    if not path.startswith("/"):
        raise InputError(f"--to {path} is relative, and means a folder of the head", hint="Give an absolute path")
    source, wanted = _wanted(checkpoint, path, options)
    job = start_on_head(source, _MODULE, asdict(wanted), {}, f"merge-{checkpoint.step}")
    result = result_of(job, source, "merge", on_progress)
    try:
        merged = as_object(result["merged"])
        return Merged(**{**merged, "path": Path(str(merged["path"])), "warnings": tuple(merged["warnings"])})
    except NOT_AS_EXPECTED:
        raise no_result(job, "merge", "it is not what a merge says at its end") from None


def push_on_head(
    plan: PushPlan,
    *,
    token: str | None = None,
    on_progress: OnProgress = silent,
    on_upload: OnProgress = silent,
    on_note: Callable[[str], None] = no_note,
) -> str:
    """Merge on the head and upload from there, and follow the job that does it; the repository's URL.

    A call that was interrupted is repeated as it was: a job that is still at work is followed, and a model that has
    been merged is uploaded as it is.

    Args:
        plan: Of a checkpoint of a cluster.
        token: Of the Hub, which may write there; None for the one that `hf auth login` or HF_TOKEN gives.
        on_progress: Called with bytes of the merge.
        on_upload: Called with bytes of the upload.
        on_note: Called with sentences.

    Raises:
        InputError: It is in a folder of this machine, or there is no token.
        CheckpointError: It cannot be merged, or the Hub refuses.
        ConnectionFailed: the cluster no longer answers; the upload goes on.
        Interrupted: Ctrl-C; the upload goes on.
    """
    from huggingface_hub import get_token
    from huggingface_hub.constants import ENDPOINT

    token = token or get_token()
    if not token:
        raise InputError(f"there is no token for the Hub to publish {plan.repo}", hint="hf auth login")
    staging = f"{_checkpoint_folder(plan.checkpoint)}/.cloudrl/push/{plan.staging.name}"
    source, wanted = _wanted(plan.checkpoint, staging, plan.options, plan.publication)
    ray = source.connection.ray()
    at_work = [job for job in ray.list_jobs() if job.metadata.get(_STAGING) == staging and not job.status.is_terminal]
    if at_work:
        job = find_job(source.connection, at_work[-1].submission_id)
        on_note(f"job {job.submission_id} is publishing it already")
    else:
        # The token goes to the Hub that it is for, not to a mirror that the cluster downloads from.
        endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
        variables = {"HF_TOKEN": token, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
        job = start_on_head(
            source, _MODULE, asdict(wanted), variables, f"push-{plan.checkpoint.step}", {_STAGING: staging}
        )
    url = text_of(result_of(job, source, "push", on_progress, on_upload, on_note), "published")
    if not url:
        raise no_result(job, "push", "it names no repository")
    return url


def _checkpoint_folder(checkpoint: CheckpointHandle) -> str:
    """Where the cluster of a checkpoint saves; absolute, on the head.

    Raises:
        InputError: it is in a folder of this machine.
    """
    return inspect_cluster(_cluster_source(checkpoint).connection).checkpoint_dir.rstrip("/")


def _cluster_source(checkpoint: CheckpointHandle) -> ClusterSource:
    source = checkpoint.source
    if not isinstance(source, ClusterSource):
        raise InputError(f"{source.name} is on this machine: there is no head to merge it", hint="Leave out --on-head")
    return source


def _wanted(
    checkpoint: CheckpointHandle, path: str, options: MergeOptions, publication: Publication | None = None
) -> tuple[ClusterSource, HeadMerge]:
    source, info = _cluster_source(checkpoint), checkpoint.info
    wanted = HeadMerge(
        head_agent(source),
        info.run,
        info.step,
        info.role,
        info.world_size,
        path,
        options,
        (source.backoff or Backoff()).give_up_s,
        checkpoint.first_adapter(),
        publication,
    )
    return source, wanted
