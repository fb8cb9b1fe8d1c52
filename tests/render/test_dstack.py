import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration
from dstack._internal.core.models.volumes import InstanceMountPoint, VolumeMountPoint
from dstack._internal.utils.interpolator import VariablesInterpolator
from dstack._internal.utils.nodes_interpolator import interpolate_groups_ip_address
from dstack_task import parsed
from hostile import HOSTILE, lines, names, tags, texts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from patience import SLOWER

from cloudrl.errors import SpecError
from cloudrl.protocol.options import AgentOptions, BudgetLimits
from cloudrl.protocol.secret_names import is_secret
from cloudrl.protocol.services import parse_service
from cloudrl.render.hub_cache import hub_cache
from cloudrl.spec import Cluster, DataSet, Gpu, NetworkMount, Volume, data_argument
from cloudrl.verl.releases import release

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


words = st.lists(lines, max_size=3)
network_volumes = st.sampled_from(
    ["data:/data", "ckpt-${{ dstack.node_rank }}:/data", {"name": ["aa", "bb"], "path": "/data"},
     {"instance_path": "/fast disk", "path": "/data", "optional": True}]
)  # fmt: skip
durations = st.sampled_from(["off", "30m", 90, "2 d"])
sections = st.fixed_dictionaries(
    {},
    optional={
        "privileged": st.booleans(),
        "shell": st.sampled_from(["sh", "bash", "/bin/ba sh/bash"]),
        "fleets": st.sampled_from([["no"], ["gpu-fleet", "main/on"]]),
        "instances": st.lists(lines, min_size=1, max_size=2),
        "backends": st.lists(st.sampled_from(["aws", "gcp", "vastai"])),
        "regions": words,
        "reservation": lines,
        "spot_policy": st.sampled_from(["spot", "on-demand", "auto"]),
        "max_price": st.floats(0.001, 1e6) | st.integers(1, 100),
        "idle_duration": durations,
        "retry": st.sampled_from([True, False, {"on_events": ["error"], "duration": 60}, {"duration": "4h"}]),
        "max_duration": durations,
        "utilization_policy": st.just({"min_gpu_utilization": 0, "time_window": "1h"}),
        "schedule": st.sampled_from([{"cron": "0 8 * * mon"}, {"cron": ["0 8 * * *", "*/5 * 1 jan *"]}]),
        "priority": st.integers(0, 100),
        "startup_order": st.sampled_from(["any", "master-first", "workers-first"]),
        "stop_criteria": st.sampled_from(["all-done", "master-done"]),
        "tags": tags,
        "single_branch": st.booleans(),
    },
)
policies = st.fixed_dictionaries(
    {"dstack": sections},
    optional={
        "secrets": st.sets(st.sampled_from(["HF_TOKEN", "WANDB_API_KEY", "no"])).map(sorted),
        "ports": st.sampled_from([[], [6006], ["9265:8265", "*:7000"]]),
        "working_dir": folders,
    },
)
wide_clusters = st.builds(
    lambda fields, volume: make(name="one", volumes=["/checkpoints:/checkpoints", volume], **fields),
    policies,
    network_volumes,
)


described = texts.filter(lambda text: text.strip() and "\0" not in text).map(
    lambda text: DataSet(name="mine", source="/data/it's.csv", prompt_field="it's $x", system=text, skip_bad=True)
)
clusters = st.builds(
    make,
    name=names,
    nodes=st.integers(1, 512),
    image=st.sampled_from([None, "a/b:c", "localhost:5000/x@sha256:00"]),
    user=st.sampled_from([None, "root", "1000:1000", "0"]),
    setup=st.lists(texts, max_size=3),
    services=st.lists(texts, max_size=2).map(lambda each: [f"{8000 + i}:{text}" for i, text in enumerate(each)]),
    env=st.dictionaries(env_names, texts, max_size=3),
    gpu=st.sampled_from([None, "0", "80GB:8", "H100", "amd:MI300X:8", "24GB..40GB:1..4", "8"]),
    cpu=st.sampled_from([None, "8", "x86:8..", "2..4"]),
    memory=st.sampled_from([None, "64GB", "1TB..", "16"]),
    disk=st.sampled_from([None, "..2TB", "512MB.."]),
    shm_size=st.sampled_from([None, "128GB", "0.5TB"]),
    data=st.sets(st.sampled_from(["gsm8k", "math", "org/x_y.z"])).map(sorted) | st.lists(described, max_size=1),
    models=st.sets(st.sampled_from(["Qwen/Qwen2.5-7B-Instruct", "tiny-qwen2", "/models/a b's"])).map(sorted),
    checkpoints=folders,
).filter(lambda cluster: cluster is not None)


def fill(value: str, secrets: dict[str, dict[str, str]]) -> str:
    """What dstack makes of a value of `env`."""
    return VariablesInterpolator(secrets).interpolate_or_error(value)


def as_dstack_runs_it(task: TaskConfiguration) -> list[str]:
    """The job's argv: dstack fills in node addresses, strips, joins (JobConfigurator._commands)."""
    commands = [interpolate_groups_ip_address(command, [["10.0.0.1"]]) for command in task.commands]
    return ["/bin/sh", "-i", "-c", " && ".join(command.strip() for command in commands)]


@settings(max_examples=FEW)
@given(wide_clusters)
def test_where_and_when_a_cluster_runs_means_to_dstack_what_it_means_to_us(cluster):
    assert cluster is not None
    task = parsed(cluster)
    secrets = {"secrets": {name: f"value of {name}" for name in cluster.secrets}}
    assert {name: fill(value, secrets) for name, value in task.env.as_dict().items()} == {
        **hub_cache(cluster),
        **{name: f"value of {name}" for name in cluster.secrets},
    }
    assert [(port.local_port, port.container_port) for port in task.ports] == [
        (port.local, port.container) for port in cluster.forwarded
    ]
    assert task.working_dir == cluster.working_dir
    plain = TaskConfiguration.model_validate({"commands": ["x"], "image": "x", **cluster.dstack})
    for name in cluster.dstack:
        assert getattr(task, name) == getattr(plain, name), name
    assert len(task.volumes) == 2
    assert task.volumes[1] == as_dstacks(cluster.mounts[1])


def as_dstacks(mount: Volume | NetworkMount) -> InstanceMountPoint | VolumeMountPoint:
    if isinstance(mount, Volume):
        return InstanceMountPoint(instance_path=mount.instance_path, path=mount.path, optional=mount.optional)
    names = list(mount.name)
    return VolumeMountPoint(name=names if len(names) > 1 else names[0], path=mount.path)


def expected_words(cluster: Cluster) -> dict[str, Any]:
    own_image = cluster.image is not None
    return {
        "device": cluster.device,
        "gpus": 1 if cluster.device == "cpu" else cluster.gpus_per_node,
        "setup": (() if own_image else release(vendor=cluster.vendor).install) + tuple(cluster.setup),
        "services": tuple(map(parse_service, cluster.services)),
        "data": tuple(map(data_argument, cluster.data)),
        "models": tuple(cluster.models),
        "checkpoints": Path(cluster.checkpoints),
    }


@settings(max_examples=FEW)
@given(clusters)
@example(Cluster(name="no", setup=HOSTILE[:9], env={"NO": "a\nb", "Y": "${{ secrets.x }} $$ $"}))
def test_any_cluster_means_to_dstack_what_it_means_to_us(cluster):
    task = parsed(cluster)
    user = cluster.user or (None if cluster.image else "root")
    assert (task.name, task.nodes, task.user) == (cluster.name, cluster.nodes, user)
    assert task.image == (cluster.image or release(vendor=cluster.vendor).image)
    env = {**hub_cache(cluster), **cluster.env}
    assert {name: str(value) for name, value in task.env.items()}.keys() == env.keys()
    secrets = {"secrets": {"x": "SECRET"}}
    assert {name: fill(value, secrets) for name, value in task.env.as_dict().items()} == env
    assert [(volume.instance_path, volume.path) for volume in task.volumes] == [
        (mount.instance_path, mount.path) for mount in cluster.mounts
    ]
    given_resources = {
        name: str(getattr(cluster, name)) for name in ("cpu", "memory", "disk") if getattr(cluster, name)
    }
    if cluster.image is None and ":" not in given_resources.get("cpu", ""):
        given_resources["cpu"] = f"x86:{given_resources.get('cpu', '2..')}"  # the release's image is for x86
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
        out, err = process.communicate(timeout=30 * SLOWER)
        assert process.returncode == 0, err
        pid, *words = out.decode().split("\0")[:-1]
        assert int(pid) == process.pid, "the agent must take the shell's place"
    return words


@pytest.mark.io
@settings(max_examples=FEW)
@given(clusters)
@example(Cluster(name="ab", setup=["a\n\n", "-x", "é ${{ groups[0].nodes[0].IP_ADDRESS }}", "$(rm) `x` \\", "!x"]))
def test_sh_gives_the_agent_exactly_its_words(stub_path, cluster):
    words = run_words(parsed(cluster), stub_path)
    assert words[:2] == [AGENT, "run"]
    options = AgentOptions.from_argv(words[2:])
    assert {name: getattr(options, name) for name in expected_words(cluster)} == expected_words(cluster)


@pytest.mark.parametrize("text", HOSTILE)
def test_each_hostile_text_reaches_the_agent_and_the_environment(stub_path, text):
    # the whole text as a reference to a secret is refused: see tests/spec/test_cluster.py
    cluster = make(name="one", setup=[f"x{text}x"], env={"A": f"{text}."})
    assert cluster is not None
    task = parsed(cluster)
    assert AgentOptions.from_argv(run_words(task, stub_path)[2:]).setup[-1] == f"x{text}x"
    assert VariablesInterpolator({}).interpolate_or_error(task.env.as_dict()["A"]) == f"{text}."


def test_when_the_cluster_ends_by_itself_is_the_agents_business(stub_path):
    cluster = Cluster(name="one", down_when_idle="2h", max_cost=1234.5, price_per_hour=0.1)
    options = AgentOptions.from_argv(run_words(parsed(cluster), stub_path)[2:])
    assert options.limits == BudgetLimits(idle_s=7200, max_cost=1234.5, price_per_hour=0.1)
