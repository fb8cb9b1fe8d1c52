"""`tasks/ray-cluster.dstack.yml`: what the SDK renders for the dstack job of verl's multi-node guide."""

from __future__ import annotations

from typing import Any

import pytest
from dstack._internal.core.models.configurations import TaskConfiguration
from dstack_task import parsed
from ready_files import TASKS

# The YAML of that guide (June 2025), as it stands there.
GUIDE: dict[str, Any] = {
    "type": "task",
    "name": "ray-verl-cluster",
    "nodes": 2,
    "env": [
        "WANDB_API_KEY",
        "PYTHONUNBUFFERED=1",
        "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
    ],
    "image": "whatcanyousee/verl:ngc-cu124-vllm0.8.5-sglang0.4.6-mcore0.12.0-te2.2",
    "commands": [
        "git clone https://github.com/volcengine/verl",
        "cd verl",
        "pip install --no-deps -e .",
        "pip install hf_transfer hf_xet",
        """\
if [ $DSTACK_NODE_RANK = 0 ]; then
    python3 examples/data_preprocess/gsm8k.py --local_dir ~/data/gsm8k
    python3 -c "import transformers;
        transformers.pipeline('text-generation', model='Qwen/Qwen2.5-7B-Instruct')"
    ray start --head --port=6379;
else
    ray start --address=$DSTACK_MASTER_NODE_IP:6379
fi""",
    ],
    "ports": [8265],
    "resources": {"gpu": "80GB:8", "shm_size": "128GB"},
    "volumes": ["/checkpoints:/checkpoints"],
}

# Every key in which we differ from the guide, and why.
DIFFERENCES = {
    "name": "the name of the file, and of the cluster in all of our documents",
    "env": (
        "WANDB_API_KEY without a value would make a raw apply fail where it is unset; it is given at submit. "
        "CUDA_VISIBLE_DEVICES: dstack gives a container its GPUs and Ray each worker one of them; a fixed "
        "list is wrong on any node with another number of GPUs"
    ),
    "image": "the guide's image has vLLM 0.8.5; verl 0.9 needs 0.18 or later and names this image",
    "commands": (
        "one agent does it all: verl pinned instead of the main branch, data and model on every node (the "
        "driver may land on any), Ray in the foreground (the guide's `ray start` returns, and the run ends), "
        "dashboard on loopback, one READY when all are there"
    ),
    "ports": "8266 is the agent: status, logs, checkpoints",
    "files": "the agent travels beside the file",
    "resources": ("80GB:8 leaves the vendor open, and the image runs on NVIDIA's GPUs only: nvidia:80GB:8"),
    "retry": "the guide loses the run with the first lost node",
    "startup_order": "the default, stated because the agent relies on it",
    "stop_criteria": "when the head ends, the others end too and cost no more",
}


def test_the_fields_that_differ_from_the_guide_are_these():
    ours, theirs = parsed(TASKS["ray-cluster"]), TaskConfiguration.model_validate(GUIDE)
    differing = {
        field for field in TaskConfiguration.model_fields if getattr(ours, field) != getattr(theirs, field)
    }
    assert differing == set(DIFFERENCES)


def test_no_variable_lacks_a_value():
    with pytest.raises(ValueError, match="WANDB_API_KEY"):
        TaskConfiguration.model_validate(GUIDE).env.as_dict()
    assert parsed(TASKS["ray-cluster"]).env.as_dict() == {"PYTHONUNBUFFERED": "1"}
