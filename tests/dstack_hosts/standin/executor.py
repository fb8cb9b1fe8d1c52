"""One job from submission to its last state.

Source: dstack, runner/internal/runner/executor/executor.go (Run, execJob).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import environment, home
from .journal import Journal, Quota
from .terminal import Terminal


class Executor:
    """Prepares the job, runs it and writes down how it goes.

    Args:
        submission: what the server submitted.
        folder: the runner's own, with the uploaded archives in `file_archives`.
        ssh_port: where the container's sshd listens.
        add_key: lets a public key into the container.
    """

    def __init__(
        self,
        submission: dict[str, Any],
        folder: Path,
        journal: Journal,
        *,
        ssh_port: int,
        add_key: Callable[[str], None],
    ) -> None:
        self._submission = submission
        self._spec: dict[str, Any] = submission["job_spec"]
        self._folder = folder
        self._journal = journal
        self._ssh_port = ssh_port
        self._add_key = add_key
        self._terminal: Terminal | None = None
        self._stopped = False
        self.user = home.job_user(self._spec)
        self.working_dir = home.expand(self._spec.get("working_dir") or os.getcwd(), "/", self.user.home)
        journal.quota = Quota(int(submission.get("log_quota_hour") or 0))

    def stop(self) -> None:
        """Ask the job to end."""
        self._stopped = True
        if self._terminal:
            self._terminal.stop()

    def run(self) -> None:
        """Run the job to its end."""
        self._journal.log("Run job")
        try:
            self._prepare()
        except (OSError, tarfile.TarError) as error:
            self._journal.state("failed", "executor_error", f"Failed to set up files ({error})")
        else:
            self._execute()

    def _prepare(self) -> None:
        nodes = environment.addresses(self._submission)
        key = self._spec.get("ssh_key") or {}
        try:
            if home.write_cluster_key(self.user, key, nodes, self._ssh_port):
                self._add_key(key["public"])
        except OSError as error:
            self._journal.log(f"Failed to set up cluster SSH err={error}")  # and it goes on without
        archives = self._folder / "file_archives"
        for entry in self._spec.get("file_archives") or []:
            target = home.expand(entry["path"], self.working_dir, self.user.home)
            home.extract(archives / entry["id"], target, self.user)
        shutil.rmtree(archives, ignore_errors=True)

    def _execute(self) -> None:
        self._journal.state("running")
        try:
            status, within_quota = self._run_command()
        except (OSError, subprocess.SubprocessError) as error:
            self._journal.log(f"Exec failed err={error}")
            self._journal.state("failed")
            return
        if self._stopped and status != 0:
            self._journal.state("terminated")
        elif not within_quota:
            quota = self._journal.quota.bytes_per_hour
            message = f"Job log output exceeded the hourly quota of {quota} bytes"
            self._journal.state("failed", "log_quota_exceeded", message)
        else:
            self._journal.state("failed" if status else "done", exit_status=status)

    def _run_command(self) -> tuple[int, bool]:
        variables = environment.job_environment(os.environ, self._submission, self.working_dir)
        environment.write_profile(variables)
        os.makedirs(self.working_dir, exist_ok=True)
        variables["HOME"] = self.user.home
        self._terminal = Terminal(self._spec["commands"], variables, self.working_dir, self.user)
        if self._stopped:
            self._terminal.stop()
        with (self._folder / "job.log").open("ab", buffering=0) as log:

            def write(data: bytes) -> bool:
                log.write(data)
                return self._journal.output(data)

            self._terminal.copy_output(write)
        within_quota = self._journal.end_output()
        return self._terminal.wait(), within_quota
