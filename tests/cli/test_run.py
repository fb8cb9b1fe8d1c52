"""`cloudrl run`, towards a stand-in cluster that is up."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from child_processes import ended
from fake_local import FakeLocal
from patience import SLOWER
from small_step import write_step
from typed_command import Run

from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import BudgetStatus
from cloudrl.providers.model import Status
from cloudrl.sdk.costs import price_difference

pytestmark = pytest.mark.io

LOG = (
    "step:1 - training/global_step:1 - critic/score/mean:0.25\n"
    "step:2 - training/global_step:2 - critic/score/mean:0.50\n"
)
REPLICA = "actor_rollout_ref.rollout.tensor_model_parallel_size"
RUN = ("run", "grpo-tiny", "--cluster", "lab", "--steps", "2")


def test_a_cluster_that_is_up_and_fits_is_used(run: Run, lab: FakeLocal) -> None:
    lab.cluster.finish_jobs(LOG)
    lab.cluster.status["budget"] = {"price_per_hour": 12.3, "cost": 4.5}
    done = run(*RUN).ended(
        0,
        "using cluster lab, which is up",
        "step 2/2",
        "checkpoints are in /vol/checkpoints/grpo-tiny-",
        "cluster lab keeps running and costs $12.30/h, $4.50 so far",
        "cloudrl down lab",
    )
    url = done.out.splitlines()[0]
    assert url.startswith("ray://lab/grpo-tiny-")
    assert json.loads(run("jobs", "status", url, "--json").out)["submission_id"] == url.rpartition("/")[2]


@pytest.mark.parametrize(("status", "code"), [("SUCCEEDED", 0), ("FAILED", 4)])
def test_a_program_is_told_how_the_job_ended_also_when_the_cluster_is_gone(
    run: Run, lab: FakeLocal, status: str, code: int
) -> None:
    lab.cluster.finish_jobs(LOG, status)
    told = json.loads(run(*RUN, "--down", "-y", "--json").ended(code, "lab is down").out)
    assert (told["status"], told["step"], told["reward"]) == (status, 2, 0.5)
    assert told.get("cluster_ended") is (True if code == 0 else None)


def test_settings_that_make_no_difference_to_a_cluster_that_is_up_are_named(run: Run, lab: FakeLocal) -> None:
    lab.cluster.finish_jobs(LOG)
    said = "these settings only count for a new cluster: down_when_idle, setup"
    run(*RUN, "--setup", "pip install x", "--down-when-idle", "1h").ended(0, said, "cloudrl down lab")


def test_down_ends_a_cluster_that_was_started_again_without_the_job(run: Run, lab: FakeLocal) -> None:
    lab.cluster.on_submit = lab.cluster.jobs.pop
    run(*RUN, "--no-durable", "--down", "-y").ended(
        4, "the cluster was restarted, and its jobs are gone", "lab is down"
    )


def test_down_ends_it_with_a_job_that_failed(run: Run, lab: FakeLocal) -> None:
    lab.cluster.finish_jobs(LOG, "FAILED")
    run(*RUN, "--down", "-y").ended(4, "lab is down")
    assert run("status", "lab").out.split()[-1] == "down"


def test_the_model_is_brought_home(run: Run, lab: FakeLocal, tmp_path: Path) -> None:
    disk = tmp_path / "volume"
    lab.cluster.status["facts"]["checkpoint_dir"] = str(disk)
    lab.cluster.disks = {0: disk, 1: disk}

    lab.cluster.finish_jobs(LOG, on_end=lambda: write_step(disk / "mine", 2))
    done = run(*RUN, "--name", "mine", "--to", "model", "--down").ended(0, "merging step 2: ")
    model = tmp_path / "here" / "model"
    assert done.out.splitlines()[1] == str(model)
    assert (model / "model.safetensors").exists()

    again = run(*RUN, "--name", "mine", "--to", "model")
    assert (again.code, "exists already" in again.err) == (2, True)


def test_a_job_that_left_no_checkpoint_keeps_its_cluster(run: Run, lab: FakeLocal, tmp_path: Path) -> None:
    lab.cluster.finish_jobs(LOG)
    lab.cluster.disks = {0: tmp_path, 1: tmp_path}
    run(*RUN, "--to", "model", "--down").ended(
        6, "left no checkpoint in /vol/checkpoints/grpo-tiny-", "cluster lab keeps running"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "4"], "cluster 'lab' is up with 2 nodes, but 4 are requested"),
        (["--model", "Qwen/Qwen2.5-0.5B"], "has not prepared model 'Qwen/Qwen2.5-0.5B' (it has: tiny-adder)"),
        (["--data", "gsm8k"], "has not prepared data 'gsm8k' (it has: addition)"),
        (["trainer.nnodes=3"], "trainer.nnodes=3"),
    ],
)
def test_one_that_does_not_fit_is_refused(run: Run, lab: FakeLocal, words: list[str], said: str) -> None:
    run(*RUN, *words).ended(2, said)
    assert lab.cluster.jobs == {}


def test_one_that_is_not_ready_yet(run: Run, lab: FakeLocal) -> None:
    lab.cluster.status["phase"] = "fetch"
    run(*RUN).ended(2, "not READY: fetch")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["grpo", "--on", "local"], 3, "this machine has"),
        (["grpo", "--gpu", "none", f"{REPLICA}=1"], 2, "computes on GPUs"),
        (["grpo", "--gpu", "80GB:1", "--on", "dstack"], 2, "tensor_model_parallel_size"),
        (["grpo", "trainer.nnodes=4"], 2, "trainer.nnodes=4"),
        (["grpo", "--set", "rollout=sglang"], 2, "generates with vllm"),
        (["grpo-tiny", "--reward", "./nowhere.py"], 2, "nowhere.py"),
        (["grpo-teeny"], 2, "grpo-tiny"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(run: Run, words: list[str], code: int, said: str) -> None:
    run("run", *words, "--dry-run").ended(code, said)


def test_a_dry_run_shows_cluster_and_job(run: Run) -> None:
    done = run("run", "grpo", "--gpu", "H100:8", "--nodes", "2", "--dry-run", "--down-when-idle", "30m").ended(0)
    assert "gpu: H100:8" in done.out
    assert "--down-when-idle-s 1800" in done.out
    assert "--model Qwen/Qwen2.5-7B-Instruct" in done.out
    assert "trainer.nnodes=2" in done.out


def test_a_dry_run_shows_the_way_of_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `submit` would send them to the cluster that comes up: through its agents, not through Ray."""
    for name, value in (("WANDB_API_KEY", "of-wandb"), ("MY_API_KEY", "of-mine")):
        monkeypatch.setenv(name, value)
    words = ("--env", "MY_API_KEY", "trainer.logger=[console,wandb]", "--dry-run")
    done = run("run", "grpo", "--on", "dstack", *words).ended(0)
    assert "# Secrets, through the agents: MY_API_KEY, WANDB_API_KEY" in done.out
    assert "/bin/sh /dev/shm/cloudrl-0-RUN-ID/" in done.out
    assert "passed on from this shell: WANDB_API_KEY (trainer.logger has wandb)" in done.err
    assert "/root/data/gsm8k/train.parquet" in done.out
    assert "of-wandb" not in done.out + done.err
    assert "of-mine" not in done.out + done.err


def test_a_dry_run_shows_the_files_that_travel(run: Run, home: Path) -> None:
    (home.parent / "here" / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info): return 1.0\n"
    )
    done = run("run", "grpo-tiny", "--reward", "./reward.py", "--dry-run").ended(0)
    assert "#   ./reward.py -> " in done.out
    assert f"{home}/clusters/" in done.out


def test_a_data_set_of_ones_own(run: Run) -> None:
    mine = "data=[{name: mine, source: owner/name, prompt_field: q, answer_field: a}]"
    done = run("run", "grpo", "--on", "dstack", "--data", "mine", "--set", mine, "--dry-run").ended(0)
    assert '"source": "owner/name"' in done.out
    assert "/data/mine/train.parquet" in done.out


class TestMoneyInStatus:
    def test_cost_and_limits(self, run: Run, lab: FakeLocal) -> None:
        lab.cluster.status["budget"] = {
            "price_per_hour": 49.2, "cost": 101.5, "max_cost": 200, "down_when_idle_s": 1800, "idle_s": 700.0,
        }  # fmt: skip
        done = run("status", "lab")
        assert "cost: $49.20/h, $101.50 so far" in done.err
        assert "stops by itself after being idle for 30m, idle for 12m now" in done.err
        assert "stops by itself once it has cost $200.00" in done.err
        look = json.loads(run("status", "lab", "--json").out)
        assert (look["cost"], look["price_per_hour"], look["budget"]["max_cost"]) == (101.5, 49.2, 200)

    def test_a_price_that_is_higher_than_the_agents_count_with(self) -> None:
        budget = BudgetStatus(price_per_hour=50.0, max_cost=200.0)
        status = Status(ClusterFacts("lab", "", "dstack", 2), Phase.READY, price_per_hour=50.1, budget=budget)
        assert price_difference(status) == ""
        said = price_difference(replace(status, price_per_hour=75.0))
        assert "lab costs $75.00/h, but its agents assume $50.00/h" in said
        assert "will stop at about $300.00 instead of $200.00" in said

    def test_nothing_is_said_of_what_costs_nothing(self, run: Run, lab: FakeLocal) -> None:
        done = run("status", "lab")
        assert "cost" not in done.err
        assert json.loads(run("status", "lab", "--json").out)["cost"] is None

    def test_one_that_has_ended_by_itself_has_not_failed(self, run: Run, lab: FakeLocal) -> None:
        lab.ends_with(Outcome(Phase.DOWN, "idle for 30m", final=True, at=1.0).to_text())
        done = run("status", "lab").ended(0)
        assert done.out.split()[-1] == "down"
        assert "it stopped by itself: idle for 30m" in done.err
        run("up", "lab", "--dry-run").ended(0)


class TestCtrlC:
    """While the job runs."""

    @pytest.fixture
    def typed(self, lab: FakeLocal) -> Iterator[subprocess.Popen[str]]:
        """The command, once it has shown step 2."""
        lab.cluster.status["budget"] = {"price_per_hour": 12.3, "cost": 4.5}
        lab.cluster.on_submit = lambda submission_id: lab.cluster.write(submission_id, LOG.encode())
        words = [sys.executable, "-m", "cloudrl.cli.main", *RUN, "--submission-id", "one"]
        null = subprocess.DEVNULL
        with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=null, text=True) as process, ended(process):
            next(line for line in process.stderr or () if "step 2/2" in line)
            yield process

    def test_says_what_goes_on_and_what_it_costs(self, lab: FakeLocal, typed: subprocess.Popen[str]) -> None:
        typed.send_signal(signal.SIGINT)
        text = typed.stderr.read()
        assert typed.wait(30 * SLOWER) == 130, text
        assert "job one keeps running without this computer, and starts again by itself if a machine is lost" in text
        assert "; cluster lab keeps running and costs $12.30/h, $4.50 so far" in text
        assert "cloudrl watch ray://lab/one" in text
        assert "End it: cloudrl down lab" in text
        assert lab.cluster.jobs["one"].status == "RUNNING"

    def test_a_second_time_leaves_at_once(self, lab: FakeLocal, typed: subprocess.Popen[str]) -> None:
        """The first one asks what the cluster costs, and the answer does not come."""
        asked, over = threading.Event(), threading.Event()

        def hang(_method: str, path: str) -> None:
            if path == "/v1/status":
                asked.set()
                over.wait(30 * SLOWER)

        lab.cluster.on_request = hang
        typed.send_signal(signal.SIGINT)
        assert asked.wait(20 * SLOWER)
        typed.send_signal(signal.SIGINT)
        assert typed.wait(5 * SLOWER) == 130
        over.set()
        assert "Traceback" not in typed.stderr.read()
