"""`cloudrl why` of a cluster that was never READY: no job is there to ask, and dstack alone has kept the reason."""

from __future__ import annotations

import json

import pytest
from fake_dstack import FakeDstack, attempt
from fake_dstack import run as held_run
from typed_command import Run

from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.providers.dstack.provider import DstackProvider

TOO_OLD = "rank 1, preflight: GPU 0 does not compute: RuntimeError: The NVIDIA driver on your system is too old"


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server in memory be found."""
    monkeypatch.setattr(DstackProvider, "is_configured", lambda _: True)


def end_with(dstack: FakeDstack, outcome: Outcome) -> None:
    """Let a run of one node be over whose agent has printed this."""
    ended = attempt(status="done", ended=9.0)
    dstack.held_outputs[ended.id] = f"{outcome.to_line()}\r\n"
    dstack.held_runs = [held_run(ended, status="done")]


def test_the_reason_and_its_remedy(dstack: FakeDstack, run: Run) -> None:
    end_with(dstack, Outcome(Phase.FAILED, TOO_OLD, final=True, at=1.0))
    code, out, err = run("why", "--cluster", "lab")
    assert code == 0
    assert out.startswith(f"{TOO_OLD}\non rank 1, agent\n")
    assert "The driver of the machine is older than the CUDA of its container. [driver-too-old]" in out
    assert "cloudrl up --image IMAGE" in err


def test_for_a_program(dstack: FakeDstack, run: Run) -> None:
    end_with(dstack, Outcome(Phase.FAILED, "rank 0, setup: pip has failed", final=True, at=1.0))
    told = json.loads(run("why", "--cluster", "lab", "--json")[1])
    assert (told["submission_id"], told["status"], told["cluster_is_gone"]) == ("dstack/lab", "FAILED", True)
    assert (told["cause"]["error"], told["cause"]["rank"]) == ("rank 0, setup: pip has failed", 0)


def test_a_job_of_which_nothing_is_kept_here(dstack: FakeDstack, run: Run) -> None:
    end_with(dstack, Outcome(Phase.FAILED, "rank 1 (node-1, 10.0.0.2) was lost: no heartbeat", final=True, at=1.0))
    code, out, err = run("why", "ray://lab/night-1", "--json")
    told = json.loads(out)
    assert (code, told["submission_id"], told["status"]) == (0, "night-1", None)
    assert (told["cause"]["signature"], told["cause"]["rank"]) == ("node-lost", 1)
    assert "nothing of job night-1 is kept on this machine; this is how its cluster ended:" in err


@pytest.mark.parametrize("phase", [Phase.DOWN, Phase.ENDED])
def test_a_cluster_that_ended_as_it_should_has_no_cause(dstack: FakeDstack, run: Run, phase: Phase) -> None:
    end_with(dstack, Outcome(phase, "idle for 5m", final=True, at=1.0))
    code, out, err = run("why", "--cluster", "lab")
    assert (code, out) == (2, "")
    assert "run 'lab' is over" in err
