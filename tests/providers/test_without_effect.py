"""A field that has no effect where a cluster is going to run is named, whoever runs it."""

import pytest

from cloudrl.providers.registry import provider
from cloudrl.spec import Cluster

SHARED = {"volumes": ["/shared:/checkpoints"]}
DOCKER, BARE = {"container": "docker", **SHARED}, {"container": "bare", **SHARED}


@pytest.mark.parametrize(
    ("on", "fields", "unused"),
    [
        ("local", {"verl": "0.9.1", "cpu": "8..", "env": {"A": "1"}}, "verl, cpu"),
        ("local", {"slurm": DOCKER}, "slurm"),
        ("dstack", {"gpu": "H100:8", "verl": "0.9.1", "rollout": "vllm", "disk": "1TB", "ports": [6006]}, ""),
        ("dstack", {"gpu": "H100:8", "image": "me:1", "verl": "0.9.1", "slurm": BARE}, "verl, slurm"),
        ("dstack", {"dstack": {"python": "3.12"}, "verl": "0.9.1", "rollout": "vllm"}, "verl, rollout"),
        ("slurm", {"slurm": DOCKER, "gpu": "H100:8", "verl": "0.9.1", "user": "root", "shm_size": "1GB"}, ""),
        ("slurm", {"slurm": DOCKER, "disk": "1TB", "ports": [6006], "dstack": {"retry": False}}, "ports, disk, dstack"),
        ("slurm", {"slurm": BARE, "image": "mine:1", "user": "root", "working_dir": "/w"}, "image, user, working_dir"),
        ("slurm", {"slurm": {**DOCKER, "mem": "1G", "cpus-per-task": 4}, "cpu": "8", "memory": "8GB"}, "cpu, memory"),
        ("slurm", {"slurm": DOCKER, "volumes": ["/other:/checkpoints"]}, "volumes"),
    ],
)  # fmt: skip
def test_fields_without_effect_are_named(on, fields, unused, monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path))
    plan = provider(on).plan(Cluster.load({"name": "lab", **fields}))
    where = {"local": "this machine", "dstack": "dstack", "slurm": "Slurm"}[on]
    assert plan.notes == ((f"without effect on {where}: {unused}",) if unused else ())
