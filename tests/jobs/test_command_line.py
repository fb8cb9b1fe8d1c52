"""`cloudrl submit` and `cloudrl jobs`, as they are typed, against the stand-in cluster."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from child_processes import ended
from fake_cluster import FakeCluster
from patience import SLOWER
from typed_command import Run

pytestmark = pytest.mark.io

STEP = "\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m step:{} - critic/score/mean:{} - timing_s/step:2.0\n"
LOG = "Runtime env is setting up.\n" + STEP.format(1, 0.1) + STEP.format(2, 0.2)
PATHS = [
    "data.train_files=/d/train.parquet",
    "data.val_files=/d/test.parquet",
    "actor_rollout_ref.model.path=/m",
    "trainer.default_local_dir=/c/run",
]


class TestSubmit:
    def test_follows_to_the_end(self, cluster: FakeCluster, run: Run):
        cluster.finish_jobs(LOG)
        code, out, err = run(
            "submit", "grpo-tiny", *PATHS, "--steps", "2", "trainer.save_freq=2", "--submission-id", "one"
        )
        assert code == 0
        assert "trainer.nnodes=2 trainer.n_gpus_per_node=1" in cluster.jobs["one"].body["entrypoint"]
        assert out == cluster.url.replace("http", "ray") + "/one\n"
        note, *lines = err.splitlines()
        assert note == (
            f"note: this job is not started again if a machine is lost: cluster '{cluster.url}' has no agents that "
            "could carry it through. Submit it to a cluster that `cloudrl up` started: --cluster NAME"
        )
        assert lines == [
            "before the first step: starting the job",
            "step 1/2  reward 0.100  2.0 s/step",
            "step 2/2  reward 0.200  2.0 s/step  ETA 0 s",
            "one succeeded; checkpoints are in /c/run",
            f"  → Report: cloudrl report {cluster.url.replace('http', 'ray')}/one",
        ]

    def test_a_job_that_fails(self, cluster: FakeCluster, run: Run):
        cluster.finish_jobs(LOG + "ValueError: no\n", "FAILED")
        code, out, err = run("submit", "grpo-tiny", *PATHS, "--submission-id", "one")
        assert code == 4
        assert out.endswith("/one\n")
        assert "Where it failed first, on rank 0, driver:\n  ValueError: no\n" in err
        assert "error: job one ended as FAILED: ValueError: no (rank 0, driver)" in err
        place = cluster.url.replace("http", "ray")
        assert err.endswith(f"  → More of it: cloudrl why {place}/one\n")
        code, out, _ = run("submit", "grpo-tiny", *PATHS, "--json")
        assert (code, json.loads(out)["status"]) == (4, "FAILED")

    def test_a_dry_run(self, cluster: FakeCluster, run: Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HF_TOKEN", "hf_secret_1234")
        code, out, err = run(
            "submit", "grpo-tiny", *PATHS, "--name", "mine", "--dry-run", "-e", "HF_TOKEN", "-e", "A=1", "--no-durable"
        )
        shown = yaml.safe_load(out)
        assert code == 0
        assert not cluster.jobs
        assert shown["runtime_env"]["env_vars"]["HF_TOKEN"] == "***"
        assert shown["runtime_env"]["env_vars"]["A"] == "1"
        assert "trainer.experiment_name=mine" in shown["entrypoint"]
        first, second = err.splitlines()
        assert first == "note: run 'mine' continues from the newest checkpoint in /c/run, if there is one"
        assert second.startswith("note: passed on by Ray: HF_TOKEN; Ray writes it to a log on every node")

    def test_a_dry_run_for_a_program(self, run: Run):
        code, out, _ = run("submit", "grpo-tiny", *PATHS, "--dry-run", "--json")
        assert code == 0
        assert set(json.loads(out)) == {"entrypoint", "submission_id", "runtime_env", "metadata"}

    def test_without_waiting(self, cluster: FakeCluster, run: Run):
        code, out, err = run("submit", "grpo-tiny", *PATHS, "--no-wait", "--submission-id", "one")
        assert (code, out) == (0, cluster.url.replace("http", "ray") + "/one\n")
        url = out.strip()
        assert f"cloudrl watch {url}\n" in err
        assert f"cloudrl jobs stop {url}\n" in err

    def test_a_result_for_a_program(self, cluster: FakeCluster, run: Run):
        cluster.finish_jobs(LOG)
        _, out, _ = run("submit", "grpo-tiny", *PATHS, "--json", "--submission-id", "one", "--steps", "2")
        result = json.loads(out)
        _, out, _ = run("submit", "grpo-tiny", *PATHS, "--json", "--submission-id", "two", "--no-wait")
        assert result == {
            "submission_id": "one", "url": cluster.url.replace("http", "ray") + "/one", "name": result["name"],
            "checkpoint_dir": "/c/run", "total_steps": 2, "status": "SUCCEEDED", "step": 2, "reward": 0.2,
        }  # fmt: skip
        assert json.loads(out)["submission_id"] == "two"
        assert "step" not in json.loads(out)

    def test_a_folder_goes_along(self, cluster: FakeCluster, run: Run, tmp_path: Path):
        (tmp_path / ".git").mkdir()
        (tmp_path / "train.py").write_text("")
        (tmp_path / "noise").write_bytes(os.urandom(2_000_000))
        cluster.finish_jobs(LOG)
        _, _, err = run("submit", "grpo-tiny", *PATHS, "--working-dir", str(tmp_path))
        assert "working directory: 2 files, 2.0 MB; left out: .git" in err
        assert "uploading: 2.0 MB" in err
        assert len(cluster.packages) == 1

    def test_a_recipe_of_ones_own(self, cluster: FakeCluster, run: Run, tmp_path: Path):
        recipe = tmp_path / "mine.yml"
        recipe.write_text("name: mine\noverrides: {algorithm.adv_estimator: grpo}\n")
        runtime_env = tmp_path / "env.yaml"
        runtime_env.write_text("env_vars: {B: '2'}\n")
        code, out, _ = run("submit", str(recipe), *PATHS, "--runtime-env", str(runtime_env), "--dry-run")
        assert code == 0
        assert yaml.safe_load(out)["runtime_env"]["env_vars"]["B"] == "2"


@pytest.mark.parametrize(
    ("arguments", "code", "says", "hint"),
    [
        (["submit", "grpo-tinny"], 2, "grpo-tinny", "grpo-tiny"),
        (["submit", "./missing.yml"], 2, "missing.yml", ""),
        (["submit", "grpo-tiny", "nonsense"], 2, "'nonsense' is not key=value", "trainer."),
        (["submit", "grpo-tiny", "a b=1"], 2, "is not the key of an override", "trainer."),
        (["submit", "grpo-tiny"], 2, "plain Ray cluster, which prepares nothing", "data.train_files=/"),
        (["submit", "grpo-tiny", *PATHS, "trainer.nnodes=3"], 2, "=3, but cluster", "--nodes 3"),
        (["submit", "grpo-tiny", *PATHS, "--steps", "0"], 2, "--steps 0 is less than 1", "--steps 100"),
        (["submit", "grpo-tiny", *PATHS, "--steps", "-1"], 2, "--steps -1 is less than 1", "--steps 100"),
        (["submit", "grpo-tiny", *PATHS, "--name", "a/b"], 2, "did you mean 'a-b'", "Letters"),
        (["submit", "grpo-tiny", *PATHS, "-e", "NOT_HERE"], 2, "this shell has no variable 'NOT_HERE'", "export NOT"),
        (["submit", "grpo-tiny", *PATHS, "--runtime-env", "no.yaml"], 2, "No such file", ""),
        (["submit", "grpo-tiny", *PATHS, "--working-dir", "no"], 2, "--working-dir no does not exist", ""),
        (["jobs", "status", "nope"], 2, "knows no job 'nope'", "cloudrl jobs list"),
        (["jobs", "logs", "nope"], 2, "knows no job 'nope'", "cloudrl jobs list"),
        (["jobs", "stop", "nope"], 2, "knows no job 'nope'", "cloudrl jobs list"),
        (["jobs", "status"], 2, "nothing was submitted", "cloudrl submit"),
    ],
)
def test_bad_input(run: Run, arguments: list[str], code: int, says: str, hint: str):
    got, out, err = run(*arguments)
    assert (got, out) == (code, "")
    error = err[err.index("error: ") :]
    assert says in error.split("→")[0]
    assert hint in error.partition("→")[2]


def test_nobody_there_and_a_wrong_token(cluster: FakeCluster, run: Run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, _, err = run("jobs", "list", address=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (code, "no Ray answers at" in err) == (5, True)
    cluster.token = "another"
    code, _, err = run("submit", "grpo-tiny", *PATHS)
    assert (code, "refuses the token" in err) == (5, True)


class TestJobs:
    def test_none(self, run: Run):
        assert run("jobs", "list") == (0, "", "There are no jobs.\n  → cloudrl submit grpo-tiny\n")
        assert run("jobs", "list", "--json") == (0, "[]\n", "")

    def test_list(self, cluster: FakeCluster, run: Run):
        cluster.add("one", metadata={"cloudrl_recipe": "grpo"})
        cluster.add("two", status="FAILED")
        code, out, _ = run("jobs", "list")
        assert code == 0
        rows = [line.split()[:2] for line in out.splitlines()]
        assert rows == [["id", "status"], ["one", "RUNNING"], ["two", "FAILED"]]

    def test_status_hides_secrets(self, cluster: FakeCluster, run: Run):
        cluster.add(
            "one",
            entrypoint="python3 x +a.api_key=sesame-1 note=abc-secret",
            runtime_env={"env_vars": {"HF_TOKEN": "abc-secret"}},
        )
        for arguments in (["status", "one"], ["status", "--json"], ["list", "--json"]):
            code, out, _ = run("jobs", *arguments)
            assert code == 0
            assert ("+a.api_key=***" in out) == ("--json" in arguments)
            assert "sesame" not in out
            assert "abc-secret" not in out

    def test_status_of_a_failed_job(self, cluster: FakeCluster, run: Run):
        cluster.add("one", status="FAILED")
        code, out, err = run("jobs", "status", "one")
        assert code == 4
        assert "FAILED" in out
        assert "start_time" not in out
        assert f"cloudrl why {cluster.url.replace('http', 'ray')}/one" in err

    def test_logs(self, cluster: FakeCluster, run: Run):
        cluster.add("one", LOG.encode())
        cluster.add("two", LOG.encode() + b"half")
        assert run("jobs", "logs", "one") == (0, re.sub(r"\x1b\[\d+m", "", LOG), "")
        _, out, _ = run("jobs", "logs")
        assert out.endswith("2.0\nhalf\n")

    def test_logs_followed(self, cluster: FakeCluster, run: Run):
        cluster.add("one", LOG.encode())
        cluster.end("one", "FAILED", "message")
        cluster.cuts = [30, 30]  # where the log is silent for long, the first may come after we have left
        code, out, err = run("jobs", "logs", "-f", "one")
        assert code == 4
        assert out == re.sub(r"\x1b\[\d+m", "", LOG)
        assert err.startswith("connection lost, trying again: ")
        assert "error: job one ended as FAILED: message" in err

    def test_logs_for_a_program(self, cluster: FakeCluster, run: Run):
        cluster.add("one", (LOG + "step:3 - critic/score/mean:nan - timing_s/step:1\n").encode())
        cluster.end("one")
        _, out, _ = run("jobs", "logs", "-f", "one", "--json")
        events = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
        assert [event["event"] for event in events] == ["line", "starting"] + ["line", "step", "progress"] * 3 + [
            "ended"
        ]
        assert events[4] == {
            "event": "progress", "step": 1, "total_steps": None, "reward": 0.1, "step_s": 2.0, "eta_s": None,
            "loss": None,
        }  # fmt: skip
        assert events[-1]["status"] == "SUCCEEDED"

    def test_the_url_that_submit_printed_names_the_job(self, cluster: FakeCluster, run: Run):
        cluster.add("one", b"text\n")
        cluster.add("two")
        url = cluster.url.replace("http", "ray") + "/one"
        assert run("jobs", "logs", url) == (0, "text\n", "")
        assert run("jobs", "logs", url, address="") == (0, "text\n", "")
        assert json.loads(run("jobs", "stop", url, "-y", "--json")[1])["submission_id"] == "one"

    def test_stop(self, cluster: FakeCluster, run: Run):
        cluster.add("one", metadata={"job_name": "mine", "cloudrl_checkpoints": "/c/mine"})
        code, out, err = run("jobs", "stop", "one", "-y")
        assert (code, out) == (0, "")
        assert err == "one has ended: STOPPED\ncheckpoints stay in /c/mine; resume from them with --name mine\n"
        assert run("jobs", "stop", "one", "-y") == (0, "", "one was not running: STOPPED\n")
        assert json.loads(run("jobs", "stop", "one", "--json")[1]) == {"submission_id": "one", "status": "STOPPED"}


class TestTerminal:
    COMMAND = (sys.executable, "-m", "cloudrl.cli.main")

    def start(self, cluster: FakeCluster, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [*self.COMMAND, *arguments, "--address", cluster.url]
        env = {**os.environ, "RAY_AUTH_TOKEN": str(cluster.token), "COLUMNS": "60", "TERM": "xterm"}
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, **options)

    @pytest.mark.parametrize("command", ["submit", "logs"])
    def test_ctrl_c_leaves_the_job_running(self, cluster: FakeCluster, command: str):
        cluster.on_submit = lambda submission_id: cluster.write(submission_id, LOG.encode())
        if command == "submit":
            arguments = ["submit", "grpo-tiny", *PATHS, "--submission-id", "one"]
        else:
            cluster.add("one", LOG.encode())
            arguments = ["jobs", "logs", "-f", "one"]
        with self.start(cluster, *arguments, stderr=subprocess.PIPE) as process, ended(process):
            shown = process.stderr if command == "submit" else process.stdout
            while b"step" not in shown.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)

        assert process.returncode == 130
        assert cluster.jobs["one"].status == "RUNNING"
        assert b"no longer following; job one keeps running" in err
        url = cluster.url.replace("http", "ray") + "/one"
        assert f"cloudrl {'watch' if command == 'submit' else 'jobs logs -f'} {url}".encode() in err
        assert f"cloudrl jobs stop {url}".encode() in err
        assert b"Traceback" not in err

    def test_one_line_that_is_rewritten(self, cluster: FakeCluster):
        cluster.finish_jobs("loading \x1b[1ma very long line " + "x" * 200 + "\n" + LOG)
        ours, theirs = pty.openpty()
        words = ("submit", "grpo-tiny", *PATHS, "--submission-id", "one", "--steps", "20", "--no-durable")
        with self.start(cluster, *words, stderr=theirs) as process, ended(process):
            os.close(theirs)
            shown = b""
            try:
                while chunk := os.read(ours, 4096):
                    shown += chunk
            except OSError:  # the other end is closed
                pass
            assert process.wait(20 * SLOWER) == 0
        os.close(ours)

        shown_once = shown.decode().split("\r\x1b[K")[1:]
        rewritten = [text for text in shown_once if text and not text.startswith("checking and sending")]
        assert rewritten[0].startswith("waiting for the first step: loading a very long")
        assert all(len(text.splitlines()[0]) < 60 for text in rewritten)
        assert rewritten[-1].splitlines()[0].startswith("step 2/20  reward 0.200  2.0 s/step  ETA 36 s")
        assert "one succeeded; checkpoints are in /c/run" in rewritten[-1]
