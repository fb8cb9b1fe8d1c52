"""The user's own reward, data, model and verl, and a secret, in a real training on two nodes; and what is around it."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

NAME = "own"
SECRET = "marker-5e0f7c1d-of-this-test"
REWARD = """
import os
import verl

def mine(data_source, solution_str, ground_truth, extra_info=None, **_):
    print("REWARD", verl.MARK_OF_THE_FORK, len(os.environ.get("MY_API_TOKEN", "")), flush=True)
    return float(solution_str.strip() == ground_truth)
"""


@pytest.fixture(scope="module")
def cluster(shell):
    shell.run("up", NAME, "--nodes", "2", "--model", "tiny-qwen2")
    return shell.home / "home" / "clusters" / NAME


@pytest.fixture(scope="module")
def own(shell, cluster):
    """What a user has in the folder where they work."""
    import verl

    shutil.copytree(
        Path(verl.__file__).parent, shell.home / "fork" / "verl", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (shell.home / "fork" / "verl" / "__init__.py").open("a") as file:
        file.write("\nMARK_OF_THE_FORK = 'forked'\n")
    (shell.home / "reward.py").write_text(REWARD)
    shutil.copytree(cluster / "data" / "addition", shell.home / "mine")
    shutil.copytree(cluster / "data" / "models" / "tiny-qwen2", shell.home / "model")
    with (shell.home / "model" / "more.bin").open("wb") as file:
        file.truncate(11 * 2**20)  # too large for the package: it goes through the agents
    return [
        *("--working-dir", "fork", "--reward", "./reward.py:mine", "--model", "./model", "--data", "./mine"),
        *("--env", f"MY_API_TOKEN={SECRET}", "--name", "run", "--steps", "2"),
    ]


def test_status_shows_both_nodes(shell, cluster):
    look = json.loads(shell.run("status", NAME, "--json").stdout)
    assert [(node["rank"], node["ray_up"], node["fetched"]) for node in look["nodes"]] == [
        (0, True, True),
        (1, True, True),
    ]


def test_raw_ray_works_with_what_env_prints(shell, cluster):
    programs = Path(sys.executable).parent
    script = f'eval "$({programs / "cloudrl"} env)"; {programs / "ray"} job submit -- echo hello from ray'
    done = subprocess.run(["bash", "-c", script], env=shell.env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "hello from ray" in done.stdout


def test_a_dry_run_shows_all_and_sends_nothing(shell, cluster, own):
    before = sorted(path.name for path in (cluster / "data").iterdir())

    done = shell.run("submit", "grpo-tiny", *own, "--dry-run")

    assert "./model -> " in done.stdout
    assert re.search(r"/model \(11\.\d MiB, through the agents\)", done.stdout)
    assert "./reward.py -> cloudrl_files/" in done.stdout
    assert "# Secrets, through the agents: MY_API_TOKEN" in done.stdout
    assert "the job runs the verl in fork (0.9.1)" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert sorted(path.name for path in (cluster / "data").iterdir()) == before


def test_the_job_finds_them_on_both_nodes(shell, cluster, own):
    done = shell.run("submit", "grpo-tiny", *own, "--submission-id", "one")

    assert "step 2/2" in done.stderr
    log = shell.run("jobs", "logs", "one").stdout
    assert f"REWARD forked {len(SECRET)}" in log
    assert SECRET not in done.stdout + done.stderr + log


def test_the_secret_is_in_no_file_and_no_answer(shell, cluster):
    state = json.loads((cluster / "cluster.json").read_text())
    session = Path(state["ray_temp_dir"])
    files = [path for folder in (session, cluster) for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "runtime_env_agent.log" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []

    printed = shell.run("env").stdout
    env = dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines() if "=" in line)
    request = urllib.request.Request(
        env["RAY_ADDRESS"].strip("'") + "/api/jobs/",
        headers={"Authorization": f"Bearer {env['RAY_AUTH_TOKEN'].strip(chr(39))}"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        jobs = answer.read()
    assert b"MY_API_TOKEN" not in jobs
    assert b'"one"' in jobs
    assert SECRET.encode() not in jobs


def test_the_second_time_nothing_is_sent(shell, cluster, own):
    [manifest] = (cluster / "data" / "user-files").glob("*.json")
    before = manifest.stat().st_mtime_ns

    done = shell.run("submit", "grpo-tiny", *own, "--no-wait", "--submission-id", "two")

    assert "uploaded" not in done.stderr
    assert manifest.stat().st_mtime_ns == before
    shell.run("jobs", "stop", "two")


def test_down_takes_the_secret_and_leaves_the_checkpoints(shell, cluster):
    kept = (
        Path("/dev/shm") / f"cloudrl-{os.getuid()}-{json.loads((cluster / 'cluster.json').read_text())['id']}"
    )
    assert (kept / "one").exists()
    shell.run("down", NAME, "-y")  # asks nobody when told so
    assert not kept.exists()
    assert shell.leftovers() == []
    assert len(list(cluster.glob("checkpoints/run/global_step_2/actor/model_*.pt"))) == 2
    assert shell.run("status", NAME).stdout.strip() == f"{NAME} on local: down"
