"""What is made of a run's states, without a server: a stop that was forgotten, attempts that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake_dstack import attempt, run, submission_id

from cloudrl.errors import InputError
from cloudrl.protocol import outcome
from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.providers.dstack import diagnostics, runs

if TYPE_CHECKING:
    from fake_clock import Clock
    from fake_dstack import FakeDstack


class Statuses:
    """A run whose status is another one at each look; the last one stays."""

    def __init__(self, dstack: FakeDstack, *statuses: str) -> None:
        self.left, self.stops = list(statuses), 0
        dstack.runs.get = lambda *_: run(status=self.left.pop(0) if len(self.left) > 1 else self.left[0])
        dstack.runs.stop = self._stop

    def _stop(self, *_: Any) -> None:
        self.stops += 1


def test_a_stop_that_the_server_has_forgotten_is_asked_again(dstack: FakeDstack, clock: Clock) -> None:
    there = Statuses(dstack, "terminating", "terminating", "running", "terminating", "terminated")
    runs.end(dstack.server, "one", sleep=clock.sleep)
    assert (there.stops, there.left) == (1, ["terminated"])


def test_a_run_that_does_not_end_is_told(dstack: FakeDstack, clock: Clock) -> None:
    Statuses(dstack, "running")
    with pytest.raises(InputError, match="still there after 5 s"):
        runs.end(dstack.server, "one", timeout_s=5.0, clock=clock, sleep=clock.sleep)


def lost(dstack: FakeDstack, reason_of_the_head: str = "terminated_by_server") -> runs.RunState:
    """Two nodes; rank 1 was lost in the first attempt."""
    head, worker, another = "10.0.0.11", "10.0.0.12", "10.0.0.13"
    dstack.held_runs = [
        run(
            attempt(0, host=head, status="failed", code=reason_of_the_head, ended=52.0),
            attempt(1, host=head),
            others=[
                attempt(0, host=worker, status="failed", code="instance_unreachable", ended=50.0),
                attempt(1, host=another),
            ],
        )
    ]
    return runs.get(dstack.server, "lab")


def test_attempts_that_ended(dstack: FakeDstack) -> None:
    [before] = diagnostics.previous_attempts(dstack.server, lost(dstack))
    assert before["reason"] == "rank 1 (10.0.0.12): instance unreachable"
    assert (before["attempt"], before["submitted_at"], before["ended_at"]) == (1, 0.0, 52.0)
    assert [(node["rank"], node["ip"], node["detail"]) for node in before["nodes"]] == [
        (0, "10.0.0.11", "terminated by server"),
        (1, "10.0.0.12", "instance unreachable"),
    ]


def test_the_agents_own_words_come_first(dstack: FakeDstack) -> None:
    seen = lost(dstack, "container_exited_with_error")
    words = "rank 1 (b, 10.0.0.12) was lost in phase ready: no heartbeat for 30 s"
    line = Outcome(Phase.FAILED, words, final=False, at=1.0).to_line()
    dstack.held_outputs[submission_id(0, "10.0.0.11")] = f"{line}\r\n"
    [before] = diagnostics.previous_attempts(dstack.server, seen)
    assert before["reason"] == words


def test_one_attempt_has_no_past(dstack: FakeDstack) -> None:
    dstack.held_runs = [run()]
    assert diagnostics.previous_attempts(dstack.server, runs.get(dstack.server, "lab")) == ()


DOWN = Outcome(Phase.DOWN, "idle for 30m", final=True, at=1.0)
FINAL = Outcome(Phase.FAILED, "rank 1, setup: no", final=True, at=1.0)
PASSING = Outcome(Phase.FAILED, "rank 0 was lost", final=False, at=1.0)


@pytest.mark.parametrize(
    ("status", "outputs", "said"),
    [
        ("done", (FINAL.to_line(), DOWN.to_line()), (Phase.DOWN, DOWN.reason)),
        ("done", (PASSING.to_line(), FINAL.to_line()), (Phase.FAILED, FINAL.reason)),
        ("terminated", ("READY", ""), (Phase.DOWN, "")),
        ("failed", ("", "x\nno module named y"), (Phase.FAILED, "rank 0: out of memory")),
        (
            "failed",
            ("no module named y\n", ""),
            (Phase.FAILED, "rank 0: out of memory; its last line: no module named y"),
        ),
    ],
)
def test_how_a_run_has_ended(
    dstack: FakeDstack, status: str, outputs: tuple[str, str], said: tuple[Phase, str]
) -> None:
    hosts = ("10.0.0.11", "10.0.0.12")
    head, worker = (attempt(host=host, status="failed", said="out of memory", ended=5.0) for host in hosts)
    dstack.held_runs = [run(head, others=[worker], status=status)]
    dstack.held_outputs = {submission_id(0, host): text for host, text in zip(hosts, outputs, strict=True)}
    assert diagnostics.exit_reason(dstack.server, runs.get(dstack.server, "lab")) == said


@pytest.mark.parametrize(
    ("command", "checkpoints"),
    [
        (
            "exec python3 /opt/cloudrl/cloudrl-node.pyz run \\\n  --device gpu \\\n  --checkpoints '/a b'",
            "/a b",
        ),
        ("exec python3 /opt/cloudrl/cloudrl-node.pyz run --checkpoints=/vol --of-a-later-release 5", "/vol"),
        ("exec python3 /opt/cloudrl/cloudrl-node.pyz run --gpus-per-node none", "/checkpoints"),
        ("python3 /opt/cloudrl/cloudrl-node.pyz data addition", None),
        ("python3 serve.py", None),
    ],
)
def test_what_the_nodes_of_a_run_were_told(dstack: FakeDstack, command: str, checkpoints: str | None) -> None:
    dstack.held_runs = [run()]
    dstack.held_runs[0].run_spec.configuration.commands = ["pip list", command]
    options = runs.get(dstack.server, "lab").agent_options
    assert (options and str(options.checkpoints)) == checkpoints


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"phase": "failed"}', '{"phase": 1, "reason": "x", "at": "y"}']
)
def test_an_outcome_that_was_cut_short_is_none(text: str) -> None:
    assert outcome.from_text(text) is None
    assert outcome.from_output(f"READY\nCLOUDRL OUTCOME {text}\n") is None
