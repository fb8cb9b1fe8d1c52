from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from dstack._internal.core.models.common import EntityReference
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration
from dstack._internal.core.models.profiles import InstanceNameSelector
from dstack._internal.core.models.volumes import InstanceMountPoint, VolumeMountPoint
from dstack._internal.utils.interpolator import VariablesInterpolator
from dstack._internal.utils.nodes_interpolator import interpolate_groups_ip_address
from hostile import HOSTILE, lines, names, tags, texts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.node.options import Options, parse_options
from cloudrl.render import to_dstack
from cloudrl.spec import Cluster, Duration, Gpu, NetworkMount, Volume
from cloudrl.spec.names import is_secret
from cloudrl.verl import RELEASE, release

RESOURCES = ("gpu", "cpu", "memory", "disk", "shm_size")
FEW = max(20, settings().max_examples // 4)
"""Each example starts a shell, or is parsed by dstack field by field."""
AGENT = "/opt/cloudrl/cloudrl-node.pyz"
env_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: not is_secret(name)
) | st.sampled_from(["NO", "y", "null", "_"])
folders = st.lists(st.text("ab -_.'\"$#&{}%é", min_size=1, max_size=5), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)


def make(**fields: Any) -> Cluster | None:
    try:
        return Cluster(**fields)
    except SpecError:
        return None


def words(check: Any) -> st.SearchStrategy[list[str]]:
    """Lists of hostile texts, less those that the spec refuses in such a list."""

    def keep(items: list[str]) -> list[str]:
        return [item for index, item in enumerate(items) if check(item) and item not in items[:index]]

    return st.lists(lines, max_size=3).map(keep)


def one_word(item: str) -> bool:
    return make(name="one", regions=[item]) is not None


durations = st.sampled_from([None, "off", "30m", 90, "2 d"])
network_volumes = st.sampled_from(
    ["data:/data", "ckpt-${{ dstack.node_rank }}:/data", {"name": ["aa", "bb"], "path": "/data"},
     {"instance_path": "/fast disk", "path": "/data", "optional": True}]
)  # fmt: skip
policies = st.fixed_dictionaries(
    {},
    optional={
        "secrets": st.sets(st.sampled_from(["HF_TOKEN", "WANDB_API_KEY", "no"])).map(sorted),
        "ports": st.sampled_from([[], [6006], ["9265:8265", "*:7000"]]),
        "privileged": st.booleans(),
        "shell": st.sampled_from([None, "sh", "bash", "/bin/ba sh/bash"]),
        "working_dir": folders,
        "fleets": st.sets(st.sampled_from(["no", "gpu-fleet", "main/on"])).map(sorted),
        "instances": words(one_word),
        "backends": st.sets(st.sampled_from(["aws", "gcp", "vastai"])).map(sorted),
        "regions": words(one_word),
        "availability_zones": words(one_word),
        "instance_types": words(one_word),
        "reservation": lines.filter(one_word),
        "spot_policy": st.sampled_from([None, "spot", "on-demand", "auto"]),
        "max_price": st.none() | st.floats(0.001, 1e6) | st.integers(1, 100),
        "creation_policy": st.sampled_from([None, "reuse", "reuse-or-create"]),
        "idle_duration": durations,
        "retry": st.sampled_from([False, "4h", {"on_events": ["error"], "duration": 60}]),
        "max_duration": durations,
        "stop_duration": durations,
        "utilization_policy": st.sampled_from([None, {"min_gpu_utilization": 0, "time_window": "1h"}]),
        "schedule": st.sampled_from([None, "0 8 * * mon", ["0 8 * * *", "*/5 * 1 jan *"]]),
        "priority": st.none() | st.integers(0, 100),
        "startup_order": st.sampled_from(["any", "master-first", "workers-first"]),
        "stop_criteria": st.sampled_from(["all-done", "master-done"]),
        "tags": tags,
    },
)
wide_clusters = st.builds(
    lambda fields, volume: make(name="one", volumes=["/checkpoints:/checkpoints", volume], **fields),
    policies,
    network_volumes,
)

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


def fill(value: str, secrets: dict[str, dict[str, str]]) -> str:
    """What dstack makes of a value of `env`."""
    return VariablesInterpolator(secrets).interpolate_or_error(value)


def as_dstack_runs_it(task: TaskConfiguration) -> list[str]:
    """The job's argv: dstack fills in node addresses, strips, joins (JobConfigurator._commands)."""
    commands = [interpolate_groups_ip_address(command, [["10.0.0.1"]]) for command in task.commands]
    return ["/bin/sh", "-i", "-c", " && ".join(command.strip() for command in commands)]


def seconds(text: str | None) -> int | None:
    return None if text is None else Duration.parse(text).seconds


@settings(max_examples=FEW)
@given(wide_clusters)
def test_where_and_when_a_cluster_runs_means_to_dstack_what_it_means_to_us(cluster):
    assert cluster is not None
    task = parsed(cluster)
    secrets = {"secrets": {name: f"value of {name}" for name in cluster.secrets}}
    assert {name: fill(value, secrets) for name, value in task.env.as_dict().items()} == {
        name: f"value of {name}" for name in cluster.secrets
    }
    assert [(port.local_port, port.container_port) for port in task.ports] == [
        (port.local, port.container) for port in cluster.forwarded
    ]
    for name in ("privileged", "shell", "working_dir", "reservation", "max_price", "priority"):
        assert getattr(task, name) == getattr(cluster, name), name
    for name in ("instances", "regions", "availability_zones", "instance_types", "backends", "fleets"):
        assert tuple(map(_plain_text, getattr(task, name) or ())) == getattr(cluster, name), name
    for name in ("spot_policy", "creation_policy", "startup_order", "stop_criteria"):
        theirs = getattr(task, name)
        assert (theirs and theirs.value) == getattr(cluster, name), name
    for name, off in (("max_duration", "off"), ("stop_duration", "off"), ("idle_duration", -1)):
        ours = getattr(cluster, name)
        assert getattr(task, name) == (off if ours == "off" else seconds(ours)), name
    assert (task.tags or {}) == cluster.tags
    assert_same_policies(task, cluster)
    assert len(task.volumes) == 2
    assert task.volumes[1] == as_dstacks(cluster.mounts[1])


def _plain_text(item: Any) -> str:
    """A name, however dstack keeps it."""
    if isinstance(item, EntityReference):
        return item.format()
    return item.name if isinstance(item, InstanceNameSelector) else str(getattr(item, "value", item))


def assert_same_policies(task: TaskConfiguration, cluster: Cluster) -> None:
    if cluster.retry is False:
        assert task.retry is False
    else:
        assert tuple(event.value for event in task.retry.on_events) == cluster.retry.on_events
        assert task.retry.duration == seconds(cluster.retry.duration)
    ours, theirs = cluster.utilization_policy, task.utilization_policy
    assert (theirs and (theirs.min_gpu_utilization, theirs.time_window)) == (
        ours and (ours.min_gpu_utilization, seconds(ours.time_window))
    )
    assert (task.schedule and tuple(task.schedule.crons)) == (cluster.schedule and cluster.schedule.cron)


def as_dstacks(mount: Volume | NetworkMount) -> InstanceMountPoint | VolumeMountPoint:
    if isinstance(mount, Volume):
        return InstanceMountPoint(instance_path=mount.instance_path, path=mount.path, optional=mount.optional)
    names = list(mount.name)
    return VolumeMountPoint(name=names if len(names) > 1 else names[0], path=mount.path)


def expected_words(cluster: Cluster) -> dict[str, Any]:
    own_image = cluster.image is not None or cluster.python is not None
    return {
        "device": cluster.device,
        "gpus": 1 if cluster.device == "cpu" else cluster.gpus_per_node,
        "setup": (() if own_image else release(vendor=cluster.vendor).install) + tuple(cluster.setup),
        "data": tuple(cluster.data),
        "models": tuple(cluster.models),
        "checkpoints": Path(cluster.checkpoints),
    }


@settings(max_examples=FEW)
@given(clusters)
@example(Cluster(name="no", setup=HOSTILE[:9], env={"NO": "a\nb", "Y": "${{ secrets.x }} $$ $"}))
def test_any_cluster_means_to_dstack_what_it_means_to_us(cluster):
    task = parsed(cluster)
    assert (task.name, task.nodes, task.user) == (cluster.name, cluster.nodes, cluster.user)
    assert task.image == (cluster.image or release(vendor=cluster.vendor).image)
    assert {name: str(value) for name, value in task.env.items()}.keys() == cluster.env.keys()
    secrets = {"secrets": {"x": "SECRET"}}
    assert {name: fill(value, secrets) for name, value in task.env.as_dict().items()} == cluster.env
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


@settings(max_examples=FEW)
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
    # the whole text as a reference to a secret is refused: see tests/spec/test_cluster.py
    cluster = make(name="one", setup=[f"x{text}x"], env={"A": f"{text}."})
    assert cluster is not None
    task = parsed(cluster)
    assert parse_options(run_words(task, stub_path)[2:]).setup[-1] == f"x{text}x"
    assert VariablesInterpolator({}).interpolate_or_error(task.env.as_dict()["A"]) == f"{text}."


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
    "policies": Cluster(
        name="policies",
        nodes=2,
        verl="0.9.1",
        rollout="sglang",
        user="root",
        privileged=True,
        shell="bash",
        working_dir="/work",
        env={"NCCL_DEBUG": "INFO"},
        secrets=["HF_TOKEN", "WANDB_API_KEY"],
        ports=["9265:8265", 6006],
        gpu="80GB..:8",
        shm_size="128GB",
        volumes=[
            "ckpt-${{ dstack.node_rank }}:/checkpoints",
            {"name": ["aws-hf", "gcp-hf"], "path": "/hf"},
            {"instance_path": "/fast", "path": "/fast", "optional": True},
        ],
        fleets=["gpu-fleet", "main/shared"],
        instances=["gpu-fleet-0", "gpu-fleet-1"],
        backends=["aws", "gcp"],
        regions=["us-east-1"],
        availability_zones=["us-east-1a"],
        instance_types=["p5.48xlarge"],
        reservation="cr-0123",
        spot_policy="auto",
        max_price=98.5,
        creation_policy="reuse",
        idle_duration="10m",
        retry={"on_events": ["interruption", "error"], "duration": "4h"},
        max_duration="3d",
        stop_duration="10m",
        utilization_policy={"min_gpu_utilization": 10, "time_window": "1h"},
        schedule="0 8 * * mon-fri",
        priority=50,
        startup_order="master-first",
        stop_criteria="all-done",
        tags={"team": "rl"},
    ),
    "private-image": Cluster(
        name="private-image",
        image="registry.example.com/mine:1",
        registry_auth={"username": "me", "password": "${{ secrets.REGISTRY_PASSWORD }}"},
        rollout="vllm",
        gpu="H100:8",
        retry=False,
    ),
}

# What dstack has and a cluster does not, and why.
LEFT_OUT = {
    "entrypoint": "the agent is what runs",
    "commands": "the agent is what runs; `setup` holds the user's",
    "files": "the agent; the user's own files travel with a job",
    "repos": "the user's own code travels with a job",
    "single_branch": "as above",
    "docker": "no training runs in Docker within Docker",
    "dstack": "it would give every process of the run rights on the server",
    "groups": "all nodes are equal: verl counts so many GPUs on each",
    "backend_options": "one of its own for each backend; --profile of `dstack apply` takes them",
    "home_dir": "without effect in dstack",
    "type": "always task",
}
OURS = {"verl", "rollout", "secrets", "data", "models", "checkpoints", *RESOURCES}


def test_a_cluster_has_every_field_of_a_dstack_task_but_these():
    assert set(TaskConfiguration.model_fields) - set(Cluster.model_fields) == set(LEFT_OUT) | {"resources"}
    assert set(Cluster.model_fields) - set(TaskConfiguration.model_fields) == OURS


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_bytes(name, golden, repository):
    golden(repository / "tests" / "golden" / f"{name}.dstack.yml", to_dstack(GOLDEN[name]))
    assert to_dstack(GOLDEN[name]) == to_dstack(GOLDEN[name].changed())


def test_a_private_image_is_pulled_with_a_secret():
    auth = parsed(GOLDEN["private-image"]).registry_auth
    assert (auth.username, auth.password) == ("me", "${{ secrets.REGISTRY_PASSWORD }}")


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

    assert agent_options(gpu="8", image="mine:1", rollout="sglang").import_check == (
        "numpy",
        "torch",
        "sglang",
    )


@pytest.mark.parametrize("gpu", [None, 0])
def test_without_gpus_a_node_offers_one_place_and_the_device_is_cpu(gpu):
    options = agent_options(image="mine:1", gpu=gpu)
    assert (options.device, options.gpus, options.import_check) == ("cpu", 1, ())


@pytest.mark.parametrize(
    ("fields", "rendered"),
    [
        ({"gpu": "80GB:8"}, "nvidia:80GB:8"),
        ({"gpu": "8"}, "nvidia:8"),
        ({"gpu": "H100:8"}, "H100:8"),
        ({"gpu": "amd:192GB:8"}, "amd:192GB:8"),
        ({"gpu": "192GB:8", "image": "mine:1"}, "192GB:8"),
        ({"gpu": 0}, 0),
    ],
)
def test_an_image_for_one_vendor_gets_no_gpus_of_another(fields, rendered):
    """dstack would give MI300X to `192GB:8`, and the image could not use them."""
    text = yaml.safe_load(to_dstack(Cluster(name="one", **fields)))
    assert text["resources"]["gpu"] == rendered


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verl": "0.5.0"}, "no image is known for verl 0.5.0"),
        ({"verl": "0.8.0", "gpu": "MI300X:8"}, "no image is known for verl 0.8.0 on GPUs of 'amd'"),
        ({"gpu": "tpu:8"}, "no image is known for verl 0.9.1 on GPUs of 'google'"),
    ],
)
def test_what_no_image_is_known_for_is_refused(fields, message):
    with pytest.raises(SpecError) as caught:
        to_dstack(Cluster(name="one", **fields))
    assert caught.value.message.startswith(message)
    assert caught.value.hint
    assert to_dstack(Cluster(name="one", image="mine:1", **fields))


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "my_password"])
def test_the_value_of_a_secret_stands_in_no_file(name):
    with pytest.raises(SpecError) as caught:
        to_dstack(Cluster(name="one", env={name: "s3cret"}))
    assert caught.value.message == f"env {name}: the value of a secret would stand in the file"
    assert f"secrets: [{name}]" in caught.value.hint
    assert "s3cret" not in str(caught.value)
    rendered = to_dstack(Cluster(name="one", secrets=[name]))
    assert f"  {name}: ${{{{ secrets.{name} }}}}\n" in rendered
    assert to_dstack(Cluster(name="one", env={name: "/run/secrets/file"}))  # a path is no secret


def test_the_header_says_where_ray_is():
    assert "finds Ray at localhost:9265.\n" in to_dstack(Cluster(name="one", ports=["9265:8265"]))
    assert "finds Ray at the local port that dstack prints for 8265.\n" in to_dstack(
        Cluster(name="one", ports=["*:8265"])
    )


def test_a_choice_that_is_not_ours_has_no_comment_that_praises_it():
    text = to_dstack(
        Cluster(name="one", startup_order="workers-first", stop_criteria="all-done", retry=False)
    )
    assert "# A lost node ends the run.\nretry: false\n" in text
    for words in ("All nodes set up", "no other node may stay"):
        assert words not in text


def test_a_range_of_gpus_is_left_to_what_dstack_gives():
    assert agent_options(gpu="80GB:1..8").gpus is None
