"""The head of a cluster in memory that really runs what is sent to it, under a Python with numpy and nothing else."""

import io
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from fake_cluster import FakeCluster
from node_image import link_numpy


class Head(FakeCluster):
    """Runs what is submitted to it, in a folder with the package, and keeps what it prints."""

    packages_of_the_image: tuple[str, ...] = ()
    variables_of_the_cluster: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.status["facts"]["secrets_dir"] = "/dev/shm/secrets"
        self.status["nodes"][0]["agent_port"] = urlsplit(self.agent_url).port
        self.on_submit = self._run

    def _run(self, submission_id: str) -> None:
        job = self.jobs[submission_id]
        place = self.folder / submission_id
        (content,) = self.packages.values()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(place)
        shell, secrets, python, *words = shlex.split(job.body["entrypoint"])
        assert (shell, secrets, python) == ("/bin/sh", f"/dev/shm/secrets/{submission_id}", "python3")
        base = getattr(sys, "_base_executable", sys.executable)
        packages = place / "packages"  # numpy and nothing else
        packages.mkdir()
        link_numpy(packages)
        path = os.pathsep.join((str(packages), *self.packages_of_the_image))
        env = {**self.variables_of_the_cluster, "PYTHONPATH": path, "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [base, *words], cwd=place, env={**env, **self.secrets[submission_id]}, capture_output=True, timeout=60
        )
        self.write(submission_id, b"(driver pid=1) warm-up\n" + done.stdout + done.stderr)
        self.end(submission_id, "SUCCEEDED" if done.returncode == 0 else "FAILED", f"exit {done.returncode}")
