"""Has the head merge a checkpoint onto its own disk, or publish it, as a Ray job that brings our code along.

The image has Python and numpy, and nothing of ours. The job outlives this program, as every job does.
"""

import hashlib
import io
import json
import os
import secrets
import shlex
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudrl.checkpoints.handle import CheckpointHandle
from cloudrl.checkpoints.merge import Merged
from cloudrl.checkpoints.publishing import Publication
from cloudrl.checkpoints.push import PushPlan
from cloudrl.checkpoints.remote_merge_main import MARK, TOKEN, HeadMerge
from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.errors import CheckpointError, ConnectionFailed, InputError, Interrupted, JobFailed
from cloudrl.foreign import NOT_AS_EXPECTED, Malformed, as_object, number_of, parse_object, text_of
from cloudrl.jobs import Ended, JobHandle, Line
from cloudrl.jobs.handle import FOLLOW, find_job, raise_for_status, way_back
from cloudrl.options.merge import DEFAULTS, MergeOptions
from cloudrl.protocol.backoff import Backoff
from cloudrl.render.agent import SHARED_PARTS, python_sources
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.transport import inspect_cluster
from cloudrl.verl.metrics import plain

_PARTS = (*SHARED_PARTS, "protocol", "saves", "data", "shards", "options", "checkpoints")
_STAGING = "cloudrl_staging"
"""In the metadata of a job that publishes: the folder of the head that the model is in until then."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def _no_note(_sentence: str) -> None:
    """Report nothing."""


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
    job = _start(source, wanted, {}, f"merge-{checkpoint.step}")
    result = _result_of(job, source, "merge", on_progress)
    try:
        merged = as_object(result["merged"])
        return Merged(**{**merged, "path": Path(str(merged["path"])), "warnings": tuple(merged["warnings"])})
    except NOT_AS_EXPECTED:
        raise _no_result(job, "merge", "it is not what a merge says at its end") from None


def push_on_head(
    plan: PushPlan,
    *,
    token: str | None = None,
    on_progress: OnProgress = silent,
    on_upload: OnProgress = silent,
    on_note: Callable[[str], None] = _no_note,
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
        job = _start(source, wanted, variables, f"push-{plan.checkpoint.step}", {_STAGING: staging})
    url = text_of(_result_of(job, source, "push", on_progress, on_upload, on_note), "published")
    if not url:
        raise _no_result(job, "push", "it names no repository")
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
    agent = source.connection.agent()
    if agent is None:
        raise _no_place(source)
    head = next(node for node in agent.status().nodes if node.rank == 0)
    port = head.agent_port or urlsplit(agent.url).port or 80
    wanted = HeadMerge(
        f"http://127.0.0.1:{port}",
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


def _no_place(source: ClusterSource) -> InputError:
    name = source.connection.name
    return InputError(f"{name} has no place where secrets of jobs can be", hint="Leave out --on-head")


def _start(
    source: ClusterSource,
    wanted: HeadMerge,
    variables: Mapping[str, str],
    prefix: str,
    metadata: Mapping[str, str] | None = None,
) -> JobHandle:
    """Submit the job; `variables` go through the agents, as secrets do."""
    connection = source.connection
    cluster, agent = inspect_cluster(connection), connection.agent()
    if agent is None or cluster.secrets_dir is None:
        raise _no_place(source)
    package, content = _package()
    submission_id = f"{prefix}-{secrets.token_hex(4)}"
    agent.put_secrets(submission_id, {TOKEN: connection.agent_token or "", **variables})
    ray = connection.ray()
    if not ray.package_exists(package):
        ray.put_package(package, iter([content]), len(content))
    command = [
        "/bin/sh", f"{cluster.secrets_dir}/{submission_id}", "python3", "-m", "cloudrl.checkpoints.remote_merge_main",
        json.dumps(asdict(wanted)),
    ]  # fmt: skip
    names = {"job_name": submission_id, "cloudrl_recipe": prefix.partition("-")[0], **(metadata or {})}
    ray.submit_job(
        {
            "entrypoint": shlex.join(command),
            "submission_id": submission_id,
            "runtime_env": {"working_dir": f"gcs://{package}"},
            "metadata": names,
        }
    )
    return find_job(connection, submission_id)


def _result_of(
    job: JobHandle,
    source: ClusterSource,
    what: str,
    on_progress: OnProgress,
    on_upload: OnProgress = silent,
    on_note: Callable[[str], None] = _no_note,
) -> dict[str, Any]:
    """The message in which a job says what came of it."""
    result: dict[str, Any] = {}
    try:
        for event in job.follow(lines=True, backoff=source.backoff):
            if isinstance(event, Line):
                message = _parse(event.text)
                if "total" in message:
                    tell = on_upload if "sent" in message else on_progress
                    tell(_count(message, "sent") or _count(message, "done"), _count(message, "total"))
                result = _heed(message, on_note) or result
            elif isinstance(event, Ended):
                raise_for_status(job, event)
    except KeyboardInterrupt:
        told = f"no longer following; the {what} goes on as job {job.submission_id}"
        raise Interrupted(told, hint=way_back(job.url, FOLLOW)) from None
    except Malformed as failure:
        raise _no_result(job, what, str(failure)) from None
    except ConnectionFailed as failure:
        told = f"{failure.message}\nthe {what} goes on as job {job.submission_id}"
        raise type(failure)(told, hint=way_back(job.url, FOLLOW)) from failure
    if not result:
        raise JobFailed(
            f"job {job.submission_id} has ended and says nothing of a model", hint=f"cloudrl jobs logs {job.url}"
        )
    return result


def _heed(message: Mapping[str, Any], on_note: Callable[[str], None]) -> dict[str, Any]:
    """Pass on what the job says; returns the message with its result, once it says one.

    Raises:
        CheckpointError: It has failed.
        Malformed: The message has another form.
    """
    if "error" in message:
        raise CheckpointError(f"on the head: {message['error']}", hint=text_of(message, "hint") or None)
    if note := text_of(message, "note"):
        on_note(note)
    return dict(message) if {"merged", "published"} & message.keys() else {}


def _count(message: Mapping[str, Any], name: str) -> int:
    return int(number_of(message, name) or 0)


def _no_result(job: JobHandle, what: str, sign: str) -> JobFailed:
    return JobFailed(f"job {job.submission_id} says nothing of a {what}: {sign}", hint=f"cloudrl jobs logs {job.url}")


def _parse(line: str) -> dict[str, Any]:
    _, mark, text = plain(line).partition(MARK)
    try:
        return parse_object(text) if mark else {}
    except Malformed:
        return {}


def _package() -> tuple[str, bytes]:
    """Our code, under the name that Ray gives to what has these bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(python_sources(_PARTS)):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, data)
    packed = content.getvalue()
    return f"_ray_pkg_{hashlib.sha256(packed).hexdigest()[:32]}.zip", packed
