"""`cloudrl up`, `status`, `down` and `env`, as they are typed."""

import json
import time
from pathlib import Path

import pytest
from fake_local import KEY, FakeLocal
from recordings import keep, load
from typed_command import Run

from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.protocol.job_phases import Grade, Hang, JobState
from cloudrl.protocol.mirrors import MirrorStatus
from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import Usage
from cloudrl.protocol.tokens import derive
from cloudrl.protocol.usage_rows import to_row
from cloudrl.protocol.wire import to_json

pytestmark = pytest.mark.io


def test_up_shows_what_it_would_start_with_secrets_masked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    words = ("--data", "addition", "--gpu", "0", "--env", "HF_TOKEN", "--env", "NCCL_DEBUG=INFO")
    shown = run("up", "two", "--nodes", "2", *words, "--dry-run").ended(0)
    agents = [line for line in shown.out.splitlines() if not line.startswith("#")]
    assert len(agents) == 2
    for text in ("cloudrl-node.pyz run", "--data=addition", "--device=cpu", "HF_TOKEN=***", "NCCL_DEBUG=INFO"):
        assert all(text in line for line in agents)
    assert "CLOUDRL_NODE_RANK=1" in agents[1]
    assert "hf_0123456789" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--login", "me@gpu-login"], "this machine: slurm"),
        (["--on", "dstack", "--gpu", "H100:8", "--dashboard-port", "9000"], "dstack: local"),
    ],
)
def test_an_option_of_another_provider_is_named(run: Run, words: list[str], unused: str) -> None:
    assert f"note: without effect on {unused}\n" in run("up", *words, "--dry-run").ended(0).err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--dashboard-port", "99999"], 2, "99999 is not a port number"),
        (["--dashboard-port", "0"], 2, "0 is not a port number"),
        (["--dashboard-port", "-1"], 2, "-1 is not a port number"),
        (["--nodes", "0"], 2, "Cluster.nodes: 0 is not"),
        (["--nodes", "100000"], 3, "free ports are needed"),
        (["--data", "gsm9k"], 2, "gsm8k"),
        (["--on", "locale"], 2, "local"),
        (["Two"], 2, "did you mean 'two'"),
        (["--env", "NO_SUCH_NAME"], 2, "this shell has no variable 'NO_SUCH_NAME'"),
    ],
)
def test_bad_input_is_said_in_a_line(run: Run, words: list[str], code: int, said: str) -> None:
    done = run("up", *words, "--dry-run")
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_home_that_is_a_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "file"))
    run("up", "--nodes", "1").ended(2, "CLOUDRL_HOME")


def test_status_of_nothing(run: Run) -> None:
    done = run("status")
    assert (done.code, done.out) == (0, "")
    assert "cloudrl up" in done.err


def test_status_of_the_only_cluster(run: Run, lab: FakeLocal) -> None:
    done = run("status").ended(0)
    assert [line.split()[:3] for line in done.out.splitlines()[1:]] == [
        ["0", "10.0.0.1", "ready"],
        ["1", "10.0.0.2", "ready"],
    ]
    assert lab.cluster.url in done.err
    look = json.loads(run("status", "lab", "--json").out)
    assert (look["phase"], look["facts"]["nodes"]) == ("ready", 2)


def test_status_names_the_cause_of_a_job_that_has_failed(run: Run, lab: FakeLocal) -> None:
    lab.cluster.add("one", b"KeyError: 'a'\n", "FAILED")
    done = run("status", "lab")
    assert "job one failed: KeyError: 'a' (rank 0, driver)\n  → cloudrl why --cluster local/lab\n" in done.err
    lab.cluster.add("two")
    assert "failed" not in run("status", "lab").err


def test_status_warns_about_the_machines_of_a_training_as_watch_does(run: Run, lab: FakeLocal) -> None:
    """The disk fills in two hours: by the last step at the pace of the log, or not."""
    samples = [
        Usage(at, 1.0, disk_used_bytes=used, disk_total_bytes=10**12) for at, used in ((0, 0), (1800, 2 * 10**11))
    ]
    lab.cluster.usage = {"hour": {"0": [to_row(sample) for sample in samples]}}
    log = [f"step:{step} - training/global_step:{step} - timing_s/step:100.0\n" for step in range(1, 8)]
    lab.cluster.add("one", f"Total training steps: 1000\n{''.join(log)}".encode())
    assert "warning: the disk" not in run("status", "lab").err
    lab.cluster.status["job"] = to_json(JobState("one", "gen", 0.0))
    done = run("status", "lab").ended(0)
    assert "warning: the disk of rank 0 will be full in 2 h 00 min (800 GB of 1.0 TB free); the run needs" in done.err
    assert "  → Keep fewer checkpoints" in done.err
    lab.cluster.write("one", b"step:999 - training/global_step:999 - timing_s/step:100.0\n")
    assert "warning: the disk" not in run("status", "lab").err


def test_status_tells_how_far_the_mirror_of_a_run_is(run: Run, lab: FakeLocal) -> None:
    lab.cluster.add("one")
    job = DurableJob("one", "night", "", {}, 0.0, mirror="/mnt/runs", attempts=(Attempt(1, "one", "c", 0, 0.0),))
    lab.cluster.durable_jobs["one"] = job
    assert json.loads(run("jobs", "status", "one", "--json").ended(0).out)["mirror"] is None
    mirror = MirrorStatus("night", "/mnt/runs", 40, time.time() - 7200.0, 50, 100, error="disk quota exceeded")
    lab.cluster.status["mirrors"] = [to_json(mirror)]

    far = "step 40, 2 h 00 min ago; step 50 on its way, 0 B of 100 B; held up: disk quota exceeded"
    assert f"run night in /mnt/runs: {far}\n" in run("status", "lab").ended(0).err
    assert json.loads(run("status", "lab", "--json").out)["mirrors"][0]["coming"] == 50
    assert f"/mnt/runs: {far}\n" in run("jobs", "status", "one").ended(0).err
    assert json.loads(run("jobs", "status", "one", "--json").out)["mirror"]["step"] == 40


def test_what_a_hang_costs_where_the_cost_so_far_is_unknown(run: Run, lab: FakeLocal) -> None:
    lab.cluster.add("one")
    lab.cluster.status["job"] = to_json(JobState("one", "gen", 0.0, hang=Hang(Grade.STILL, 0.0, 200.0)))
    lab.cluster.status["budget"] = {"price_per_hour": 12.3}
    assert "nothing has moved for 3 min 20 s, at $12.30/h" in run("why", "--cluster", "lab").ended(0).out
    done = run("status", "lab").ended(0)
    assert "at $12.30/h" in done.err
    assert "cost: $12.30/h\n" in done.err


def test_the_cause_in_what_a_cluster_that_is_down_has_kept(run: Run, lab: FakeLocal) -> None:
    run("down", "lab").ended(0)
    keep(lab.state.checkpoints, load("raises"))
    for words in (["--cluster", "lab"], [], ["ray://lab/raises-1795431896"]):
        assert "ValueError: rank 1 has no more" in run("why", *words).out
    assert "nothing of job 'other' is kept" in run("why", "ray://lab/other").err


def test_status_of_one_that_has_failed(run: Run, lab: FakeLocal) -> None:
    lab.ends_with(Outcome(Phase.FAILED, "rank 1 was lost", final=False, at=1.0).to_text())
    for words in (["status", "lab"], ["status", "lab", "--watch"]):
        run(*words).ended(4, "rank 1 was lost")


def test_an_outcome_that_was_cut_short_is_no_traceback(run: Run, lab: FakeLocal) -> None:
    lab.ends_with('{"text": "ra')
    run("status", "lab").ended(4, "cluster 'lab' failed: all of its processes were killed")


def test_env_has_what_a_raw_ray_job_submit_needs(run: Run, lab: FakeLocal) -> None:
    done = run("env").ended(0)
    assert f"export RAY_ADDRESS={lab.cluster.url}" in done.out
    assert f"export RAY_AUTH_TOKEN={derive(KEY).ray}" in done.out


@pytest.mark.parametrize(
    ("words", "said"), [(["up", "lab"], "up already"), (["down", "nothing"], "there is no cluster 'nothing'")]
)
def test_what_is_there_and_what_is_not(run: Run, lab: FakeLocal, words: list[str], said: str) -> None:
    run(*words).ended(2, said)


def test_down_ends_the_agent(run: Run, lab: FakeLocal) -> None:
    run("down", "lab").ended(0)
    assert lab.state.checkpoints.parent.is_dir()
    assert run("status", "lab").out.split()[-1] == "down"


@pytest.mark.usefixtures("lab")
def test_what_was_ended_as_json(run: Run) -> None:
    assert json.loads(run("detach", "lab", "--json").ended(0).out) == {"name": "lab", "was_open": False}
    assert json.loads(run("down", "lab", "--json").ended(0).out) == {"name": "lab", "was_running": True}
    assert json.loads(run("down", "local/lab", "--json").ended(0).out) == {"name": "local/lab", "was_running": False}
