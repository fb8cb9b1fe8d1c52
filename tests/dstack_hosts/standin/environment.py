"""The environment of a job, and the files through which an ssh session gets the same.

Source: dstack, runner/internal/runner/executor/executor.go (execJob, writeDstackProfile, writeMpiHostfile) and
env.go. `${{ }}` is the server's affair: what arrives here goes on as it is, `${VARIABLE}` too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DSTACK = Path("/dstack")
_HOSTFILE = DSTACK / "mpi/hostfile"
_PROFILE = DSTACK / "profile"
_NOT_EXPORTED = ("HOSTNAME", "USER", "HOME", "SHELL", "SHLVL", "PWD", "_")


@dataclass(frozen=True)
class Cluster:
    """The nodes of the run: their addresses by rank, the master's, and GPUs."""

    addresses: list[str]
    master: str
    gpus_per_job: int
    gpus_per_node: list[int]

    @classmethod
    def of(cls, submission: Mapping[str, Any]) -> Cluster:
        """From what the server submitted."""
        info = submission.get("cluster_info") or {}
        addresses = list(info.get("job_ips") or [])
        gpus = int(info.get("gpus_per_job") or 0)
        per_node = info.get("gpus_per_node") or [gpus] * len(addresses)
        return cls(addresses, info.get("master_job_ip") or "", gpus, list(per_node))


def job_environment(
    base: Mapping[str, str], submission: Mapping[str, Any], working_dir: str
) -> dict[str, str]:
    """The container's variables, dstack's, the secrets, the task's `env`, a later one over an earlier."""
    spec, run, cluster = submission["job_spec"], submission["run"], Cluster.of(submission)
    merged = {
        **base,
        "DSTACK_RUN_ID": run["id"],
        "DSTACK_JOB_ID": submission["job_submission"]["id"],
        "DSTACK_RUN_NAME": run["run_spec"]["run_name"],
        "DSTACK_REPO_ID": run["run_spec"].get("repo_id") or "",
        "DSTACK_REPO_DIR": "",
        "DSTACK_WORKING_DIR": working_dir,
        "DSTACK_NODES_IPS": "\n".join(cluster.addresses),
        "DSTACK_MASTER_NODE_IP": cluster.master,
        "DSTACK_NODE_RANK": str(spec["job_num"]),
        "DSTACK_NODES_NUM": str(spec["jobs_per_replica"]),
        "DSTACK_GPUS_PER_NODE": str(cluster.gpus_per_job),
        "DSTACK_GPUS_NUM": str(sum(cluster.gpus_per_node)),
        "DSTACK_MPI_HOSTFILE": str(_HOSTFILE),
        **(submission.get("secrets") or {}),
        **(spec.get("env") or {}),
    }
    return {key: value for key, value in merged.items() if not _is_bash_function(key)}


def write_files(environment: Mapping[str, str], cluster: Cluster) -> None:
    """/dstack/profile, read by login shells, and the MPI hostfile."""
    _HOSTFILE.parent.mkdir(parents=True, exist_ok=True)
    _HOSTFILE.write_text(hostfile(cluster))
    _PROFILE.write_text(profile(environment))
    with Path("/etc/profile").open("a") as file:
        file.write(f"\n. '{_PROFILE}'\n")


def hostfile(cluster: Cluster) -> str:
    """One line a node; empty when an address is missing."""
    if not all(cluster.addresses):
        return ""
    nodes = zip(cluster.addresses, cluster.gpus_per_node, strict=True)
    return "".join(f"{address} slots={gpus}\n" if gpus else f"{address}\n" for address, gpus in nodes)


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
