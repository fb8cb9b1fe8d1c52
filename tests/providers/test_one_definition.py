"""One file defines a cluster on this machine, on dstack and on Slurm. A training runs on each, and is merged at home.

On Slurm also in containers, which only the section of the provider says. Where nodes are machines of their own, each
also has a search server, which a second job asks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from dstack_hosts.user import User
from slurm_nodes import SlurmNodes
from slurm_nodes.containers import IMAGE, TAR
from slurm_nodes.laptop import Laptop
from tiny_encoder import make_encoder, write_corpus

from cloudrl.providers.local.provider import LocalProvider
from cloudrl.retriever.build import BuildOptions, build
from cloudrl.retriever.opening import Source, open_retriever

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
ASK = """
import json, os, ray, urllib.request
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=0)
def ask(query):
    url = "http://" + os.environ["CLOUDRL_SERVICE_SEARCH"]
    body = json.dumps({"queries": [query], "topk": 3}).encode()
    with urllib.request.urlopen(url + "/retrieve", body, 90) as answer:
        found = [document["id"] for document in json.load(answer)["result"][0]]
    with urllib.request.urlopen(url + "/health", timeout=90) as answer:
        return found, json.load(answer)

ray.init(log_to_driver=False)
wanted, is_shared = json.loads(os.environ["WANTED"]), os.environ["SHARED"] == "yes"
on = {each["NodeManagerAddress"]: On(each["NodeID"], soft=False) for each in ray.nodes()}
assert len(on) == 2, on
for node, place in on.items():
    found, health = ray.get(ask.options(scheduling_strategy=place).remote(os.environ["QUERY"]))
    assert found[: len(wanted)] == wanted, (node, found)
    assert health["ready"] and health["queries"] == 1, (node, health)
    others = {f"{other}:8100": "" for other in on if other != node} if is_shared else None
    assert health.get("nodes") == others, (node, health)
"""
"""Asks the search server of each node, and knows what to find."""
FILES = {
    "same.yml": DEFINITION,
    "probe.yml": PROBE,
    "ask.yml": PROBE.partition("entrypoint:")[0] + f"entrypoint: {json.dumps(['python3', '-c', f'exec({ASK!r})'])}",
}
DEADLINE_S = 500.0
# What somebody types where `same.yml` is; the command has to succeed. All that it said.
Typist = Callable[..., str]


@pytest.fixture
def on_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
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
    for name, text in FILES.items():
        (user.lab.home / name).write_text(text)
    return lambda *words: user.types(*words, timeout_s=DEADLINE_S, cwd=user.lab.home).stdout


@pytest.fixture
def on_slurm(slurm: SlurmNodes) -> Iterator[Typist]:
    laptop = Laptop(slurm)
    for name, text in FILES.items():
        laptop.write(name, text)
    yield lambda *words: laptop.types(*words, timeout_s=DEADLINE_S)
    slurm.laptop.run("rm", "-rf", "/root/model")
    left = ("checkpoints", "tiny-e5", "index", "passages.jsonl")
    slurm.login.run("rm", "-rf", "/home/alice/.cloudrl", "/home/alice/.cache", *(f"/shared/{name}" for name in left))


COUNT = ("probe.yml",)
TRAIN = ("grpo-tiny", "--steps", "1", "--name", "one", "--model", "tiny-qwen2", "trainer.nnodes=2", "--to", "model")
ON_SLURM = (pytest.mark.slurm, pytest.mark.root)


@pytest.mark.parametrize(
    ("on", "job", "more"),
    [
        pytest.param("local", COUNT, (), marks=pytest.mark.ray, id="local"),
        pytest.param("dstack", TRAIN, (), marks=(pytest.mark.dstack, pytest.mark.ray), id="dstack"),
        pytest.param("slurm", TRAIN, (), marks=ON_SLURM, id="slurm"),
        pytest.param("slurm", COUNT, IN_PODMAN, marks=ON_SLURM, id="slurm-podman"),
        pytest.param("slurm", TRAIN, IN_DOCKER, marks=(*ON_SLURM, pytest.mark.slow), id="slurm-docker-train"),
        pytest.param("slurm", TRAIN, IN_PODMAN, marks=(*ON_SLURM, pytest.mark.slow), id="slurm-podman-train"),
    ],
)
def test_a_definition_needs_no_change_between_providers(
    on: str, job: tuple[str, ...], more: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    types: Typist = request.getfixturevalue(f"on_{on}")
    question = None
    if (job, more) == (TRAIN, ()):
        on_machines = {"dstack": ask_dstack, "slurm": ask_slurm}[on]
        question = on_machines(request.getfixturevalue({"dstack": "user", "slurm": "slurm"}[on]))
        more = ("--set", f"services={json.dumps([question.service])}")
    words = ("-f", "same.yml", "--on", on, *more, "-y")
    end = ("--down",) if question is None else ("--watch",) if on == "dstack" else ()
    said = types("cloudrl", "run", *job, *words, *end)
    assert "READY: same with 2 nodes" in said
    assert ("merging step 1" in said) is (job == TRAIN)
    if on == "dstack":
        look_at(types)
    if question is not None:
        types("cloudrl", "run", "ask.yml", *words, *question.env, "--down")
    assert '"phase": "down"' in types("cloudrl", "status", "same", "--json")


def look_at(types: Typist) -> None:
    """`watch` and `report` of the training of one step, through the tunnel."""
    said = types("cloudrl", "watch", "--cluster", "same", "--json").splitlines()
    events = [json.loads(line) for line in said if line.startswith("{")]
    assert {"step", "progress", "look", "ended"} <= {each["event"] for each in events}
    nodes = [each for each in events if each["event"] == "look"][-1]["nodes"]
    assert [(node["rank"], node["phase"]) for node in nodes] == [(0, "ready"), (1, "ready")]
    assert all(0 <= node["usage"]["cpu_percent"] <= 100 for node in nodes)
    said = types("cloudrl", "report", "--cluster", "same", "--json")
    [run] = json.JSONDecoder().raw_decode(said[said.index("{") :])[0]["runs"]
    assert (run["name"], run["status"], run["cause"]) == ("one", "SUCCEEDED", None)
    assert run["steps"][-1]["step"] == 1
    assert {table["title"] for table in run["tables"]} >= {"Attempts", "Nodes", "Checkpoints"}
    assert [(node["rank"], len(node["samples"]) > 2) for node in run["usage"]] == [(0, True), (1, True)]
    assert types("cloudrl", "report", "--cluster", "same").endswith("report.html\n")


@dataclass(frozen=True)
class Question:
    """For `ask.yml`: a search service, and what it has to find first."""

    service: str | dict[str, str]
    query: str
    wanted: list[str]
    shared: bool
    """Whether each node has a share of the index."""

    @property
    def env(self) -> list[str]:
        env = {"QUERY": self.query, "WANTED": json.dumps(self.wanted), "SHARED": "yes" if self.shared else "no"}
        return [word for name, value in env.items() for word in ("--env", f"{name}={value}")]


def ask_dstack(user: User) -> Question:
    """Its passages are larger than what dstack takes at once."""
    rows = [{"id": f"{row}", "contents": f"passage number {row} " + "and so on " * 70} for row in range(3000)]
    rows.append({"id": "last", "contents": "Lima is the capital of Peru"})
    (user.lab.home / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Question("search:./passages.jsonl", "Peru", ["last"], shared=False)


def ask_slurm(slurm: SlurmNodes) -> Question:
    """Its index is on the shared file system."""
    make_encoder(slurm.shared / "tiny-e5")
    (slurm.shared / "tiny-e5/model.safetensors").chmod(0o644)  # only its owner may read what safetensors writes
    write_corpus(slurm.shared / "passages.jsonl")
    options = BuildOptions((slurm.shared / "passages.jsonl",), encoder=str(slurm.shared / "tiny-e5"), prefixes="e5")
    record = build(options, slurm.shared / "index")
    [found] = open_retriever(Source(slurm.shared / "index")).search(["capital of peru"], 3)
    replace(record, encoder="/shared/tiny-e5").write(slurm.shared / "index")  # as nodes see it
    service = {"search": "/shared/index", "engine": "flat", "shards": "nodes"}
    return Question(service, "capital of peru", [json.loads(each.document)["id"] for each in found], shared=True)
