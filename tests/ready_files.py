"""What the files in `fleets/` and `tasks/` declare; each is what the SDK renders of it, under its name."""

from __future__ import annotations

from pathlib import Path

from cloudrl.providers.dstack.fleet import Fleet
from cloudrl.recipes import load_spec
from cloudrl.spec import Cluster
from cloudrl.verl.releases import RELEASE

AMD_FILE = Path(__file__).parents[1] / "tasks/ppo-rocm.cluster.yml"

HOSTS = ["gpu-1.example.com", "gpu-2.example.com"]
FLEETS = {
    each.name: each
    for each in (
        Fleet(
            # one more than a cluster of two needs: a lost machine counts for 20 minutes. Of disks that can be of any
            # size, dstack rents the smallest: it has to do for the largest of the tasks.
            name="cloud-h100", nodes={"min": 0, "target": 2, "max": 3}, gpu="H100:8", disk="2TB..",
        ),
        Fleet(name="ssh", ssh_config={"user": "ubuntu", "identity_file": "~/.ssh/id_ed25519", "hosts": HOSTS}),
    )
}  # fmt: skip

TASKS = {
    each.name: each
    for each in (
        # verl's multi-node guide: PPO of a 7B model
        Cluster(
            name="ray-cluster", nodes=2, gpu="80GB..:8", shm_size="128GB", data=["gsm8k"],
            models=["Qwen/Qwen2.5-7B-Instruct"], env={"PYTHONUNBUFFERED": "1"},
        ),
        # GRPO of a 32B model on two nodes. The fleet's disk holds the model (66 GB) and checkpoints with the
        # optimizer's state, twelve bytes a parameter: 390 GB each over the nodes.
        Cluster(
            name="grpo-qwen3-32b", nodes=2, gpu="80GB..:8", shm_size="128GB", data=["gsm8k"],
            models=["Qwen/Qwen3-32B"],
        ),
        # verl with SGLang on two nodes of eight H20 (96 GB), whose small disks share models and data sets in one folder
        Cluster(
            name="ppo-sglang-7b", nodes=2, rollout="sglang", gpu="80GB..:8", shm_size="128GB", data=["gsm8k", "math"],
            models=["Qwen/Qwen2-7B-Instruct"],
            env={
                "HF_HOME": "/model/shared/.cache/huggingface",
                "HF_DATASETS_CACHE": "/model/shared/.cache/huggingface/datasets",
            },
            volumes=["/var/lib/cloudrl/checkpoints:/checkpoints", "/model/shared:/model/shared"],
        ),
        # PPO of a 0.5B model on two nodes of eight MI300X
        load_spec(Cluster, AMD_FILE),
        # Without GPUs, for the recipe grpo-tiny. dstack's own image, since verl's are for GPUs; the versions are those
        # of constraints.txt. The two variables let jobs find cloudrl's plug-in for verl, which travels with the agent.
        Cluster(
            name="ray-cluster-cpu", nodes=2, dstack={"python": "3.12"},
            setup=[
                "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu",
                f"pip install 'ray[default]==2.60.0' verl=={RELEASE.verl} transformers==5.10.4 tensordict==0.10.0",
                "pip install TransferQueue==0.1.11 uvicorn==0.54.0 fastapi==0.165.0 cachetools==8.0.1",
            ],
            env={
                "PYTHONPATH": "/opt/cloudrl/cloudrl-node.pyz",
                "VERL_USE_EXTERNAL_MODULES": "cloudrl.verl_cpu.plugin",
            },
            gpu="0", cpu="4..", memory="16GB..", disk="50GB..", data=["addition"], models=["tiny-adder"],
        ),
    )
}  # fmt: skip
