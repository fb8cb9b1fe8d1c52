"""The files in `fleets/` and `tasks/`: what the SDK renders, and what dstack and Slurm read in them."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import subprocess
from typing import Any

import dstack._internal.server.services.backends  # noqa: F401  first: dstack's modules import each other in a circle
import gpuhunt
import pytest
import yaml
from dstack._internal.core.backends.base.offers import requirements_to_query_filter
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration
from dstack._internal.core.models.fleets import FleetConfiguration, FleetSpec
from dstack._internal.core.models.profiles import Profile
from dstack._internal.core.models.runs import Requirements, RunSpec
from dstack._internal.server.services.fleets import get_fleet_requirements
from dstack._internal.server.services.jobs import get_job_specs_from_run_spec
from dstack._internal.server.services.requirements.combine import combine_fleet_and_run_requirements
from dstack_task import agent_options, parsed
from ready_files import AMD_FILE, FLEETS, TASKS

from cloudrl.providers.dstack.fleet import Fleet
from cloudrl.providers.dstack.machine_files import fleet_to_dstack
from cloudrl.providers.dstack.task import to_dstack
from cloudrl.recipes import load
from cloudrl.render.hub_cache import hub_cache
from cloudrl.sdk.slurm import slurm_script
from cloudrl.verl.releases import release

FILES = [f"fleets/{name}" for name in FLEETS] + [f"tasks/{name}" for name in TASKS]


def rendered(file: str) -> str:
    folder, name = file.split("/")
    return fleet_to_dstack(FLEETS[name]) if folder == "fleets" else to_dstack(TASKS[name])


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_what_the_sdk_renders(file, repository, golden):
    golden(repository / f"{file}.dstack.yml", rendered(file))


def test_no_file_is_without_a_declaration(repository):
    there = {str(path.relative_to(repository)) for path in repository.glob("*/*.dstack.yml")}
    ours = {path for path in there if path.startswith(("tasks/", "fleets/"))}
    assert ours == {f"{file}.dstack.yml" for file in FILES}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_named_as_its_file_and_needs_nothing_but_the_agent_beside_it(name):
    task = parsed(TASKS[name])
    assert task.name == name
    [agent] = task.files
    assert agent.local_path == ("cloudrl-node-cpu.pyz" if TASKS[name].device == "cpu" else "cloudrl-node.pyz")
    assert agent.path == "/opt/cloudrl/cloudrl-node.pyz"
    assert task.env.as_dict() == {
        **hub_cache(TASKS[name]),
        **TASKS[name].env,
    }  # as_dict raises for a variable without a value
    assert (task.repos, task.fleets) == ([], None)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_outlives_a_lost_node_and_ends_with_its_head(name):
    task, cluster = parsed(TASKS[name]), TASKS[name]
    assert task.nodes == cluster.nodes == 2
    count = task.resources.gpu.count
    assert (count.min, count.max) == (8, 8) if name != "ray-cluster-cpu" else (0, 0)
    assert task.retry.duration == 3600
    assert (task.startup_order.value, task.stop_criteria.value) == ("any", "master-done")
    assert agent_options(task).models == tuple(cluster.models)


@pytest.mark.parametrize(
    ("name", "vendor", "rollout"),
    [
        ("ray-cluster", "nvidia", "vllm"),
        ("grpo-qwen3-32b", "nvidia", "vllm"),
        ("ppo-sglang-7b", "nvidia", "sglang"),
        ("ppo-rocm", "amd", "vllm"),
    ],
)
def test_a_task_runs_the_image_that_the_release_table_gives(name, vendor, rollout):
    known, task = release(vendor=vendor, rollout=rollout), parsed(TASKS[name])
    assert (task.image, task.python) == (known.image, None)
    assert agent_options(task).setup == known.install
    assert agent_options(task).import_check == ("numpy", "torch", rollout)
    gpu = task.resources.gpu
    assert vendor == "amd" if gpu.name == ["MI300X"] else gpu.vendor.value == vendor


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("grpo-qwen3-32b", "grpo-qwen3-32b"),
        ("ppo-sglang-7b", "ppo-sglang-7b"),
        ("ppo-rocm", "ppo-rocm-0.5b"),
        ("ray-cluster", "ppo"),
        ("ray-cluster-cpu", "grpo-tiny"),
    ],
)
def test_a_task_has_the_data_and_the_model_of_its_recipe(name, recipe):
    cluster, job = TASKS[name], load(recipe)
    assert set(job.data) <= set(cluster.data)
    assert job.model in cluster.models
    assert job.device == cluster.device


def test_the_sglang_task_shares_models_and_data_sets_as_its_source_does():
    env = TASKS["ppo-sglang-7b"].env
    assert env["HF_HOME"].startswith("/model/shared/")
    assert env["HF_DATASETS_CACHE"].startswith("/model/shared/")
    assert TASKS["ppo-sglang-7b"].mounts[1].holds(env["HF_HOME"])


def test_the_cpu_task_brings_the_plug_in_and_one_place_a_node():
    task = parsed(TASKS["ray-cluster-cpu"])
    agent = agent_options(task)
    assert (agent.device, agent.gpus, agent.import_check) == ("cpu", 1, ())
    assert task.python.value == "3.12"
    assert task.env.as_dict()["PYTHONPATH"] == task.files[0].path


def test_the_cpu_task_installs_the_versions_that_are_tested_together(repository):
    constraints = (repository / "constraints.txt").read_text().lower()
    packages = [
        word.replace("[default]", "").lower()
        for command in TASKS["ray-cluster-cpu"].setup
        for word in shlex.split(command)
        if "==" in word
    ]
    assert {package.split("==")[0] for package in packages} >= {"torch", "ray", "verl", "transferqueue"}
    for package in packages:
        assert f"\n{package}" in constraints, package


def test_the_ssh_fleet_asks_for_nothing_that_dstack_refuses_there():
    fleet = parse_apply_configuration(yaml.safe_load(rendered("fleets/ssh")))
    assert {name for name in FleetConfiguration.model_fields if name in fleet.model_fields_set} == {
        "type", "name", "placement", "ssh_config",
    }  # fmt: skip


GPUS: dict[str, dict[str, Any]] = {
    "ppo-rocm": {"gpu_vendor": gpuhunt.AcceleratorVendor.AMD, "gpu_name": "MI300X", "gpu_memory": 192},
    "ray-cluster-cpu": {"gpu_count": 0, "gpu_vendor": None, "gpu_name": None, "gpu_memory": None},
}
"""Of the machines that a task is made for; those of all others are H100."""
AT_ONCE = Fleet(name="at-once", gpu="80GB..:8").rented_now()
PAIRS = [
    (fleet, task) for fleet in (*FLEETS.values(), AT_ONCE) for task in TASKS if fleet.ssh_config or task not in GPUS
]


def machine(task: str, disk_gb: float, spot: bool) -> gpuhunt.CatalogItem:
    """A machine for a task, as clouds list it."""
    h100 = {"gpu_vendor": gpuhunt.AcceleratorVendor.NVIDIA, "gpu_name": "H100", "gpu_memory": 80, "gpu_count": 8}
    return gpuhunt.CatalogItem(
        provider="aws", instance_name="any", location="any", price=1.0, cpu=192, memory=2000, disk_size=disk_gb,
        spot=spot, cpu_arch=gpuhunt.CPUArchitecture.X86, **{**h100, **GPUS.get(task, {})},
    )  # fmt: skip


def asked_by(task: str) -> Requirements:
    """What dstack's server looks for; it asks no image registry for it, which these tests could not reach."""
    spec = RunSpec(configuration=parsed(TASKS[task]), profile=Profile(name="any"))
    first, *_ = asyncio.run(get_job_specs_from_run_spec(run_spec=spec, secrets={}, replica_num=0))
    return first.requirements


@pytest.mark.parametrize(("fleet", "task"), PAIRS, ids=lambda each: getattr(each, "name", each))
def test_the_machines_of_a_fleet_are_those_that_a_task_takes(fleet, task):
    """On demand and not spot, as both ask; a cloud's disks are as small as the fleet allows. By dstack's own rules.

    One's own host may have little room left: a DGX with 1.9 TB and some of it used.
    """
    configuration = parse_apply_configuration(yaml.safe_load(fleet_to_dstack(fleet)))
    has = get_fleet_requirements(FleetSpec(configuration=configuration, profile=Profile(name="any")))
    asked, disk = asked_by(task), has.resources.disk
    together = combine_fleet_and_run_requirements(has, asked)
    for spot in (False, True):
        each = machine(task, disk.size.min if disk and not fleet.ssh_config else 800, spot)
        fits = [gpuhunt.matches(each, requirements_to_query_filter(rules)) for rules in (has, asked, together)]
        assert fits == [not spot] * 3


@pytest.mark.io
def test_the_file_for_amd_is_one_definition_for_all_providers(run, home, repository):
    words = ("up", "-f", str(AMD_FILE), "--dry-run", "--on")
    assert run(*words, "dstack").out == (repository / "tasks/ppo-rocm.dstack.yml").read_text()
    assert "#SBATCH --job-name=ppo-rocm\n#SBATCH --nodes=2\n" in run(*words, "slurm").out
    run(*words, "local").ended(3, "nodes=2 with gpu=MI300X:8 need 16 GPUs", "--gpu none")
    run(*words, "local", "--gpu", "none").ended(0)


def test_the_job_script_for_amd(golden, repository):
    """Without the agent and the shell text, which are the same in all scripts of this kind."""
    script = slurm_script("ppo-rocm-0.5b", cluster=TASKS["ppo-rocm"].explicit_fields(), name="ppo-rocm")
    settings, _, rest = script.partition("\n# ---- From here on")
    job = rest[rest.index("\nwrite_job()") : rest.index("\n# cloudrl-node.pyz")]
    golden(repository / "tests/golden/ppo-rocm.slurm.sh", f"{settings}\n{job}\n")


@pytest.mark.io
def test_bash_and_shellcheck_have_nothing_to_say_on_the_job_script_for_amd(tmp_path):
    script = tmp_path / "ppo-rocm.sh"
    script.write_text(slurm_script("ppo-rocm-0.5b", cluster=TASKS["ppo-rocm"].explicit_fields()))
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    if not shutil.which("shellcheck"):
        pytest.skip("no shellcheck: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ""


# The dstack task of verl's multi-node guide (June 2025), as it stands there.
GUIDE: dict[str, Any] = {
    "type": "task",
    "name": "ray-verl-cluster",
    "nodes": 2,
    "env": ["WANDB_API_KEY", "PYTHONUNBUFFERED=1", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"],
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
    "user": "known, so that dstack's server asks no image registry at each restart",
    "resources": (
        "80GB:8 leaves the vendor open, and the image runs on NVIDIA's GPUs only; to dstack it is exactly 80 GB, which "
        "shuts out H200 and B200: nvidia:80GB..:8. The architecture, as the user"
    ),
    "volumes": (
        "the guide's folder /checkpoints of the host cannot be made where `/` is read-only, as on GCP's H100 machines, "
        "and need not be on Docker's disk, whose free bytes dstack reports"
    ),
    "retry": "the guide loses the run with the first lost node",
    "startup_order": "the default, stated because the agent relies on it",
    "stop_criteria": "when the head ends, the others end too and cost no more",
}


def test_the_fields_that_differ_from_the_guide_are_these():
    ours, theirs = parsed(TASKS["ray-cluster"]), TaskConfiguration.model_validate(GUIDE)
    differing = {field for field in TaskConfiguration.model_fields if getattr(ours, field) != getattr(theirs, field)}
    assert differing == set(DIFFERENCES)


def test_no_variable_lacks_a_value():
    with pytest.raises(ValueError, match="WANDB_API_KEY"):
        TaskConfiguration.model_validate(GUIDE).env.as_dict()
    assert parsed(TASKS["ray-cluster"]).env.as_dict() == {
        "HF_HOME": "/checkpoints/.cloudrl/huggingface",  # models outlive a restart there
        "PYTHONUNBUFFERED": "1",
    }
