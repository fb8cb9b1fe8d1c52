"""The user's own reward, data, model and verl, and a secret, in a real PPO training on two nodes, and its resume.

A Python program starts the cluster, and in its end goes on with the training that a command has begun.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from patience import SLOWER

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
PROGRAM = """
import os, pathlib, time
import cloudrl
cluster = cloudrl.Cluster(name="own", nodes=2, data=["addition"], models=["tiny-qwen2"])
assert "nodes: 2" in cluster.to_dstack()
with cluster.up(on="local") as ray:
    print("UP", flush=True)
    while not pathlib.Path("go on").exists():
        time.sleep(0.2)
    job = ray.submit(
        "ppo-tiny", {"trainer.save_freq": 1}, name="run", steps=3, submission_id="two", working_dir="fork",
        reward="./reward.py:mine", model="./model", data="./mine", env={"MY_API_TOKEN": os.environ["SECRET"]},
    )
    events = list(job.follow(lines=True))
    print(events[-1].status, *(event.step for event in events if hasattr(event, "eta_s")))
"""


@pytest.fixture(scope="module")
def program(shell):
    with (shell.home / "said").open("w+") as said:
        started = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM],
            env={**shell.env, "SECRET": SECRET}, cwd=shell.home, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 300 * SLOWER
            while not (shell.home / "said").read_text():
                assert started.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield started
        finally:
            started.kill()
            started.wait(10 * SLOWER)


@pytest.fixture(scope="module")
def cluster(shell, program):
    assert (shell.home / "said").read_text() == "UP\n"
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
        *("--env", f"MY_API_TOKEN={SECRET}", "--name", "run", "--steps", "2", "trainer.save_freq=1"),
    ]


@pytest.fixture(scope="module")
def secrets(cluster):
    """Where the nodes keep the secrets of jobs."""
    return Path("/dev/shm") / f"cloudrl-{os.getuid()}-{json.loads((cluster / 'cluster.json').read_text())['id']}"


def saved(cluster, step):
    """Shards of a step, by model."""
    folder = cluster / "checkpoints" / "run" / f"global_step_{step}"
    return {model: sorted(path.name for path in (folder / model).glob("model_*.pt")) for model in ("actor", "critic")}


BOTH = {
    model: [f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)] for model in ("actor", "critic")
}  # fmt: skip


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

    done = shell.run("submit", "ppo-tiny", *own, "--dry-run")

    assert "./model -> " in done.stdout
    assert re.search(r"/model \(\d+\.\d MB, through the agents\)", done.stdout)
    assert "./reward.py -> cloudrl_files/" in done.stdout
    assert "# Secrets, through the agents: MY_API_TOKEN" in done.stdout
    assert "the job runs the verl in fork (0.9.1)" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert sorted(path.name for path in (cluster / "data").iterdir()) == before


def test_the_job_finds_them_on_both_nodes(shell, cluster, own):
    with shell.in_terminal(120, 40, "submit", "ppo-tiny", *own, "--submission-id", "one", "--watch") as seen:
        assert seen.end() == 0, seen.sent

    assert "ray://own/one  SUCCEEDED" in seen.screen
    assert "step 2/2" in seen.screen
    for part in ("rollout", "update"):  # the longest first
        assert re.search(rf"^a step: .*{part} [\d.]+ s ", seen.screen, re.MULTILINE)
    assert re.search(r"^1 +[\d.]+ +ready +\d+% .*\d+%", seen.screen, re.MULTILINE), "CPU and memory of rank 1"
    assert re.search("waiting for the first step|before the first step", seen.sent), "it was shown from the start"
    log = shell.run("jobs", "logs", "one").stdout
    assert f"REWARD forked {len(SECRET)}" in log
    assert SECRET not in seen.sent + log
    assert saved(cluster, 2) == BOTH


def test_watching_it_afterwards_prints_its_steps(shell, cluster):
    assert re.findall(r"^step (\d)/2  reward", shell.run("watch", "one").stderr, re.MULTILINE) == ["1", "2"]


def test_the_secret_is_in_no_file_and_no_answer(shell, cluster, secrets):
    state = json.loads((cluster / "cluster.json").read_text())
    session = Path(state["ray_temp_dir"])
    files = [path for folder in (session, cluster) for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "runtime_env_agent.log" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert (secrets / "one").exists()

    printed = shell.run("env").stdout
    env = dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines() if "=" in line)
    request = urllib.request.Request(
        env["RAY_ADDRESS"].strip("'") + "/api/jobs/",
        headers={"Authorization": f"Bearer {env['RAY_AUTH_TOKEN'].strip(chr(39))}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        jobs = answer.read()
    assert b"MY_API_TOKEN" not in jobs
    assert b'"one"' in jobs
    assert SECRET.encode() not in jobs


def test_a_program_goes_on_where_it_stopped_and_sends_nothing_again(shell, cluster, program):
    [manifest] = (cluster / "checkpoints" / ".cloudrl" / "user-files").glob("*.json")
    before = manifest.stat().st_mtime_ns

    (shell.home / "go on").touch()

    said = f"after {program.wait(300)}: {(shell.home / 'said').read_text()}"
    assert said == "after 0: UP\nSUCCEEDED 3\n"
    assert manifest.stat().st_mtime_ns == before
    assert saved(cluster, 3) == BOTH
    assert (cluster / "checkpoints" / "run" / "latest_checkpointed_iteration.txt").read_text() == "3"


def test_the_end_of_the_block_takes_the_secret_and_leaves_the_checkpoints(shell, cluster, secrets):
    assert not secrets.exists()
    assert shell.leftovers() == []
    assert saved(cluster, 2) == BOTH
    assert shell.run("status", NAME).stdout.strip() == f"{NAME} on local: down"
