"""Has the head merge a checkpoint onto its own disk, as a Ray job that brings our code along.

The image has Python and numpy, and nothing of ours. The job outlives this program, as every job does.
"""

import hashlib
import io
import json
import secrets
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudrl.checkpoints.handle import CheckpointHandle
from cloudrl.checkpoints.merge import Merged
from cloudrl.checkpoints.remote_merge_main import MARK, TOKEN, HeadMerge
from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.errors import CheckpointError, ConnectionFailed, InputError, Interrupted, JobFailed
from cloudrl.foreign import NOT_AS_EXPECTED, Malformed, as_object, number_of, parse_object, text_of
from cloudrl.jobs import Ended, JobHandle, Line
from cloudrl.jobs.handle import find_job, raise_for_status, way_back
from cloudrl.options.merge import DEFAULTS, MergeOptions
from cloudrl.protocol.backoff import Backoff
from cloudrl.render.agent import SHARED_PARTS, python_sources
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.transport import inspect_cluster
from cloudrl.verl.metrics import plain

_PARTS = (*SHARED_PARTS, "protocol", "saves", "data", "shards", "options", "checkpoints")
_EPOCH = (1980, 1, 1, 0, 0, 0)


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
    source = checkpoint.source
    if not isinstance(source, ClusterSource):
        raise InputError(f"{source.name} is on this machine: there is no head to merge it", hint="Leave out --on-head")
    if not path.startswith("/"):
        raise InputError(f"--to {path} is relative, and means a folder of the head", hint="Give an absolute path")
    connection, info = source.connection, checkpoint.info
    cluster, agent = inspect_cluster(connection), connection.agent()
    if agent is None or cluster.secrets_dir is None:
        raise InputError(f"{connection.name} has no place where secrets of jobs can be", hint="Leave out --on-head")
    head = next(node for node in agent.status().nodes if node.rank == 0)
    port = head.agent_port or urlsplit(agent.url).port or 80
    give_up_s = (source.backoff or Backoff()).give_up_s
    wanted = HeadMerge(
        f"http://127.0.0.1:{port}",
        info.run,
        info.step,
        info.role,
        info.world_size,
        path,
        options,
        give_up_s,
        checkpoint.first_adapter(),
    )
    package, content = _package()
    submission_id = f"merge-{info.step}-{secrets.token_hex(4)}"
    agent.put_secrets(submission_id, {TOKEN: connection.agent_token or ""})
    ray = connection.ray()
    if not ray.package_exists(package):
        ray.put_package(package, iter([content]), len(content))
    command = [
        "/bin/sh", f"{cluster.secrets_dir}/{submission_id}", "python3", "-m", "cloudrl.checkpoints.remote_merge_main",
        json.dumps(asdict(wanted)),
    ]  # fmt: skip
    ray.submit_job(
        {
            "entrypoint": shlex.join(command),
            "submission_id": submission_id,
            "runtime_env": {"working_dir": f"gcs://{package}"},
            "metadata": {"job_name": submission_id, "cloudrl_recipe": "merge"},
        }
    )
    return _follow(find_job(connection, submission_id), source.backoff, on_progress)


def _follow(job: JobHandle, backoff: Backoff | None, on_progress: OnProgress) -> Merged:
    result: dict[str, Any] = {}
    try:
        for event in job.follow(lines=True, backoff=backoff):
            if isinstance(event, Line):
                result = _heed(_parse(event.text), on_progress) or result
            elif isinstance(event, Ended):
                raise_for_status(job, event)
    except KeyboardInterrupt:
        told = f"no longer following; the merge goes on as job {job.submission_id}"
        raise Interrupted(told, hint=way_back(job.url)) from None
    except Malformed as failure:
        raise _no_merge(job, str(failure)) from None
    except ConnectionFailed as failure:
        told = f"{failure.message}\nthe merge goes on as job {job.submission_id}"
        raise type(failure)(told, hint=way_back(job.url)) from failure
    if not result:
        raise JobFailed(
            f"job {job.submission_id} has ended and says nothing of a model", hint=f"cloudrl jobs logs {job.url}"
        )
    try:
        return Merged(**{**result, "path": Path(result["path"]), "warnings": tuple(result["warnings"])})
    except NOT_AS_EXPECTED:
        raise _no_merge(job, "it is not what a merge says at its end") from None


def _heed(message: Mapping[str, Any], on_progress: OnProgress) -> dict[str, Any]:
    """Pass on what a merge says; returns its result, once it says one.

    Raises:
        CheckpointError: It has failed.
        Malformed: The message has another form.
    """
    if "total" in message:
        on_progress(int(number_of(message, "done") or 0), int(number_of(message, "total") or 0))
    if "error" in message:
        raise CheckpointError(f"on the head: {message['error']}", hint=text_of(message, "hint") or None)
    return as_object(message.get("merged", {}))


def _no_merge(job: JobHandle, sign: str) -> JobFailed:
    return JobFailed(f"job {job.submission_id} says nothing of a merge: {sign}", hint=f"cloudrl jobs logs {job.url}")


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
