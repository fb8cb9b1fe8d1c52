"""What is made of a run's states, without a server: a stop that was forgotten, attempts that ended."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cloudrl.errors import InputError
from cloudrl.protocol.outcome import Outcome
from cloudrl.providers.dstack import history, runs


@dataclass
class FakeServer:
    """dstack's server as far as one run is concerned; a look takes the next status, the last one stays."""

    statuses: list[str]
    submissions: dict[int, list[Any]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    project: str = "main"

    def __post_init__(self) -> None:
        self.api = SimpleNamespace(
            runs=SimpleNamespace(get=self._get, stop=self._stop), logs=SimpleNamespace(poll=self._poll)
        )

    def call(self, function: Any, *args: Any, **options: Any) -> Any:
        return function(*args, **options)

    def _get(self, _project: str, name: str) -> Any:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        jobs = [
            SimpleNamespace(job_spec=SimpleNamespace(job_num=rank), job_submissions=each)
            for rank, each in self.submissions.items()
        ]
        return SimpleNamespace(
            id="run-1", user="me", run_spec=SimpleNamespace(run_name=name), status=SimpleNamespace(value=status),
            error=None,
            status_message="", jobs=jobs, cost=0.0, submitted_at=_Time(0.0), fleet=None,
        )  # fmt: skip

    def _stop(self, _project: str, names: list[str], _abort: bool) -> None:
        self.stops += names

    def _poll(self, _project: str, request: Any) -> Any:
        text = self.outputs.get(str(request.job_submission_id), "")
        return SimpleNamespace(logs=[SimpleNamespace(message=base64.b64encode(text.encode()))])


@dataclass(frozen=True)
class _Time:
    seconds: float

    def timestamp(self) -> float:
        return self.seconds


def submission(number: int, host: str, reason: str = "", ended: float | None = None, **more: Any) -> Any:
    machine = SimpleNamespace(hostname=host, price=0.0, backend=SimpleNamespace(value="ssh"))
    values = {
        "id": f"00000000-0000-4000-8000-{number:06d}{int(host[-2:]):06d}", "submission_num": number,
        "status": SimpleNamespace(value="failed" if ended else "running"), "submitted_at": _Time(100.0 * number),
        "finished_at": _Time(ended) if ended else None, "job_provisioning_data": machine, "exit_status": None,
        "termination_reason_message": None, "error": None, "termination_reason": reason,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **more})


def test_a_stop_that_the_server_has_forgotten_is_asked_again() -> None:
    server = FakeServer(["terminating", "terminating", "running", "terminating", "terminated"])
    assert runs.wait_over(server, "one", sleep=lambda _: None).status == "terminated"  # type: ignore[arg-type]
    assert server.stops == ["one"]


def test_a_run_that_does_not_end_is_told() -> None:
    server, now = FakeServer(["running"]), iter(range(100))
    with pytest.raises(InputError, match="still running after 5 s"):
        runs.wait_over(
            server,  # type: ignore[arg-type]
            "one",
            timeout_s=5.0,
            clock=lambda: float(next(now)),
            sleep=lambda _: None,
        )


def lost(reason_of_the_head: str = "terminated_by_server") -> FakeServer:
    """Two nodes; rank 1 was lost in the first attempt."""
    return FakeServer(
        ["running"],
        {
            0: [submission(0, "10.0.0.11", reason_of_the_head, 52.0), submission(1, "10.0.0.11")],
            1: [submission(0, "10.0.0.12", "instance_unreachable", 50.0), submission(1, "10.0.0.13")],
        },
    )


def test_attempts_that_ended() -> None:
    server = lost()
    [attempt] = history.previous_attempts(server, runs.get(server, "one"))  # type: ignore[arg-type]
    assert attempt["reason"] == "rank 1 (10.0.0.12): instance unreachable"
    assert (attempt["attempt"], attempt["submitted_at"], attempt["ended_at"]) == (1, 0.0, 52.0)
    assert [(node["rank"], node["ip"], node["detail"]) for node in attempt["nodes"]] == [
        (0, "10.0.0.11", "terminated by server"),
        (1, "10.0.0.12", "instance unreachable"),
    ]


def test_the_agents_own_words_come_first() -> None:
    server = lost("container_exited_with_error")
    words = "rank 1 (b, 10.0.0.12) was lost in phase ready: no heartbeat for 30 s"
    server.outputs[server.submissions[0][0].id] = (
        f"{Outcome('failed', words, final=False, at=1.0).to_line()}\r\n"
    )
    [attempt] = history.previous_attempts(server, runs.get(server, "one"))  # type: ignore[arg-type]
    assert attempt["reason"] == words


def test_one_attempt_has_no_past() -> None:
    server = FakeServer(["running"], {0: [submission(0, "10.0.0.11")]})
    assert history.previous_attempts(server, runs.get(server, "one")) == ()  # type: ignore[arg-type]
