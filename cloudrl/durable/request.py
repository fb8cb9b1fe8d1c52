"""The request of an attempt: the job's own, with another id and the step that it goes on from. Pure."""

from __future__ import annotations

import shlex
from typing import Any, Dict, List, Mapping

from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.folders import ATTEMPT_VARIABLE
from cloudrl.saves.names import VALIDATE_FIRST

JOB_KEY, ATTEMPT_KEY = "cloudrl_job", "cloudrl_attempt"
"""In the metadata that Ray keeps: of which job this is an attempt, and which one."""


def request_of_attempt(job: DurableJob, overrides: Mapping[str, str], variables: Mapping[str, str]) -> Dict[str, Any]:
    """The body of `POST /api/jobs/` for the newest attempt of a job.

    Args:
        job: with that attempt.
        overrides: take the place of the command's own for the same keys.
        variables: likewise, of the job's environment.
    """
    attempt = job.attempts[-1]
    metadata = {**(job.request.get("metadata") or {}), JOB_KEY: job.job_id, ATTEMPT_KEY: str(attempt.number)}
    words = shlex.split(str(job.request["entrypoint"]))
    is_resumed = attempt.number > 1 and attempt.from_step > 0
    more = {VALIDATE_FIRST: "False"} if is_resumed and not _sets(words, VALIDATE_FIRST) else {}
    command = shlex.join(with_overrides(words, {**overrides, **more}))
    runtime_env = dict(job.request.get("runtime_env") or {})
    own = runtime_env.get("env_vars") or {}
    runtime_env["env_vars"] = {**own, **variables, ATTEMPT_VARIABLE: attempt.submission_id}
    return {
        **job.request, "entrypoint": command, "submission_id": attempt.submission_id, "metadata": metadata,
        "runtime_env": runtime_env,
    }  # fmt: skip


def with_overrides(words: List[str], overrides: Mapping[str, str]) -> List[str]:
    """A command with these overrides in place of its own for the same keys."""
    kept = [word for word in words if _key(word) not in overrides]
    return [*kept, *(f"{key}={value}" for key, value in overrides.items())]


def _sets(words: List[str], key: str) -> bool:
    return any(_key(word) == key for word in words)


def _key(word: str) -> str:
    """Of an override as Hydra reads it; "" for any other word."""
    name, equals, _ = word.partition("=")
    return name.lstrip("+~") if equals else ""
