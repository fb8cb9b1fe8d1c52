"""The files in `fleets/` and `tasks/`, applied as they are, on machines that say to have the GPUs; and node groups."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from dstack_hosts.cloud import Cloud, MachineType
from dstack_hosts.fixtures import start_or_skip
from dstack_hosts.lab import Lab, hidden_folders
from dstack_hosts.runs import until
from dstack_hosts.standin.config import ImageConfig
from dstack_hosts.user import User
from node_image import make_image, real_python, with_real_ray
from ready_files import HOSTS

from cloudrl.render.agent import write_agent
from cloudrl.verl.releases import release

pytestmark = pytest.mark.dstack

OLD_DRIVER = "old driver"
REPOSITORY = Path(__file__).parents[2]
CHAINS = {
    # what runs one after the other: (fleet, its file or the machines that it rents, tasks)
    "nvidia": (
        ("ssh", "fleets/ssh.dstack.yml", ("ppo-sglang-7b",)),
        ("cloud-h100", "fleets/cloud-h100.dstack.yml", ("ray-cluster", "grpo-qwen3-32b")),
    ),
    "amd": (("amd", "", ("ppo-rocm",)),),
    "cpu": (("cpu", "", ("ray-cluster-cpu",)), ("cpu-h100", "", ("groups",))),
}
MACHINES = [
    MachineType("h100", price=98.0, spot_price=30.0, gpu=("H100", 80), gpus=8, cpus=208, memory_gib=1900),
    MachineType("amd", price=40.0, gpu=("MI300X", 192), gpus=8, amd=True, cpus=208, memory_gib=1900),
    MachineType("cpu", price=1.0),
]
OWN = {
    "admin": "ubuntu", "gpus": 8, "gpu_name": "NVIDIA H100 80GB HBM3", "gpu_memory_mib": 81559,
    "cpus": 208, "memory_bytes": 1900 << 30,
}  # fmt: skip
LARGE, BEHIND = "gpu-3.example.com", "gpu-4.example.com"
FREE_GIB = dict(zip([*HOSTS, LARGE], (800, 1700, 3500), strict=True))
"""Of each of one's own hosts, below Docker's root: of a DGX, of one whose disk is nearly empty, of one with more."""
OLD_CUDA = "12.2"
"""The newest that the driver of `BEHIND` can run; verl's image has 13.0."""
SYSTEM_DISK = 20 << 30
"""Of each of them: Docker's root is on another disk than `/var/lib/cloudrl`. A save of 7B is larger."""


def told(start: str, page: str = "README.md") -> list[str]:
    """The words of the one command on a page that starts so. What a page only looks at is done here."""
    lines = (REPOSITORY / page).read_text().splitlines()
    [line] = [line[2:] for line in lines if f"{line} ".startswith(f"$ {start} ")]
    return [word for word in shlex.split(line, comments=True) if word != "--dry-run"]


def run_as_told(user: User) -> None:
    """All of it in one: a fleet that is made for it, a training, its model on the laptop, and the cluster's end.

    The fleet of the task before it would do, with idle machines.
    """
    user.types("cloudrl", "fleet", "delete", "gpu-fleet", "-y")
    said = user.types(*told("cloudrl run grpo-qwen3-32b"), timeout_s=300).stdout
    assert "new fleet ray-cluster-fleet would" in said, said
    assert "step 7/7" in said, said
    assert list((user.lab.home / "model").glob("*.safetensors")), said
    assert user.status("ray-cluster")["phase"] == "down"
    assert "machines of fleet ray-cluster-fleet go on costing $196.00/h until they were idle for 5m" in said, said
    listed = user.types("cloudrl", "status").stdout
    assert "go on costing $196.00/h" in listed, listed
    user.types("cloudrl", "fleet", "delete", "ray-cluster-fleet", "-y")


def apply_as_told(user: User) -> None:
    """A fleet, a task that is written and applied, and a job from another terminal."""
    user.types(*told("cloudrl fleet create --gpu"))
    user.types(*told("cloudrl task create"))
    attached = user.lab.popen(*told("dstack apply"), "-y", cwd=user.lab.home)
    until(lambda: "READY" in attached.output or attached.returncode is not None, 200, lambda: attached.output)
    assert attached.returncode is None, attached.output
    said = user.types(*told("cloudrl submit grpo"), timeout_s=120).stdout
    assert "step 7/7" in said, said
    watched = user.types("cloudrl", "watch", "--cluster", "ray-cluster").stdout
    assert "GiB of RAM for 8 GPUs" in watched, watched
    user.types("cloudrl", "down", "ray-cluster", "-y")
    attached.finish(60)


def up_as_told(user: User) -> None:
    """On one's own machines, whose disk for checkpoints is small; a job is planned for it, and not sent."""
    said = user.types(*told("cloudrl up ray-cluster --on dstack", "docs/clusters.md"), timeout_s=200).stdout
    assert "READY: ray-cluster with 2 nodes" in said, said
    looked = user.types("cloudrl", "status", "ray-cluster").stdout
    for text in (said, looked):
        assert "and /checkpoints has room for 21.5 GB" in text, text
        assert "GiB of RAM for 8 GPUs" in text, text
    sent = user.types("cloudrl", "submit", "grpo", "--dry-run", "--cluster", "ray-cluster").stdout
    assert "trainer.nnodes=2" in sent, sent
    user.types("cloudrl", "down", "ray-cluster", "-y")


def own_fleet(user: User, name: str, host: str) -> None:
    """A fleet of one of one's own hosts."""
    key = str(user.lab.home / ".ssh/id_ed25519")
    user.types("cloudrl", "fleet", "create", name, "--ssh-host", host, "--ssh-user", "ubuntu", "--ssh-key", key, "-y")


def old_driver_is_named(user: User) -> None:
    """On a machine of one's own whose driver was not updated; `up` gives up, and what is left says why."""
    own_fleet(user, "behind", BEHIND)
    words = ("--on", "dstack", "--gpu", "80GB..:8", "--nodes", "1", "--set", "dstack.fleets=[behind]", "-y")
    said = user.types("cloudrl", "up", "behind", *words, code=4, timeout_s=300).stdout
    status = user.status("behind")
    why = user.types("cloudrl", "why", "--cluster", "behind").stdout
    for text in (said, status["reason"], why):
        assert "The NVIDIA driver on your system is too old (found version 12020)" in text, text
        assert "update it there, or take an image with an older CUDA (--image)" in text, text
    assert (status["phase"], user.lab.runs.attempts("behind")) == ("failed", 2), status
    user.types("cloudrl", "fleet", "delete", "behind", "-y")


def disks_are_named(user: User) -> None:
    """Which of one's own hosts has too small a disk for a wish, with both numbers and the option."""
    own_fleet(user, "large", LARGE)
    wish = ("--gpu", "80GB..:8", "--set", "dstack.fleets=[ssh, large]", "--set", "disk=5TB..")
    said = user.types("cloudrl", "up", "wide", "--on", "dstack", *wish, "-y", code=3).stdout
    for host, free in FREE_GIB.items():
        assert f"{host}: disk {free}GB, asked for 5120GB.." in said, said
        assert f"--set disk={free}GB.." in said, said
    user.types("cloudrl", "fleet", "delete", "large", "-y")


def apply_fleet(lab: Lab, name: str, path: str) -> None:
    """The fleet of a file, or one of the machines with its name."""
    file = REPOSITORY / path
    if not path:
        file = lab.home / f"{name}.fleet.dstack.yml"
        types = name.replace("-", ", ")
        file.write_text(f"type: fleet\nname: {name}\nplacement: cluster\nnodes: 0..3\ninstance_types: [{types}]\n")
    words = ("dstack", "apply", "-y", "-f", file.name)  # not detached: it waits for what is rented at once
    done = lab.run(*words, cwd=file.parent, timeout_s=100)
    assert done.returncode == 0, done.stdout


def groups_file(lab: Lab, fleet: str) -> Path:
    """The file of `ray-cluster` as a task of two node groups: a head on a CPU machine, and one node with GPUs."""
    task = yaml.safe_load((REPOSITORY / "tasks" / "ray-cluster.dstack.yml").read_text())
    moved = {key: task.pop(key) for key in ("commands", "ports", "resources")}
    cpu = {**moved["resources"], "gpu": 0, "shm_size": "2GB"}
    commands = [each.replace("--gpus-per-node 8", "--gpus-per-node 0") for each in moved["commands"]]
    head = {"name": "head", "nodes": 1, **moved, "commands": commands, "resources": cpu}
    groups = [head, {"name": "workers", "nodes": 1, **moved}]
    del task["nodes"]
    path = lab.home / "groups.dstack.yml"
    path.write_text(yaml.safe_dump({**task, "name": "groups", "groups": groups, "fleets": [fleet]}))
    write_agent(lab.home)
    return path


def check_groups(lab: Lab, name: str) -> None:
    """What `cloudrl` sees of a run with node groups: it is ours, has a way in, and a folder of checkpoints."""
    listed = lab.run("cloudrl", "status", "--json")
    status = json.loads(lab.run("cloudrl", "status", name, "--json").stdout)
    assert name in listed.stdout
    assert (status["phase"], [node["gpus"] for node in status["nodes"]]) == ("ready", [0, 8]), status
    assert "on the machines' own disks" in status["retention"]["location"]
    dry = lab.run("cloudrl", "submit", "grpo", "--cluster", name, "--dry-run")
    assert "trainer.nnodes=1" in dry.stdout, dry.stdout
    assert "trainer.n_gpus_per_node=8" in dry.stdout, dry.stdout


def apply_files(lab: Lab, chain: str, tasks_folder: Path) -> None:
    """Each task's file on its fleet until READY."""
    for fleet, path, tasks in CHAINS[chain]:
        apply_fleet(lab, fleet, path)
        if fleet == "ssh":
            disks_are_named(User(lab))
            up_as_told(User(lab))
        for task in tasks:
            file = tasks_folder / f"{task}.dstack.yml"
            lab.runs.apply(file if file.exists() else groups_file(lab, fleet))
            lab.runs.wait_for_line(task, "READY", timeout_s=400)
            if not file.exists():
                check_groups(lab, task)
            assert {each.address in HOSTS for each in lab.runs.submissions(task)} == {fleet == "ssh"}
            lab.runs.stop(task)
        assert lab.run("dstack", "fleet", "delete", "-y", fleet).returncode == 0


@pytest.fixture(scope="module")
def files_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cloud, and two machines of one's own."""
    from dstack._internal.server.services.jobs.configurators.base import get_default_image  # 3 s, if selected

    nvidia, amd = (make_image(tmp_path_factory.mktemp(name)) for name in ("nvidia", "amd"))
    nvidia.look_like_verls()
    amd.look_like_verls(vendor="amd")
    real = real_python(tmp_path_factory.mktemp("cpu"))
    vllm = with_real_ray(tmp_path_factory.mktemp("vllm"), nvidia, "ray-cluster")
    folders = [str(each.python.parent.parent) for each in (nvidia, amd)] + [str(real), str(vllm)]
    images = {
        release().image: ImageConfig(path_first=f"{vllm}:{nvidia.python.parent}"),
        release(vendor="amd").image: ImageConfig(path_first=str(amd.python.parent)),
        get_default_image(): ImageConfig(path_first=str(real)),
    }
    nvidia.without_driver()  # each host has its own
    own = {name: {**OWN, "disk_bytes": free << 30, "system_disk_bytes": SYSTEM_DISK} for name, free in FREE_GIB.items()}
    own[BEHIND] = {**OWN, "cuda": OLD_CUDA}
    lab = start_or_skip(
        Lab(
            hosts=10, cloud=Cloud(MACHINES), own=own,
            images=images,
            path_first=str(nvidia.python.parent), binds=[*hidden_folders(), *folders],
        )
    )  # fmt: skip
    try:
        key = lab.home / ".ssh/id_ed25519"  # as fleets/ssh.dstack.yml names it
        key.parent.mkdir(exist_ok=True)
        shutil.copy(lab.fleet_key, key)
        yield lab
    finally:
        lab.stop()


@pytest.mark.parametrize("act", [apply_as_told, run_as_told])
def test_what_the_first_page_says_word_for_word(files_lab: Lab, act: Callable[[User], None]) -> None:
    """On rented machines with a real Ray; only verl's training, models and data sets are stand-ins."""
    act(User(files_lab))


@pytest.fixture(scope="module")
def applied(files_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """All chains, each in a thread, on a copy of `tasks/` with the agent's files built next to it."""
    folder = tmp_path_factory.mktemp("ready") / "tasks"
    shutil.copytree(REPOSITORY / "tasks", folder, ignore=shutil.ignore_patterns("*.pyz"))
    build = (sys.executable, REPOSITORY / "cloudrl/render/agent.py", folder)  # as `make agent`
    subprocess.run(build, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    with ThreadPoolExecutor(len(CHAINS) + 1) as threads:
        behind = threads.submit(old_driver_is_named, User(files_lab))
        yield {OLD_DRIVER: behind, **{name: threads.submit(apply_files, files_lab, name, folder) for name in CHAINS}}


@pytest.mark.parametrize("name", CHAINS)
def test_files_of_the_repository_start_as_they_are(applied: dict[str, Future[None]], name: str) -> None:
    """On machines that say to have the GPUs; image, models and data sets are stand-ins."""
    applied[name].result(timeout=900)


def test_a_driver_older_than_the_cuda_of_the_image(applied: dict[str, Future[None]]) -> None:
    """Beside the files above."""
    applied[OLD_DRIVER].result(timeout=900)
