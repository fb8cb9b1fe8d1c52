"""The files in `fleets/` and `tasks/`: what the SDK renders, and what dstack reads in them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration
from dstack._internal.core.models.fleets import FleetConfiguration
from ready_files import FLEETS, TASKS

from cloudrl.protocol.options import AgentOptions
from cloudrl.recipes import load
from cloudrl.render import fleet_to_dstack, to_dstack
from cloudrl.verl.releases import release

FILES = [f"fleets/{name}" for name in FLEETS] + [f"tasks/{name}" for name in TASKS]


def rendered(file: str) -> str:
    folder, name = file.split("/")
    return fleet_to_dstack(FLEETS[name]) if folder == "fleets" else to_dstack(TASKS[name])


def parsed(repository: Path, file: str) -> Any:
    return parse_apply_configuration(yaml.safe_load((repository / f"{file}.dstack.yml").read_text()))


def task(repository: Path, name: str) -> TaskConfiguration:
    configuration = parsed(repository, f"tasks/{name}")
    assert isinstance(configuration, TaskConfiguration)
    return configuration


def options(configuration: TaskConfiguration) -> AgentOptions:
    (command,) = configuration.commands
    return AgentOptions.from_argv(shlex.split(command.replace("\\\n", ""))[4:])


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_what_the_sdk_renders(file, repository, golden):
    golden(repository / f"{file}.dstack.yml", rendered(file))


def test_no_file_is_without_a_declaration(repository):
    there = {str(path.relative_to(repository)) for path in repository.glob("*/*.dstack.yml")}
    ours = {path for path in there if path.startswith(("tasks/", "fleets/"))}
    assert ours == {f"{file}.dstack.yml" for file in FILES}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_named_as_its_file_and_needs_nothing_but_the_agent_beside_it(name, repository):
    configuration = task(repository, name)
    assert configuration.name == name
    assert [file.local_path for file in configuration.files] == ["cloudrl-node.pyz"]
    assert (repository / "tasks" / "cloudrl-node.pyz").is_file()
    assert configuration.env.as_dict() == TASKS[name].env  # as_dict raises for a variable without a value
    assert (configuration.repos, configuration.fleets) == ([], None)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_asks_dstack_for_what_is_declared(name, repository):
    cluster, configuration = TASKS[name], task(repository, name)
    assert configuration.nodes == cluster.nodes == 2
    count = configuration.resources.gpu.count
    assert (count.min, count.max) == (8, 8) if name != "ray-cluster-cpu" else (0, 0)
    assert [(port.local_port, port.container_port) for port in configuration.ports] == [
        (8265, 8265),
        (8266, 8266),
    ]
    assert [(mount.instance_path, mount.path) for mount in configuration.volumes] == [
        (mount.instance_path, mount.path) for mount in cluster.mounts
    ]
    assert configuration.retry.duration == 24 * 3600
    assert configuration.startup_order.value == "any"
    assert configuration.stop_criteria.value == "master-done"
    agent = options(configuration)
    assert (agent.data, agent.models) == (tuple(cluster.data), tuple(cluster.models))


@pytest.mark.parametrize(
    ("name", "vendor", "rollout"),
    [
        ("ray-cluster", "nvidia", "vllm"),
        ("grpo-qwen3-32b", "nvidia", "vllm"),
        ("ppo-sglang-7b", "nvidia", "sglang"),
        ("ppo-rocm", "amd", "vllm"),
    ],
)
def test_a_task_runs_the_image_that_the_release_table_gives(name, vendor, rollout, repository):
    known, configuration = release(vendor=vendor, rollout=rollout), task(repository, name)
    assert (configuration.image, configuration.python) == (known.image, None)
    assert options(configuration).setup == known.install
    assert options(configuration).import_check == ("numpy", "torch", rollout)
    gpu = configuration.resources.gpu
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


def test_the_sglang_task_shares_models_and_data_sets_as_its_source_does(repository):
    env = task(repository, "ppo-sglang-7b").env.as_dict()
    assert env["HF_HOME"].startswith("/model/shared/")
    assert env["HF_DATASETS_CACHE"].startswith("/model/shared/")
    assert TASKS["ppo-sglang-7b"].mounts[1].holds(env["HF_HOME"])


def test_the_cpu_task_brings_the_plug_in_and_one_place_a_node(repository):
    configuration = task(repository, "ray-cluster-cpu")
    agent = options(configuration)
    assert (agent.device, agent.gpus, agent.import_check) == ("cpu", 1, ())
    assert configuration.python.value == "3.12"
    assert configuration.env.as_dict()["PYTHONPATH"] == configuration.files[0].path


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


def test_the_ssh_fleet_asks_for_nothing_that_dstack_refuses_there(repository):
    fleet = parsed(repository, "fleets/ssh")
    assert isinstance(fleet, FleetConfiguration)
    assert {name for name in FleetConfiguration.model_fields if name in fleet.model_fields_set} == {
        "type", "name", "placement", "ssh_config",
    }  # fmt: skip
