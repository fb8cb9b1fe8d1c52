"""`cloudrl fleet|volume|task create`, as far as they need no dstack server: what they print and write."""

from pathlib import Path

import pytest
import yaml
from typed_command import Run

from cloudrl.render.agent import build_agent

pytestmark = pytest.mark.io

HOSTS = ["--ssh-host", "10.0.0.1", "--ssh-host", "10.0.0.2", "--ssh-user", "ubuntu", "--ssh-key", "~/.ssh/id"]


def test_task_create_writes_all_that_dstack_apply_needs(run: Run) -> None:
    done = run("task", "create", "lab", "--nodes", "2", "--gpu", "80GB:8", "--data", "gsm8k")
    assert (done.code, done.out) == (0, "lab.dstack.yml\n")
    assert "dstack apply -f lab.dstack.yml" in done.err
    task = yaml.safe_load(Path("lab.dstack.yml").read_text())
    for entry in task["files"]:
        assert Path(entry.split(":")[0]).read_bytes() == build_agent()
    assert task["resources"]["shm_size"] == "128GB"


def test_task_create_again_refreshes_both_files_but_asks_about_edits(run: Run) -> None:
    run("task", "create", "lab")
    task, agent = Path("lab.dstack.yml"), Path("cloudrl-node.pyz")
    rendered = task.read_text()
    agent.write_bytes(b"an older one")
    run("task", "create", "lab").ended(0, "up to date")
    assert agent.read_bytes() == build_agent()

    task.write_text(f"{rendered}# mine\n")
    run("task", "create", "lab").ended(
        2, "lab.dstack.yml has other content. Replace it? There is no terminal to ask on"
    )
    assert task.read_text().endswith("# mine\n")
    assert run("task", "create", "lab", "-y").code == 0
    assert task.read_text() == rendered


def test_passages_that_lie_there_are_replaced_only_when_that_is_said(run: Run) -> None:
    Path("data").mkdir()
    Path("data/mine.jsonl").write_text('{"text": "one"}\n')
    words = ("task", "create", "lab", "--set", 'services=["search:./data/mine.jsonl"]')
    assert run(*words).code == 0
    rendered = Path("lab.dstack.yml").read_text()
    Path("data/mine.jsonl").write_text('{"text": "two"}\n')
    run(*words).ended(2, "mine.jsonl is there and has another content", "Replace it: -y")
    assert Path("lab.dstack.yml").read_text() == rendered
    assert run(*words, "-y").code == 0
    assert Path("mine.jsonl").read_text() == '{"text": "two"}\n'


def test_task_create_elsewhere_puts_the_agent_there(run: Run) -> None:
    assert run("task", "create", "lab", "-o", "far/away.yml").code == 0
    assert Path("far/cloudrl-node.pyz").is_file()
    assert not Path("cloudrl-node.pyz").exists()


def test_dry_run_prints_what_would_be_written(run: Run) -> None:
    words = ["task", "create", "lab", "--model", "Qwen/Qwen2.5-7B-Instruct"]
    printed = run(*words, "--dry-run").out
    assert list(Path().iterdir()) == []
    run(*words)
    assert Path("lab.dstack.yml").read_text() == printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task", "create", "--gpu", "H100x8"], "did you mean 'H100:8'"),
        (["task", "create", "--set", "rollout=vlm"], "vllm"),
        (["task", "create", "--set", "verl=0.9.9"], "0.9.1"),
        (["task", "create", "--gpu", "amd:MI300X:8", "--set", "rollout=trt"], "rollout"),
        (["task", "create", "--env", "HF_TOKEN=hf_0123456789"], "HF_TOKEN"),
        (["task", "create", "--env", "NO_SUCH_NAME"], "--env NO_SUCH_NAME=..."),
        (["task", "create", "--set", "dstack.priority"], "dstack.priority=VALUE"),
        (["task", "create", "--nodes", "2", "--set", "nodes=3"], "set twice"),
        (["task", "create", "--set", "dstack.prioritty=3"], "did you mean 'priority'"),
        (["task", "create", "--set", "dstack.tags={a: [}"], "expected the node content"),
        (["task", "create", "--volume", "ckpt"], "ckpt"),
        (["fleet", "create", "--nodes", "4..2"], "backwards"),
        (["fleet", "create", "--now", "--nodes", "1..2"], "--now"),
        (["fleet", "create", "--ssh-user", "me"], "need --ssh-host"),
        (["fleet", "create", "--ssh-host", "h", "--ssh-user", "me"], "need --ssh-key"),
        (["fleet", "create", *HOSTS, "--gpu", "H100:8"], "gpu"),
        (["fleet", "create", "--set", "dstack.backends=[awz]"], "aws"),
        (["fleet", "create", "--idle-duration", "soon"], "soon"),
        (["volume", "create", "ckpt", "--backend", "awz"], "aws"),
        (["volume", "create", "ckpt", "--backend", "aws", "--size", "1GB"], "region: Field required"),
    ],
)
def test_bad_input_is_said_in_a_line(run: Run, words: list[str], said: str) -> None:
    done = run(*words, "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "hf_0123456789" not in done.err


@pytest.mark.parametrize("provider", ["local", "dstack"])
def test_a_data_set_that_is_in_no_list(run: Run, provider: str) -> None:
    Path("cluster.yml").write_text("data: gsm8k\n")
    done = run("up", "-f", "cluster.yml", "--on", provider, "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "data: 'gsm8k' is one text where a list is expected; write ['gsm8k']" in done.err


def test_a_file_that_dstack_would_not_read(run: Run) -> None:
    run("task", "create", "-o", "task.txt").ended(2, "-o task.txt.dstack.yml")


@pytest.mark.parametrize(
    ("file", "words", "nodes"),
    [
        ("{}", [], "0.."),
        ("{}", ["--now", "--nodes", "4", "--gpu", "H100:8"], {"min": 0, "target": 4, "max": 4}),
        ("nodes: 4", ["--now"], {"min": 0, "target": 4, "max": 4}),
        ("nodes: 4", ["--now", "--nodes", "8"], {"min": 0, "target": 8, "max": 8}),
        ("nodes: {min: 1, max: 4}", ["--now"], {"min": 1, "target": 4, "max": 4}),
        ("nodes: null", ["--now", "--set", "nodes=3"], {"min": 0, "target": 3, "max": 3}),
        ("nodes: null", ["--now"], {"min": 0, "target": 2, "max": 2}),
    ],
)
def test_machines_are_rented_now_if_asked_for_and_always_given_back(
    run: Run, file: str, words: list[str], nodes: object
) -> None:
    Path("fleet.yml").write_text(file)
    fleet = yaml.safe_load(run("fleet", "create", "-f", "fleet.yml", *words, "--dry-run").out)
    assert (fleet["type"], fleet["nodes"]) == ("fleet", nodes)
    assert fleet["idle_duration"]


def test_fleet_create_now_needs_a_number(run: Run) -> None:
    Path("fleet.yml").write_text("nodes: 2..4\n")
    done = run("fleet", "create", "-f", "fleet.yml", "--now", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert "--now needs a single number of nodes, not '2..4'" in done.err


def test_a_fleet_of_own_machines(run: Run) -> None:
    run("fleet", "create", "rack", *HOSTS, "-o", "rack.yml").ended(0)
    fleet = yaml.safe_load(Path("rack.yml").read_text())
    assert fleet["ssh_config"] == {
        "user": "ubuntu", "identity_file": "~/.ssh/id", "hosts": ["10.0.0.1", "10.0.0.2"],
    }  # fmt: skip
    assert fleet["placement"] == "cluster"


def test_a_volume(run: Run) -> None:
    words = ["volume", "create", "ckpt", "--backend", "aws", "--region", "us-east-1", "--size", "500GB"]
    assert yaml.safe_load(run(*words, "--dry-run").out) == {
        "type": "volume", "name": "ckpt", "backend": "aws", "region": "us-east-1", "size": "500GB",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "2..2"], "it keeps 2 machines at any time (nodes: min 2)"),
        (["--idle-duration", "off"], "its idle_duration is off"),
        ([], ""),
        (["--ssh-host", "10.0.0.1", "--ssh-user", "me", "--ssh-key", "~/.ssh/id"], ""),
    ],
)
def test_a_fleet_that_never_idles_out_is_warned_of(run: Run, words: list[str], said: str) -> None:
    done = run("fleet", "create", *words, "--dry-run").ended(0)
    assert ("never gives all of its machines back" in done.err) == bool(said)
    assert said in done.err
