"""Tasks of dstack and SkyPilot, and the lines of sbatch, as fields of a cluster."""

from typing import Any

import pytest
from taken_over import TakeOver

from cloudrl.errors import InputError
from cloudrl.scripts.dstack_file import DstackTask
from cloudrl.scripts.lines import Fate
from cloudrl.scripts.sbatch import read_sbatch, slurm_variables
from cloudrl.scripts.sky_file import SkyTask
from cloudrl.scripts.task_file import kind_of_file
from cloudrl.spec import Cluster, yaml_core


@pytest.mark.parametrize(
    ("resources", "fields"),
    [
        ({"accelerators": "H100:8"}, {"gpu": "H100:8"}),
        ({"accelerators": {"A100-80GB": 4}}, {"gpu": "A100:80GB:4"}),
        ({"accelerators": ["A100:8", "H100:8", "H200:4"]}, {"gpu": "A100,H100:8"}),
        ({"accelerators": "L4"}, {"gpu": "L4:1"}),
        ({"cpus": "32+", "memory": "512+"}, {"cpu": "32..", "memory": "512GB.."}),
        ({"cpus": 8, "memory": "64GB"}, {"cpu": "8", "memory": "64GB"}),
        ({"disk_size": 500}, {"disk": "500GB.."}),
        ({"use_spot": True}, {"dstack": {"spot_policy": "spot"}}),
        ({"infra": "aws/us-east-1"}, {"dstack": {"backends": ["aws"], "regions": ["us-east-1"]}}),
        ({"cloud": "gcp", "region": "eu-west4"}, {"dstack": {"backends": ["gcp"], "regions": ["eu-west4"]}}),
        ({"ports": [8265, 8280]}, {"ports": ["8280"]}),
        ({"image_id": "docker:verlai/verl:vllm012"}, {"image": "verlai/verl:vllm012"}),
        ({"image_id": "docker:nvcr.io/nvidia/pytorch:25"}, {}),
        ({"any_of": [{"accelerators": "H100:8"}, {"accelerators": "A100:8"}]}, {"gpu": "H100:8"}),
    ],
)
def test_resources_of_skypilot(resources: dict[str, Any], fields: dict[str, Any]) -> None:
    read = SkyTask({"run": "true", "resources": resources}).read()
    assert read.cluster == fields
    Cluster.load({"name": "ab", **fields})


def test_what_skypilot_has_and_cloudrl_has_not_is_named() -> None:
    read = SkyTask({"run": "true", "service": {"replicas": 2}}).read()
    assert [line.text for line in read.lines if line.fate is Fate.UNKNOWN] == ["service"]


@pytest.mark.parametrize(
    ("nodes", "mount", "volume", "create"),
    [
        (1, {"source": "s3://my.bucket/x", "mode": "COPY"}, "my-bucket:/d", "volume create my-bucket --backend"),
        (1, "gs://b1/x/", "b1:/d", "--setup 'aws s3 sync gs://b1/x/ /d'"),
        (1, {"name": "out", "store": "s3", "mode": "MOUNT"}, "out:/d", "volume create out --backend"),
        (2, "s3://b1", "b1-${{ dstack.node_rank }}:/d", "volume create b1-0 --backend NAME --region NAME --size 500GB"),
    ],
)
def test_a_bucket_of_skypilot_is_a_network_volume(nodes: int, mount: object, volume: str, create: str) -> None:
    read = SkyTask({"run": "true", "num_nodes": nodes, "file_mounts": {"/d": mount}}).read()
    assert read.cluster["volumes"] == [volume]
    [line] = [line for line in read.lines if line.text.startswith("file_mounts")]
    assert (line.fate, create in line.why) == (Fate.TAKEN, True)


def test_what_skypilot_mounts_of_the_hub_is_data_or_a_model() -> None:
    mounts = {"/d": "hf://datasets/openai/gsm8k", "/m": {"source": "hf://Qwen/Qwen2.5-7B@main", "mode": "COPY"}}
    read = SkyTask({"run": "true", "file_mounts": mounts}).read()
    assert read.cluster == {"data": ["openai/gsm8k"], "models": ["Qwen/Qwen2.5-7B"]}


TRAINS = """python3 -m verl.trainer.main_ppo \\
  data.train_files=/data/train.parquet data.val_files=$HOME/mine/val.parquet \\
  reward.custom_reward_function.path=reward.py trainer.default_local_dir=/ckpt/run"""


@pytest.mark.io
@pytest.mark.parametrize(
    "task",
    [
        {"run": TRAINS, "workdir": "code", "file_mounts": {"/data": "./data", "~/mine/val.parquet": "data/v.parquet"}},
        {"type": "task", "commands": ["cd code", TRAINS],
         "files": ["./data:/data", {"local_path": "data/v.parquet", "path": "~/mine/val.parquet"}]},
    ],
    ids=["SkyPilot", "dstack"],
)  # fmt: skip
def test_files_that_a_task_sends_are_sent_with_the_job(take_over: TakeOver, task: dict[str, Any]) -> None:
    files = {"data/train.parquet": "", "data/v.parquet": "", "code/reward.py": ""}
    imported = take_over(yaml_core.dump_mapping(task), name="a.yml", files=files)
    [training] = imported.trainings
    sent = dict(training.fields["overrides"])
    is_sky = "run" in task
    assert sent == {
        "data.train_files": "./data/train.parquet", "data.val_files": "./data/v.parquet",
        "reward.custom_reward_function.path": "reward.py" if is_sky else "./code/reward.py",
        "trainer.default_local_dir": "/ckpt/run",
    }  # fmt: skip
    assert training.working_dir == ("./code" if is_sky else None)


@pytest.mark.io
def test_volumes_have_the_folder_for_checkpoints(take_over: TakeOver) -> None:
    """A cluster whose volumes lack it is refused."""
    imported = take_over("type: task\ncommands: [x]\nvolumes: ['/d:/d']\nresources: {gpu: 1}\n", name="a.yml")
    assert imported.cluster["volumes"] == ["/d:/d", "/checkpoints:/checkpoints"]
    mounted = take_over("run: x\nfile_mounts: {/checkpoints: 's3://b1'}\n", name="b.yml")
    assert mounted.cluster["volumes"] == ["b1:/checkpoints"]


DSTACK = {
    "type": "task", "nodes": 2, "image": "verlai/verl:x", "env": ["WANDB_API_KEY", "A=1"],
    "commands": ["pip install x", "echo $A"], "ports": [8265, "8000:8000"], "volumes": ["/checkpoints:/checkpoints"],
    "resources": {"gpu": {"name": ["H100", "H200"], "count": 8}, "shm_size": "128GB", "disk": {"size": "500GB.."}},
    "spot_policy": "auto", "retry": True, "fleets": ["f"], "working_dir": "/x",
}  # fmt: skip


def test_a_task_of_dstack() -> None:
    read = DstackTask(DSTACK).read()
    assert read.cluster == {
        "nodes": 2, "image": "verlai/verl:x", "gpu": "H100,H200:8", "shm_size": "128GB", "disk": "500GB..",
        "volumes": ["/checkpoints:/checkpoints"], "ports": ["8000:8000"],
        "dstack": {"spot_policy": "auto", "retry": True, "fleets": ["f"]},
    }  # fmt: skip
    assert read.script == "pip install x\necho $A\n"
    assert (read.env["A"], read.env["DSTACK_GPUS_PER_NODE"], read.wanted) == ("1", "8", ())
    assert "--env WANDB_API_KEY" in next(line.why for line in read.lines if "WANDB_API_KEY" in line.text)
    Cluster.load({"name": "ab", **read.cluster})


def test_groups_of_dstack_become_equal_nodes() -> None:
    resources = {"gpu": "80GB:8", "shm_size": "128GB"}
    groups = [
        {"nodes": 1, "commands": ["ray start --head"], "ports": [8265], "resources": resources},
        {"nodes": 3, "commands": ["ray start --address=x"], "resources": {"gpu": "80GB:8"}},
    ]
    read = DstackTask({"type": "task", "groups": groups}).read()
    assert read.cluster == {"nodes": 4, "gpu": "80GB:8", "shm_size": "128GB"}
    assert read.script == "ray start --head\n"
    [line] = [line for line in read.lines if line.text == "groups"]
    assert "first group" not in line.why
    groups[1]["resources"] = {"gpu": "24GB:1"}
    other = DstackTask({"type": "task", "groups": groups}).read()
    assert "first group" in next(line.why for line in other.lines if line.text == "groups")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"type": "task", "commands": []}, "dstack"),
        ({"run": "x"}, "SkyPilot"),
        ({"setup": "x", "resources": {}}, "SkyPilot"),
        ({"name": "mine", "overrides": {}}, None),
        ({"name": "a-cluster", "nodes": 2, "setup": ["x"]}, None),
    ],
)
def test_whose_file_it_is(values: dict[str, Any], kind: str | None) -> None:
    assert kind_of_file(values) == kind


SBATCH = """#!/bin/bash
#SBATCH --job-name=My_Job
#SBATCH -N 4
#SBATCH --gres=gpu:h100:8   # a comment
#SBATCH --cpus-per-task 32
#SBATCH --mem=200G
#SBATCH --time=1-00:00:00
#SBATCH -A acc
#SBATCH --exclusive
#SBATCH --output=x.out
##SBATCH --partition=off

echo go
#SBATCH --nodes=9
"""


def test_lines_of_sbatch() -> None:
    slurm = read_sbatch(SBATCH)
    assert slurm.cluster == {
        "nodes": 4, "gpu": "H100:8", "cpu": "32..", "memory": "200GB..", "name": "my-job",
        "slurm": {"gres": "gpu:h100:8", "time": "1-00:00:00", "account": "acc", "exclusive": True},
    }  # fmt: skip
    Cluster.load(slurm.cluster)
    fates = {line.number: line.fate for line in slurm.lines}
    assert fates == {**dict.fromkeys(range(2, 10), Fate.TAKEN), 10: Fate.DROPPED, 11: Fate.DROPPED}
    variables = slurm_variables(slurm, "/here")
    assert {name: variables[name] for name in ("SLURM_NNODES", "SLURM_GPUS_ON_NODE", "SLURM_JOB_NODELIST")} == {
        "SLURM_NNODES": "4", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_NODELIST": "node-[0-3]",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "gpu"),
    [("--gpus-per-node=4", "4"), ("--gres=gpu:2", "2"), ("--gpus-per-node=a100:8", "A100:8"), ("-G 16", "8")],
)
def test_gpus_of_sbatch(line: str, gpu: str) -> None:
    assert read_sbatch(f"#SBATCH --nodes=2\n#SBATCH {line}\n").cluster["gpu"] == gpu


SKY = """
resources: {accelerators: [A100:8, H100:8], use_spot: false, ports: [8280]}
num_nodes: 2
envs: {MODEL: Qwen/Qwen2.5-0.5B-Instruct, WANDB_API_KEY: null}
file_mounts: {/checkpoints: {name: my-bucket, mode: MOUNT}}
setup: pip install verl
run: |
  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
    ray start --head
    python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$MODEL \\
      trainer.nnodes=$SKYPILOT_NUM_NODES trainer.n_gpus_per_node=$SKYPILOT_NUM_GPUS_PER_NODE
  else
    ray start --address $(echo "$SKYPILOT_NODE_IPS" | head -n1):6379
  fi
"""


@pytest.mark.io
def test_a_task_of_skypilot_as_a_whole(take_over: TakeOver) -> None:
    imported = take_over(SKY, name="verl.sky.yml")
    [training] = imported.trainings
    assert (training.job.name, training.job.nodes, training.job.gpu) == ("verl", 2, "8")
    assert dict(training.job.overrides) == {"actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B-Instruct"}
    assert imported.cluster == {
        "name": "verl", "nodes": 2, "gpu": "A100,H100:8", "models": ["Qwen/Qwen2.5-0.5B-Instruct"], "ports": ["8280"],
        "dstack": {"spot_policy": "on-demand"}, "volumes": ["my-bucket-${{ dstack.node_rank }}:/checkpoints"],
    }  # fmt: skip


@pytest.mark.io
def test_a_variable_without_a_value_is_asked_for(take_over: TakeOver) -> None:
    with pytest.raises(InputError, match=r"a.yml wants the variable MODEL_PATH") as wanted:
        take_over("run: 'echo ${MORE:?}'\nenvs: {MODEL_PATH: null}\n", name="a.yml")
    assert wanted.value.hint == "cloudrl import a.yml --env MODEL_PATH=VALUE --env MORE=VALUE"
    take_over("run: echo\nenvs: {MODEL_PATH: null}\n", name="a.yml", env={"MODEL_PATH": "x"})


@pytest.mark.io
def test_a_file_of_neither_is_refused(take_over: TakeOver) -> None:
    with pytest.raises(InputError, match="neither a script nor a task"):
        take_over("name: x\noverrides: {}\n", name="a.yml")


MULTINODE = """
resources: {accelerators: [A100:8, A100-80GB:8, H100:8], ports: [8280]}
num_nodes: 2
envs: {MODEL_NAME: Qwen/Qwen2.5-0.5B-Instruct, EPOCHS: 3, WANDB_API_KEY: null}
config: {docker: {run_options: [--ipc=host, --shm-size=16g]}}
setup: |
  set -e
  git clone https://github.com/volcengine/verl.git
  cd verl
  uv venv --seed
  source .venv/bin/activate
  bash scripts/install.sh
  uv pip install --no-deps -e .
run: |
  head_ip=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  cd verl
  source .venv/bin/activate
  cat > env.yaml <<EOF
  working_dir: ./
  env_vars:
    A: "1"
  EOF
  is_ray_alive () {
    ray status --address="$1:6385" >/dev/null 2>&1
  }
  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
    is_ray_alive "$head_ip" || ray start --head --port 6385
    ray job submit --address="http://localhost:8280" --working-dir=. --runtime-env=env.yaml \\
      -- python3 -m verl.trainer.main_ppo \\
      data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \\
      actor_rollout_ref.model.path=$MODEL_NAME trainer.total_epochs=$EPOCHS trainer.nnodes=2 \\
      trainer.default_local_dir=/checkpoints 2>&1 | tee x.log
      # a comment behind the command
  else
    sleep 20
    ray start --address $head_ip:6385
  fi
"""


@pytest.mark.io
def test_setup_and_run_are_shells_of_their_own(take_over: TakeOver) -> None:
    imported = take_over(MULTINODE, name="multinode.yaml")
    [training] = imported.trainings
    assert training.fields["env"] == {"A": "1", "EPOCHS": "3", "MODEL_NAME": "Qwen/Qwen2.5-0.5B-Instruct"}
    assert (training.job.data, dict(training.job.overrides)["trainer.total_epochs"]) == (("gsm8k",), "3")
    assert (imported.cluster["gpu"], imported.cluster["shm_size"]) == ("A100,H100:8", "16GB")
    assert training.working_dir is None
