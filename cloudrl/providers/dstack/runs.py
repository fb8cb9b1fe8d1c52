"""Runs on a dstack server: plan, start, look, stop. A run is a cluster, a job of it is a node."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cloudrl.errors import InputError
from cloudrl.protocol.phases import Phase
from cloudrl.providers.dstack.fleets import offers_of
from cloudrl.providers.dstack.polling import wait_for
from cloudrl.providers.dstack.server import NotThere, parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cloudrl.providers.dstack.server import Server
    from cloudrl.providers.model import Offer


@dataclass(frozen=True)
class Attempt:
    """One submission of one node by dstack. Times are seconds since the epoch.

    Attributes:
        number: 0 for the first; dstack counts up with each resubmission of the run.
        status: dstack's word: submitted, provisioning, pulling, running, terminating, done, failed, ...
        reason: why it ended, in dstack's words.
        price: US dollars an hour of its machine.
        code: why it ended, as dstack's word: creating_container_error, log_quota_exceeded, ...
        backend: whose machine it is; "remote" for SSH hosts.
    """

    number: int
    status: str
    submitted_at: float
    finished_at: float | None
    hostname: str
    price: float
    reason: str
    code: str = ""
    backend: str = ""


@dataclass(frozen=True)
class Node:
    """One rank and its attempts, the latest last."""

    rank: int
    attempts: tuple[Attempt, ...]

    @property
    def latest(self) -> Attempt:
        """What it is now."""
        return self.attempts[-1]


@dataclass(frozen=True)
class RunState:
    """One look at a run.

    Attributes:
        id: dstack's, new for each apply, the same over resubmissions.
        status: pending, submitted, provisioning, running, terminating, terminated, failed or done.
        reason: why it is where it is, in dstack's words.
        cost: US dollars so far, as dstack counts them.
        user: whose it is.
    """

    id: str
    name: str
    status: str
    reason: str
    nodes: tuple[Node, ...]
    cost: float
    fleet: str | None
    user: str = ""
    answer: Any = field(default=None, repr=False, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""
        return Phase(self.status).is_terminal

    @property
    def price(self) -> float:
        """US dollars an hour for the machines that it has now."""
        return sum(node.latest.price for node in self.nodes if node.latest.finished_at is None)

    @property
    def attempt(self) -> int:
        """How many times dstack has resubmitted it."""
        return max((node.latest.number for node in self.nodes), default=0)


@dataclass(frozen=True)
class RunPlan:
    """What starting a cluster would do, as the server says. Prices are in US dollars an hour.

    Attributes:
        text: the YAML that is sent.
        offers: for one node, cheapest first.
        nodes: how many such machines.
        current: the run of that name, if there is one, over or not.
    """

    text: str
    name: str
    nodes: int
    offers: tuple[Offer, ...]
    total_offers: int
    current: RunState | None = None
    answer: Any = field(default=None, repr=False)

    @property
    def price(self) -> float | None:
        """Of all nodes together at the cheapest offer; None where there is none."""
        return self.nodes * self.offers[0].price if self.offers else None

    def with_text(self, text: str) -> RunPlan:
        """The same for a YAML that differs in its commands alone, which no offer depends on; nobody is asked again."""
        self.answer.run_spec.configuration = parse(text)
        return replace(self, text=text)


def plan(server: Server, text: str, folder: Path) -> RunPlan:
    """Ask the server what starting this task would do; `files` are uploaded, nothing is started.

    Args:
        server: where.
        text: YAML of a dstack task.
        folder: what the task's relative `files` are in.

    Raises:
        InputError: the server refuses the task.
        ConnectionFailed: it does not answer.
    """
    from dstack.api import Client

    configuration = parse(text)
    client = Client(api_client=server.api, project_name=server.project)
    path = str(folder / f"{configuration.name}.dstack.yml")  # only its folder counts; the file need not exist
    answer = server.call(client.runs.get_run_plan, configuration, configuration_path=path)
    job = answer.job_plans[0]
    return RunPlan(
        text=text,
        name=configuration.name,
        nodes=configuration.nodes or 1,
        offers=offers_of(job.offers),
        total_offers=job.total_offers,
        current=_state(answer.current_resource) if answer.current_resource is not None else None,
        answer=answer,
    )


def apply(server: Server, planned: RunPlan) -> RunState:
    """Start what was planned.

    Raises:
        InputError: the server refuses it: something has changed since the plan was made.
    """
    from dstack.api import Client

    client = Client(api_client=server.api, project_name=server.project)
    server.call(client.runs.apply_plan, planned.answer, reserve_ports=False)
    return get(server, planned.name)


def get(server: Server, name: str) -> RunState:
    """One look at the latest run of a name.

    Raises:
        InputError: there is none.
    """
    run = find(server, name)
    if run is None:
        raise InputError(
            f"project {server.project!r} has no run {name!r}", hint="cloudrl status, or dstack ps -a"
        )
    return run


def find(server: Server, name: str) -> RunState | None:
    """One look at the latest run of a name; None where there is none."""
    try:
        return _state(server.call(server.api.runs.get, server.project, name))
    except NotThere:
        return None


def present_user(server: Server) -> str:
    """The name of the user whose token is sent."""
    return str(server.call(server.api.users.get_my_user).username)


def list_active(server: Server, user: str) -> list[RunState]:
    """Runs of a user that are going on, the latest first."""
    runs = server.call(
        server.api.runs.list, server.project, None, username=user, only_active=True, job_submissions_limit=1
    )
    return [_state(each) for each in runs]


def stop(server: Server, name: str) -> None:
    """Ask a run to end. Returns at once."""
    server.call(server.api.runs.stop, server.project, [name], False)  # not abort: its processes end in order


def wait_over(
    server: Server,
    name: str,
    *,
    timeout_s: float = 300.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RunState:
    """Wait until a run that was stopped is over; asks again when the server has forgotten that it was.

    The server may write a run's status that it has computed before over the one that `stop` has set, and the run
    goes on (dstack 0.22.5, server/services/runs/__init__.py: stop_runs takes no heed of the lock of the pipeline
    whose _apply_active_result writes later).

    Raises:
        InputError: it is still there after `timeout_s`.
    """

    def look() -> RunState | None:
        run = get(server, name)
        if not run.is_over and run.status != "terminating":
            stop(server, name)
        return run if run.is_over else None

    late = InputError(
        f"run {name!r} is still there after {timeout_s:.0f} s", hint=f"dstack stop --abort {name}"
    )
    return wait_for(look, lambda: late, timeout_s=timeout_s, clock=clock, sleep=sleep)


def _state(run: Any) -> RunState:
    fleet = run.fleet.name if run.fleet is not None else None
    return RunState(
        id=str(run.id),
        name=run.run_spec.run_name,
        status=run.status.value,
        reason=run.error or run.status_message or "",
        nodes=tuple(_node(job) for job in sorted(run.jobs, key=lambda job: int(job.job_spec.job_num))),
        cost=run.cost,
        fleet=fleet,
        user=run.user,
        answer=run,
    )


def _node(job: Any) -> Node:
    return Node(job.job_spec.job_num, tuple(_attempt(each) for each in job.job_submissions))


def _attempt(submission: Any) -> Attempt:
    machine = submission.job_provisioning_data
    return Attempt(
        number=submission.submission_num,
        status=submission.status.value,
        submitted_at=submission.submitted_at.timestamp(),
        finished_at=submission.finished_at.timestamp() if submission.finished_at is not None else None,
        hostname=(machine.hostname or "") if machine is not None else "",
        price=machine.price if machine is not None else 0.0,
        reason=submission.termination_reason_message
        or submission.error
        or _code(submission).replace("_", " "),
        code=_code(submission),
        backend=machine.backend.value if machine is not None else "",
    )


def _code(submission: Any) -> str:
    reason = submission.termination_reason
    return str(getattr(reason, "value", reason) or "")
