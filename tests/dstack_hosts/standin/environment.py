"""The environment of a job, and the files through which an ssh session gets the same.

Source: dstack, runner/internal/runner/executor/executor.go (execJob, writeDstackProfile) and
env.go. `${{ }}` is the server's affair: what arrives here goes on as it is, `${VARIABLE}` too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DSTACK = Path("/dstack")
_PROFILE = DSTACK / "profile"
_NOT_EXPORTED = ("HOSTNAME", "USER", "HOME", "SHELL", "SHLVL", "PWD", "_")


def addresses(submission: Mapping[str, Any]) -> list[str]:
    """The nodes of the run, by rank."""
    return list((submission.get("cluster_info") or {}).get("job_ips") or [])


def job_environment(base: Mapping[str, str], submission: Mapping[str, Any], working_dir: str) -> dict[str, str]:
    """The container's variables, dstack's, the secrets, the task's `env`, a later one over an earlier."""
    spec, run, nodes = submission["job_spec"], submission["run"], addresses(submission)
    info = submission.get("cluster_info") or {}
    gpus = int(info.get("gpus_per_job") or 0)
    merged = {
        **base,
        "DSTACK_RUN_ID": run["id"],
        "DSTACK_JOB_ID": submission["job_submission"]["id"],
        "DSTACK_RUN_NAME": run["run_spec"]["run_name"],
        "DSTACK_REPO_ID": run["run_spec"].get("repo_id") or "",
        "DSTACK_REPO_DIR": "",
        "DSTACK_WORKING_DIR": working_dir,
        "DSTACK_NODES_IPS": "\n".join(nodes),
        "DSTACK_MASTER_NODE_IP": info.get("master_job_ip") or "",
        "DSTACK_NODE_RANK": str(spec["job_num"]),
        "DSTACK_NODES_NUM": str(spec["jobs_per_replica"]),
        "DSTACK_GPUS_PER_NODE": str(gpus),
        "DSTACK_GPUS_NUM": str(gpus * len(nodes)),
        **(submission.get("secrets") or {}),
        **(spec.get("env") or {}),
    }
    return {key: value for key, value in merged.items() if not _is_bash_function(key)}


def write_profile(environment: Mapping[str, str]) -> None:
    """/dstack/profile, read by login shells."""
    DSTACK.mkdir(parents=True, exist_ok=True)
    _PROFILE.write_text(profile(environment))
    with Path("/etc/profile").open("a") as file:
        file.write(f"\n. '{_PROFILE}'\n")


def profile(environment: Mapping[str, str]) -> str:
    """Shell text that exports the variables and goes to the working directory."""
    lines = [
        "export {}='{}'\n".format(key, value.replace("'", "'\"'\"'"))
        for key, value in environment.items()
        if key not in _NOT_EXPORTED and re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", key)
    ]
    return "".join(lines) + 'cd "$DSTACK_WORKING_DIR"\n'


def _is_bash_function(key: str) -> bool:
    return key.startswith("BASH_FUNC_") and key.endswith(("%%", "()"))
