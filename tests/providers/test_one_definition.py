"""One file defines a cluster on this machine, on dstack and on Slurm. A training runs on each, and is merged at home.

On Slurm also in containers, which only the provider's section says.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dstack_hosts.user import User
from slurm_nodes import SlurmNodes
from slurm_nodes.containers import IMAGE, TAR
from slurm_nodes.laptop import Laptop

from cloudrl.providers.local.provider import LocalProvider

DEFINITION = """\
name: same
nodes: 2
image: any
user: root
cpu: "x86:1.."
memory: 1GB..
disk: 1GB..
env: {GREETING: "it's $HOME"}
data: [addition]
models: [tiny-qwen2]
dstack:
  fleets: [mine]
slurm:
  login: alice@login
  container: bare
  python: PYTHON
  volumes: [/shared/checkpoints:/checkpoints]
  cpus-per-task: 4
  mem: 6000
""".replace("PYTHON", sys.executable)
IN_DOCKER = ("--set", "slurm.container=docker", "--image", IMAGE)
# without root, whose images each user has to import on each node
IMPORT = f"[podman image exists {IMAGE} || podman import --quiet {TAR} {IMAGE}]"
IN_PODMAN = ("--set", "slurm.container=podman", "--image", IMAGE, "--set", f"slurm.node_setup={IMPORT}")
PROBE = """\
name: probe
device: cpu
overrides: {data.train_files: /no, data.val_files: /no, actor_rollout_ref.model.path: /no}
entrypoint: [python3, -c, "import ray; ray.init(log_to_driver=False); assert len(ray.nodes()) == 2"]
"""
DEADLINE_S = 500.0
# What somebody types where `same.yml` is; the command has to succeed. All that it said.
Typist = Callable[..., str]


@pytest.fixture
def on_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    (tmp_path / "same.yml").write_text(DEFINITION)
    (tmp_path / "probe.yml").write_text(PROBE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

    def types(*words: str) -> str:
        command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    yield types
    for state in (tmp_path / "home" / "clusters").glob("*/cluster.json"):
        LocalProvider().down(state.parent.name)


@pytest.fixture
def on_dstack(user: User) -> Typist:
    (user.lab.home / "same.yml").write_text(DEFINITION)
    return lambda *words: user.types(*words, timeout_s=DEADLINE_S, cwd=user.lab.home).stdout


@pytest.fixture
def on_slurm(slurm: SlurmNodes) -> Iterator[Typist]:
    laptop = Laptop(slurm)
    laptop.write("same.yml", DEFINITION)
    laptop.write("probe.yml", PROBE)
    yield lambda *words: laptop.types(*words, timeout_s=DEADLINE_S)
    slurm.laptop.run("rm", "-rf", "/root/model")
    slurm.login.run("rm", "-rf", "/home/alice/.cloudrl", "/home/alice/.cache", "/shared/checkpoints")


COUNT = ("probe.yml",)
TRAIN = ("grpo-tiny", "--steps", "1", "--name", "one", "--model", "tiny-qwen2", "trainer.nnodes=2", "--to", "model")
ON_SLURM = (pytest.mark.slurm, pytest.mark.root)


@pytest.mark.parametrize(
    ("on", "job", "more"),
    [
        pytest.param("local", COUNT, (), marks=pytest.mark.ray, id="local"),
        pytest.param("dstack", TRAIN, (), marks=(pytest.mark.dstack, pytest.mark.ray), id="dstack"),
        pytest.param("slurm", TRAIN, (), marks=ON_SLURM, id="slurm"),
        pytest.param("slurm", TRAIN, IN_DOCKER, marks=ON_SLURM, id="slurm-docker"),
        pytest.param("slurm", TRAIN, IN_PODMAN, marks=ON_SLURM, id="slurm-podman"),
    ],
)
def test_a_definition_needs_no_change_between_providers(
    on: str, job: tuple[str, ...], more: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    types: Typist = request.getfixturevalue(f"on_{on}")
    said = types("cloudrl", "run", *job, "-f", "same.yml", "--on", on, *more, "--down", "-y")
    assert "READY: same with 2 nodes" in said
    assert ("merging step 1" in said) is (job == TRAIN)
    assert '"phase": "down"' in types("cloudrl", "status", "same", "--json")
