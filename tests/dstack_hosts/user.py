"""Somebody at a terminal of the lab who types `cloudrl`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .runs import until

if TYPE_CHECKING:
    from .hosts import Host
    from .lab import Lab

Typed = subprocess.CompletedProcess[str]
# `user` and an architecture: without them the server asks an image registry. The stand-in hosts run no images.
SHAPE = (
    "--image", "any", "--set", "user=root", "--gpu", "none", "--set", "cpu=x86:1..",
    "--set", "memory=1GB..", "--set", "disk=1GB..",
)  # fmt: skip
MODEL = ("--model", "tiny-qwen2")  # not the pretrained one: each host would have to make it
FILES = ("--data", "addition", *MODEL)
COUNT_END, COUNT_END_ON_HOST = "/checkpoints/end", "/var/lib/cloudrl/checkpoints/end"
# Writes a numbered line every 50 ms until the file is there, for at most ten minutes.
COUNT = (
    f"import os, time, itertools; list(itertools.takewhile(lambda number: not os.path.exists('{COUNT_END}') and "
    "(print('line', number, flush=True), time.sleep(0.05)), range(12000)))"
)
# Says how many nodes Ray has.
PROBE = "import ray; ray.init(log_to_driver=False); print('nodes', sum(node['Alive'] for node in ray.nodes()))"


class User:
    """Types commands in a lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def types(self, *words: str, code: int = 0, timeout_s: float = 180.0, cwd: Path | None = None) -> Typed:
        """Type a command and wait for its end; its exit code must be the expected one."""
        done = self.lab.run(*words, timeout_s=timeout_s, cwd=cwd)
        assert done.returncode == code, done.stdout
        return done

    def up(self, name: str, fleet: str, *words: str, nodes: int = 2) -> str:
        """`cloudrl up`; what it printed. The cluster is READY."""
        at = ("--on", "dstack", "--set", f"dstack.fleets=[{fleet}]", "--nodes", str(nodes))
        return self.types("cloudrl", "up", name, *at, *SHAPE, *words, "-y", timeout_s=400).stdout

    def status(self, name: str) -> Any:
        """`cloudrl status NAME --json`."""
        done = self.lab.run("cloudrl", "status", name, "--json", timeout_s=90)
        text = done.stdout[done.stdout.find("{") :]
        assert text, done.stdout
        return json.JSONDecoder().raw_decode(text)[0]

    def wait_ready(self, name: str, timeout_s: float = 240.0) -> Any:
        """Wait until the present attempt says READY, and the tunnel to its head is open; the status."""
        self.lab.runs.wait_for_line(name, "READY", timeout_s=timeout_s)
        looks: list[Any] = []

        def is_ready() -> bool:
            looks.append(self.status(name))
            return bool(looks[-1]["phase"] == "ready")

        until(is_ready, 30, lambda: f"not ready: {looks[-1]}")
        return looks[-1]

    def recipe(self, name: str, code: str, *, words: Sequence[str] = (), reads: bool = False) -> Path:
        """A job without training: a file with a cheap entry point. `reads`: it wants `FILES`, as a training does."""
        path = self.lab.home / f"{name}.yml"
        entry = ["python3", "-c", code, *words]
        files = ("data.train_files", "data.val_files", "actor_rollout_ref.model.path")  # asked for, never read
        overrides = {} if reads else dict.fromkeys(files, "/nowhere")
        wanted = {"data": ["addition"], "model": MODEL[1]} if reads else {}
        job = {"name": name, "device": "cpu", "entrypoint": entry, "overrides": overrides, **wanted}
        path.write_text(json.dumps(job))
        return path

    def submits(self, recipe: Path, cluster: str, submission_id: str) -> str:
        """`cloudrl submit --no-wait` of a file; the id."""
        words = ("--cluster", cluster, "--submission-id", submission_id, "--no-wait")
        self.types("cloudrl", "submit", str(recipe), *words)
        return submission_id

    def counts(self, cluster: str, submission_id: str) -> str:
        """Submit a job that counts until `COUNT_END` is on its node; the id."""
        for host in self.lab.hosts:
            host.path(COUNT_END_ON_HOST).unlink(missing_ok=True)
        return self.submits(self.recipe("count", COUNT), cluster, submission_id)

    def jobs(self, cluster: str) -> list[str]:
        """Ids of all jobs that a cluster knows."""
        listed = self.types("cloudrl", "jobs", "list", "--json", "--cluster", cluster).stdout
        return [job["submission_id"] for job in json.JSONDecoder().raw_decode(listed[listed.find("[") :])[0]]

    def probe(self, cluster: str, submission_id: str) -> str:
        """Submit a small job and wait for its log."""
        self.submits(self.recipe("probe", PROBE), cluster, submission_id)
        return self.types("cloudrl", "jobs", "logs", "-f", submission_id, "--cluster", cluster).stdout

    def hosts_of(self, run: str) -> list[Host]:
        """The hosts of a run's present attempt, by rank."""
        by_address = {host.address: host for host in self.lab.hosts}
        return [by_address[str(each.address)] for each in self.lab.runs.submissions(run)]
