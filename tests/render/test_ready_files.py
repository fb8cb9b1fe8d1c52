"""The files in `fleets/` and `tasks/`: what the SDK renders, and what dstack reads in them."""

from __future__ import annotations

import shlex

import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from dstack._internal.core.models.fleets import FleetConfiguration
from dstack_task import agent_options, parsed
from ready_files import FLEETS, TASKS

from cloudrl.recipes import load
from cloudrl.render import fleet_to_dstack, to_dstack
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
def test_a_task_is_named_as_its_file_and_needs_nothing_but_the_agent_beside_it(name, repository):
    task = parsed(TASKS[name])
    assert task.name == name
    assert [file.local_path for file in task.files] == ["cloudrl-node.pyz"]
    assert (repository / "tasks" / "cloudrl-node.pyz").is_file()
    assert task.env.as_dict() == TASKS[name].env  # as_dict raises for a variable without a value
    assert (task.repos, task.fleets) == ([], None)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_outlives_a_lost_node_and_ends_with_its_head(name):
    task, cluster = parsed(TASKS[name]), TASKS[name]
    assert task.nodes == cluster.nodes == 2
    count = task.resources.gpu.count
    assert (count.min, count.max) == (8, 8) if name != "ray-cluster-cpu" else (0, 0)
    assert task.retry.duration == 24 * 3600
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
