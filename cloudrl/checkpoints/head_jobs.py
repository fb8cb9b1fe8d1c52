"""Work on files of a cluster that its head does, as a Ray job that brings our code along.

The image has Python and numpy, and nothing of ours. The job outlives this program, as every job does. It says how far
it is, and what came of it, in lines of JSON after a mark (`cloudrl.checkpoints.head_side`).
"""

import hashlib
import io
import json
import secrets
import shlex
import zipfile
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from cloudrl.checkpoints.head_side import MARK, RESULTS, TOKEN
from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.errors import CheckpointError, ConnectionFailed, InputError, Interrupted, JobFailed
from cloudrl.foreign import Malformed, number_of, parse_object, text_of
from cloudrl.jobs import Ended, JobHandle, Line
from cloudrl.jobs.handle import FOLLOW, find_job, raise_for_status, way_back
from cloudrl.render.agent import SHARED_PARTS, python_sources
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.transport import inspect_cluster
from cloudrl.verl.metrics import plain

_PARTS = (*SHARED_PARTS, "protocol", "saves", "data", "shards", "options", "checkpoints")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def no_note(_sentence: str) -> None:
    """Report nothing."""


def head_agent(source: ClusterSource) -> str:
    """The address of the head's agent, for a job on the head.

    Raises:
        InputError: The cluster has no agents.
    """
    agent = source.connection.agent()
    if agent is None:
        raise _no_place(source)
    head = next(node for node in agent.status().nodes if node.rank == 0)
    return f"http://127.0.0.1:{head.agent_port or urlsplit(agent.url).port or 80}"


def _no_place(source: ClusterSource) -> InputError:
    name = source.connection.name
    return InputError(f"{name} has no place where secrets of jobs can be", hint="Leave out --on-head")


def start_on_head(
    source: ClusterSource,
    module: str,
    wanted: Mapping[str, Any],
    variables: Mapping[str, str],
    prefix: str,
    metadata: Mapping[str, str] | None = None,
) -> JobHandle:
    """Submit a job that runs a module of `checkpoints` on the head.

    Args:
        source: The cluster.
        module: Its name; what is `wanted` is its argument, as JSON.
        wanted: See the module.
        variables: For its environment; they go through the agents, as secrets do.
        prefix: Of its id, `merge-20`.
        metadata: More of it.

    Raises:
        InputError: The cluster has no place for secrets.
        ConnectionFailed: no answer.
    """
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
        "/bin/sh", f"{cluster.secrets_dir}/{submission_id}", "python3", "-m", f"cloudrl.checkpoints.{module}",
        json.dumps(wanted),
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


def result_of(
    job: JobHandle,
    source: ClusterSource,
    what: str,
    on_progress: OnProgress,
    on_upload: OnProgress = silent,
    on_note: Callable[[str], None] = no_note,
) -> dict[str, Any]:
    """Follow a job to the message in which it says what came of it.

    Args:
        job: That `start_on_head` has made.
        source: The cluster.
        what: It does, a noun.
        on_progress: Called with bytes.
        on_upload: Called with bytes of an upload.
        on_note: Called with sentences.

    Raises:
        CheckpointError: It has failed.
        ConnectionFailed: the cluster no longer answers; the job goes on.
        Interrupted: Ctrl-C; the job goes on.
        JobFailed: It says nothing of a result.
    """
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
        raise no_result(job, what, str(failure)) from None
    except ConnectionFailed as failure:
        told = f"{failure.message}\nthe {what} goes on as job {job.submission_id}"
        raise type(failure)(told, hint=way_back(job.url, FOLLOW)) from failure
    if not result:
        raise JobFailed(
            f"job {job.submission_id} has ended and says nothing of its result", hint=f"cloudrl jobs logs {job.url}"
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
    return dict(message) if RESULTS & message.keys() else {}


def _count(message: Mapping[str, Any], name: str) -> int:
    return int(number_of(message, name) or 0)


def no_result(job: JobHandle, what: str, sign: str) -> JobFailed:
    """For a job whose last word cannot be read, and why."""
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
