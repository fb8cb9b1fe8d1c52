"""`cloudrl why`, as it is typed, against the stand-in cluster."""

import json

import pytest
from fake_cluster import FakeCluster
from typed_command import Run

from cloudrl.jobs import JobHandle
from cloudrl.logs.causes import Cause, Finding
from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.wire import to_json

pytestmark = pytest.mark.io

HEAD, OTHER = "f4a49f9ed5b5d6f210.0.0.1", "f4a49f9ed5b5d6f210.0.0.2"
HOSTILE = "ValueError: \x1b]0;pwned\x07 \x1b[31m\u202edoc.exe <script>alert(1)</script>"


def task(name: str, error: str, at: int, node: str) -> dict[str, object]:
    text = f'User exception:\n  File "/job/reward.py", line 3, in compute_score\n    {name}()\n{error}'
    row = {"task_id": name, "name": name, "state": "FAILED", "error_type": "TASK_EXECUTION_EXCEPTION"}
    return {**row, "error_message": text, "end_time_ms": at, "node_id": node, "worker_pid": 7}


def test_the_first_cause(cluster: FakeCluster, run: Run):
    cluster.add("one", b"", "FAILED")
    cluster.tasks = [task("late", "KeyError: 2", 1500, HEAD), task("early", HOSTILE, 1000, OTHER)]
    code, out, err = run("why", "one")
    assert code == 0
    assert "on rank 1, early (pid 7)\nin your file /job/reward.py, line 3, in compute_score: early()\nThe reward" in out
    assert "The reward function has raised. [reward-fails]\n" in out
    assert '  File "/job/reward.py", line 3, in compute_score\n' in out
    assert "In the same second:" in err
    assert "rank 0, late (pid 7): KeyError: 2" in err
    assert "cloudrl reward test ./FILE.py" in err
    assert not set("\x1b\x07\u202e") & set(out + err)


def test_for_a_program(cluster: FakeCluster, run: Run):
    cluster.add("one", b"", "FAILED")
    cluster.tasks = [task("early", HOSTILE, 1000, OTHER)]
    code, out, _ = run("why", "--json")
    told = json.loads(out)
    assert (code, told["submission_id"], told["status"]) == (0, "one", "FAILED")
    assert told["cause"].items() >= {"rank": 1, "at": 1.0, "signature": "reward-fails", "elsewhere": []}.items()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("FAILED", "nothing says why one ended"),
        ("SUCCEEDED", "one has not failed: its status is SUCCEEDED"),
    ],
)
def test_where_there_is_no_cause(cluster: FakeCluster, run: Run, status: str, said: str):
    cluster.add("one", b"step:1\n", status)
    cluster.status["job"] = to_json(JobState("one", "step", 0.0))  # the agent has not seen the end yet
    code, out, err = run("why", "one")
    assert (code, out) == (0, "")
    assert said in err
    assert "step for" not in err
    assert json.loads(run("why", "one", "--json")[1]).items() >= {"cause": None, "job": None}.items()


def test_a_chain_of_tracebacks_that_has_lost_its_header(cluster: FakeCluster, run: Run):
    """What a job without internet prints when it asks the Hub."""
    log = (
        b"requests.exceptions.ConnectionError: no route\n\nThe above exception was the direct cause of the "
        b'following exception:\n\nTraceback (most recent call last):\n  File "/job/a.py", line 1, in f\n'
        b"OSError: We couldn't connect to 'https://huggingface.co' to load this file\n"
    )
    cluster.add("one", log, "FAILED")
    code, out, _ = run("why", "one")
    assert code == 0
    assert out.startswith("OSError: We couldn't connect to 'https://huggingface.co' to load this file\n")
    assert "[wrong-model]" in out


def test_a_search_that_took_too_long(cluster: FakeCluster, run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(JobHandle, "find_cause", lambda _: Finding(Cause("KeyError: 2"), is_complete=False))
    cluster.add("one", b"", "FAILED")
    code, out, err = run("why", "one")
    assert (code, out.splitlines()[0]) == (0, "KeyError: 2")
    assert "stopped before all logs were read" in err
    assert json.loads(run("why", "one", "--json")[1])["is_complete"] is False


def test_a_failure_that_no_signature_knows_is_shown_whole(cluster: FakeCluster, run: Run):
    log = b'Traceback (most recent call last):\n  File "/job/a.py", line 1, in f\nZeroDivisionError: division by zero\n'
    cluster.add("one", log, "FAILED")
    code, out, err = run("why", "one")
    assert code == 0
    assert "This is not a known failure" in out
    assert "in your file /job/a.py, line 1, in f\n" in out
    assert '    File "/job/a.py", line 1, in f\n' in out
    assert "hint" not in err


@pytest.mark.parametrize("status", ["RUNNING", "STOPPED"])
def test_a_job_whose_prompts_all_fail_is_told_its_cause_while_it_runs(cluster: FakeCluster, run: Run, status: str):
    """In an asynchronous mode verl replaces each for ever."""
    failing = b"ERROR:Error in _run_prompt for uid=1\nValueError: no rubric\n"
    mode = {"entrypoint": "python3 -m verl.trainer.main_ppo trainer.v1.trainer_mode=colocate_async"}
    cluster.tasks = [task("score", "ValueError: no rubric", 1000, HEAD)]
    cluster.add("fails", 25 * failing, status, **mode)
    cluster.add("recovers", 25 * failing + b"step:1 - timing_s/step:1.0\n", status, **mode)
    code, out, _ = run("why", "fails")
    assert code == 0
    assert "[reward-fails]" in out
    assert json.loads(run("why", "fails", "--json")[1])["status"] == status
    assert f"recovers has not failed: its status is {status}" in run("why", "recovers")[2]
