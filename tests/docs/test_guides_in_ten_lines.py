"""The ten lines for each guide say what the guide says: its cluster, and that its job fits on it."""

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from planning import plan
from ready_files import TASKS

from cloudrl.jobs import SubmitOptions
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.services import Service as AgentsService
from cloudrl.spec.hydra import parse_overrides
from cloudrl.spec.services import agent_service as declared_service

PAGE = (Path(__file__).parents[2] / "docs/guides-in-ten-lines.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

GUIDES: dict[str, dict[str, Any]] = {
    # name in the page -> what the guide's own files say, in dstack's words
    "ray-verl-cluster": {
        "nodes": 2, "gpu": "80GB:8", "shm_size": "128GB", "volumes": ["/checkpoints:/checkpoints"],
        "env": {"PYTHONUNBUFFERED": "1"}, "data": ["gsm8k"], "model": "Qwen/Qwen2.5-7B-Instruct",
    },
    "ppo-rocm": {  # two tasks of 28 CPUs
        "nodes": 2, "gpu": "MI300X:8", "cpu": "56..", "memory": "200GB..", "shm_size": "128GB",
        "data": ["gsm8k", "math"], "model": "Qwen/Qwen2.5-0.5B-Instruct",
    },
    "verl-sglang": {
        "nodes": 2, "gpu": "80GB..:8", "data": ["gsm8k", "math"], "model": "Qwen/Qwen2-7B-Instruct",
        "env": {  # the guide writes .cached for one of the two, which would be two caches
            "HF_DATASETS_CACHE": "/model/shared/.cache/huggingface/datasets",
            "HF_HOME": "/model/shared/.cache/huggingface",
        },
    },
    "qwen3-32b": {"nodes": 2, "gpu": "8", "data": ["gsm8k"], "model": "Qwen/Qwen3-32B"},
    "search-r1": {
        "nodes": 2, "gpu": "8", "data": ["nq_search"], "model": "Qwen/Qwen2.5-7B",
        "service": "retrieval_launch.sh", "url": "http://127.0.0.1:8000/retrieve",
    },
}  # fmt: skip
DIFFERENT = {
    # the image is for NVIDIA, and dstack would take others too; exactly 80 GB would shut out H200 and B200
    ("ray-verl-cluster", "gpu"): "nvidia:80GB..:8",
    ("ray-verl-cluster", "volumes"): ["/var/lib/cloudrl/checkpoints:/checkpoints"],  # `/` may be read-only
    ("ppo-rocm", "cpu"): "x86:56..",  # else the server asks an image registry for the architecture, at each restart
    ("verl-sglang", "gpu"): "nvidia:80GB..:8",
    ("qwen3-32b", "gpu"): "nvidia:80GB..:8",  # the guide says eight, and not which
    ("search-r1", "gpu"): "nvidia:80GB..:8",  # likewise
}
"""On purpose."""
NOTES = {
    "search-r1": (
        "verl 0.1 cannot resume a run: one that is interrupted starts over from its model",
        (
            "this job is not started again if a machine is lost: verl 0.1 cannot go on from a step. "
            "All the same: --durable"
        ),
        (
            "not checked before the job starts: the configuration (cloudrl does not know verl 0.1; "
            "cloudrl verl add makes it known)"
        ),
    )
}
"""What is said of a job on its own cluster."""


@pytest.fixture(params=BLOCKS, ids=lambda text: re.search(r'name="([^"]+)"', text)[1])
def names(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What is defined when the lines have run."""
    space: dict[str, Any] = {}
    exec(compile(request.param, "guides-in-ten-lines.md", "exec"), space)
    return space


def test_all_guides_are_there_in_ten_lines() -> None:
    assert [re.search(r'name="([^"]+)"', text)[1] for text in BLOCKS] == list(GUIDES)
    assert all(len(text.strip().splitlines()) <= 10 for text in BLOCKS)


def test_the_cluster_is_the_guides(names: dict[str, Any]) -> None:
    cluster = names["cluster"]
    task, guide = yaml.safe_load(cluster.to_dstack()), GUIDES[cluster.name]
    said = {**task, **task["resources"]}
    for key in set(guide) - {"data", "model", "env", "service", "url"}:
        assert said[key] == DIFFERENT.get((cluster.name, key), guide[key]), key
    assert guide.get("env", {}).items() <= task["env"].items() if "env" in guide else True
    *_, command = task["commands"]
    assert re.findall(r"--data (\S+)", command) == guide["data"]
    assert re.findall(r"--model (\S+)", command) == [guide["model"]]
    assert {8265, 8266} <= set(task["ports"])


@pytest.mark.parametrize("names", [text for text in BLOCKS if 'name="ppo-rocm"' in text], indirect=True)
def test_the_cluster_for_amd_is_the_file_in_tasks(names: dict[str, Any]) -> None:
    assert names["cluster"].explicit_fields() == TASKS["ppo-rocm"].explicit_fields()


def test_every_difference_is_one() -> None:
    for (name, key), value in DIFFERENT.items():
        assert GUIDES[name][key] != value


def test_the_job_fits_on_the_cluster(names: dict[str, Any]) -> None:
    """Nodes, GPUs, data, model and engine of the recipe are those of the cluster."""
    cluster, job = names["cluster"], names["job"]
    guide = GUIDES[cluster.name]
    view = ClusterFacts(
        cluster.name, "x", "dstack", cluster.nodes, gpu_nodes=cluster.nodes, gpus_per_node=8, device="gpu",
        checkpoint_dir="/checkpoints",
        data={name: {"train": f"/d/{name}/train.parquet", "test": f"/d/{name}/test.parquet"} for name in guide["data"]},
        models={guide["model"]: "/m"}, services=("search",), verl_version=job.verl,
        rollouts=(cluster.rollout or "vllm",), divides_nodes=True,
    )  # fmt: skip
    submission = plan(job, view, SubmitOptions())
    said = tuple(text for text in submission.remarks.sentences if "memory (card unknown)" not in text)
    assert said == NOTES.get(cluster.name, ())
    final = parse_overrides(
        {key: value for key, _, value in (word.partition("=") for word in submission.argv if "=" in word)}
    )
    assert (final["trainer.nnodes"], final["trainer.n_gpus_per_node"]) == ("2", "8")
    assert final["actor_rollout_ref.model.path"] == "/m"


def test_the_server_that_the_job_asks_is_the_clusters(names: dict[str, Any]) -> None:
    cluster, guide = names["cluster"], GUIDES[names["cluster"].name]
    services = [declared_service(each) for each in cluster.services]
    assert len(services) == ("service" in guide)
    for service in services:
        url = parse_overrides(names["job"].overrides)["retriever.url"]
        assert url == guide["url"]
        assert urlsplit(url).port == service.port
        assert guide["service"] in service.command
        *_, command = yaml.safe_load(cluster.to_dstack())["commands"]
        assert AgentOptions.from_argv(shlex.split(command.replace("\\\n", ""))[4:]).services == (
            AgentsService(service.port, service.command),
        )
