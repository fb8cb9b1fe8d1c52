from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration
from dstack._internal.utils.interpolator import VariablesInterpolator
from dstack._internal.utils.nodes_interpolator import interpolate_groups_ip_address
from hypothesis import example, given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.node.options import Options, parse_options
from cloudrl.render import to_dstack
from cloudrl.spec import Cluster, Gpu
from cloudrl.verl import RELEASE

AGENT = "/opt/cloudrl/cloudrl-node.pyz"
HOSTILE = [
    "'", '"', "a'b\"c", "$(rm -rf /)", "`id`", "$HOME", "${HOME}", "$$", "$${X}", "${{ secrets.x }}",
    "$${{ x }}", "${{ groups[0].nodes[0].IP_ADDRESS }}", "${{ groups[9] }}", "${{", "a: b", "# no comment",
    "- item", "-x", "--data", "yes", "no", "null", "1e3", "1:30", "\n", "a\nb\n", "\ttab", "a &", "a && b",
    "a; b", "a | b", "!!", "!x", "\\", "\\\n", "é", "\u2028", "\x85", "\ufeff", "\x1b[31m", "\U0001f600",
    "%", "*", "~", "=", "{a}", "[a]", "<x>", "\r\n", "\x7f",
]  # fmt: skip
hostile = st.lists(
    st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
)
texts = hostile.map(" ".join)
names = st.from_regex(r"[a-z][a-z0-9-]{1,40}", fullmatch=True) | st.sampled_from(
    ["no", "on", "yes", "null", "true"]
)
env_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True) | st.sampled_from(
    ["NO", "y", "null", "_"]
)
folders = st.lists(st.text("ab -_.'\"$#&{}%é", min_size=1, max_size=5), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)


def make(**fields: Any) -> Cluster | None:
    try:
        return Cluster(**fields)
    except SpecError:
        return None


clusters = st.builds(
    make,
    name=names,
    nodes=st.integers(1, 512),
    image=st.sampled_from([None, "a/b:c", "localhost:5000/x@sha256:00"]),
    user=st.sampled_from([None, "root", "1000:1000", "0"]),
    setup=st.lists(texts, max_size=3),
    env=st.dictionaries(env_names, texts, max_size=3),
    gpu=st.sampled_from([None, "0", "80GB:8", "H100", "amd:MI300X:8", "24GB..40GB:1..4", "8"]),
    cpu=st.sampled_from([None, "8", "x86:8..", "2..4"]),
    memory=st.sampled_from([None, "64GB", "1TB..", "16"]),
    disk=st.sampled_from([None, "..2TB", "512MB.."]),
    shm_size=st.sampled_from([None, "128GB", "0.5TB"]),
    data=st.sets(st.sampled_from(["gsm8k", "math", "org/x_y.z"])).map(sorted),
    models=st.sets(st.sampled_from(["Qwen/Qwen2.5-7B-Instruct", "tiny-qwen2", "/models/a b's"])).map(sorted),
    checkpoints=folders,
).filter(lambda cluster: cluster is not None)


def parsed(cluster: Cluster) -> TaskConfiguration:
    configuration = parse_apply_configuration(yaml.safe_load(to_dstack(cluster)))
    assert isinstance(configuration, TaskConfiguration)
    return configuration


def as_dstack_runs_it(task: TaskConfiguration) -> list[str]:
    """The job's argv: dstack fills in node addresses, strips, joins (JobConfigurator._commands)."""
    commands = [interpolate_groups_ip_address(command, [["10.0.0.1"]]) for command in task.commands]
    return ["/bin/sh", "-i", "-c", " && ".join(command.strip() for command in commands)]


def expected_words(cluster: Cluster) -> dict[str, Any]:
    own_image = cluster.image is not None or cluster.python is not None
    return {
        "device": cluster.device,
        "gpus": cluster.gpus_per_node,
        "setup": (() if own_image else RELEASE.install) + tuple(cluster.setup),
        "data": tuple(cluster.data),
        "models": tuple(cluster.models),
        "checkpoints": Path(cluster.checkpoints),
    }


@given(clusters)
@example(Cluster(name="no", setup=HOSTILE[:9], env={"NO": "a\nb", "Y": "${{ secrets.x }} $$ $"}))
def test_any_cluster_means_to_dstack_what_it_means_to_us(cluster):
    task = parsed(cluster)
    assert (task.name, task.nodes, task.user) == (cluster.name, cluster.nodes, cluster.user)
    assert task.image == (cluster.image or RELEASE.image)
    assert {name: str(value) for name, value in task.env.items()}.keys() == cluster.env.keys()
    interpolate = VariablesInterpolator({"secrets": {"x": "SECRET"}}).interpolate_or_error
    assert {name: interpolate(value) for name, value in task.env.as_dict().items()} == cluster.env
    assert [(volume.instance_path, volume.path) for volume in task.volumes] == [
        (mount.instance_path, mount.path) for mount in cluster.mounts
    ]
    given_resources = {
        name: str(getattr(cluster, name)) for name in ("cpu", "memory", "disk") if getattr(cluster, name)
    }
    plain = parse_apply_configuration({"type": "task", "image": "x", "resources": given_resources})
    for name in ("cpu", "memory", "disk"):
        assert getattr(task.resources, name) == getattr(plain.resources, name)
    if cluster.gpu is not None:
        count, ours = task.resources.gpu.count, Gpu.parse(cluster.gpu).count
        assert (count.min, count.max) == ((ours.min, ours.max) if ours else (1, None))


@pytest.fixture(scope="module")
def stub_path(tmp_path_factory) -> Path:
    """A folder with a `python3` that prints its process id and its words, each ending in NUL."""
    folder = tmp_path_factory.mktemp("bin")
    stub = folder / "python3"
    stub.write_text('#!/bin/sh\nprintf \'%s\\0\' "$$" "$@"\n')
    stub.chmod(0o755)
    return folder


def run_words(task: TaskConfiguration, stub_path: Path) -> list[str]:
    argv = as_dstack_runs_it(task)
    environment = {"PATH": f"{stub_path}{os.pathsep}/usr/bin:/bin", "HOME": "/nowhere"}
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        pid, *words = out.decode().split("\0")[:-1]
        assert int(pid) == process.pid, "the agent must take the shell's place"
    return words


@given(clusters)
@example(
    Cluster(name="ab", setup=["a\n\n", "-x", "é ${{ groups[0].nodes[0].IP_ADDRESS }}", "$(rm) `x` \\", "!x"])
)
def test_sh_gives_the_agent_exactly_its_words(stub_path, cluster):
    words = run_words(parsed(cluster), stub_path)
    assert words[:2] == [AGENT, "run"]
    options = parse_options(words[2:])
    assert {name: getattr(options, name) for name in expected_words(cluster)} == expected_words(cluster)


@pytest.mark.parametrize("text", HOSTILE)
def test_each_hostile_text_reaches_the_agent_and_the_environment(stub_path, text):
    cluster = make(name="one", setup=[f"x{text}x"], env={"A": text})
    assert cluster is not None
    task = parsed(cluster)
    assert parse_options(run_words(task, stub_path)[2:]).setup[-1] == f"x{text}x"
    assert VariablesInterpolator({}).interpolate_or_error(task.env.as_dict()["A"]) == text


GOLDEN = {
    "everything": Cluster(
        name="everything",
        nodes=4,
        image="localhost:5000/mine@sha256:00",
        user="1000:1000",
        setup=["apt-get update && apt-get install -y git", "pip install 'a[b]==1.0'", "- odd"],
        env={"NCCL_DEBUG": "INFO", "NO": "on", "PRICE": "$5", "TWO": "a\nb"},
        gpu="amd:MI300X:8",
        cpu="x86:128..",
        memory="1TB..",
        disk="2TB..",
        shm_size="0.5TB",
        data=["gsm8k", "math"],
        models=["Qwen/Qwen3-32B", "/models/my model"],
        checkpoints="/scratch/checkpoints",
        volumes=["/big:/scratch", "/hf:/root/.cache/huggingface"],
    ),
    "smallest": Cluster(name="no", volumes=[]),
    "python": Cluster(name="python", python="3.12", gpu="24GB:1..4", cpu=8),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_bytes(name, golden, repository):
    golden(repository / "tests" / "golden" / f"{name}.dstack.yml", to_dstack(GOLDEN[name]))
    assert to_dstack(GOLDEN[name]) == to_dstack(GOLDEN[name].changed())


def agent_options(**fields: Any) -> Options:
    (command,) = parsed(Cluster(name="one", **fields)).commands
    return parse_options(shlex.split(command.replace("\\\n", ""))[4:])


def test_the_release_image_brings_its_install_command_and_import_check():
    options = agent_options(gpu="8", setup=["mine"])
    assert options.setup == (*RELEASE.install, "mine")
    assert options.import_check == ("numpy", "torch", "vllm")


def test_of_another_image_the_rollout_engine_is_not_known():
    options = agent_options(gpu="8", image="mine:1")
    assert options.setup == ()
    assert options.import_check == ("numpy", "torch")


def test_without_gpus_ray_gets_none_and_the_device_is_cpu():
    options = agent_options(image="mine:1")
    assert (options.device, options.gpus, options.import_check) == ("cpu", 0, ())


def test_a_range_of_gpus_is_left_to_what_dstack_gives():
    assert agent_options(gpu="80GB:1..8").gpus is None
