"""Runs on a dstack server: start, find, stop. A run is a cluster, a job of it is a node."""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cloudrl.errors import InputError, WaitTimeout
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.phases import Phase
from cloudrl.providers.dstack.server import NotThere, Server, wait_for
from cloudrl.render.agent import AGENT_FILE
from cloudrl.units import duration_text


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

    @property
    def agent_options(self) -> AgentOptions | None:
        """What the agents on its nodes were told; None where it is not a task with the node agent in it.

        Of node groups, which have commands of their own, the first counts: rank 0 belongs to it.
        """
        configuration = self.answer.run_spec.configuration
        groups = getattr(configuration, "groups", None) or [configuration]
        for command in (text for group in groups for text in getattr(group, "commands", None) or []):
            words = shlex.split(command) if AGENT_FILE in command else []
            at = next((n for n, word in enumerate(words) if word.endswith(AGENT_FILE)), len(words))
            if words[at + 1 : at + 2] == ["run"]:
                try:
                    return AgentOptions.from_argv(words[at + 2 :], strict=False)
                except InputError:  # its agents will say so
                    return AgentOptions()
        return None


def apply(server: Server, name: str, answer: Any) -> RunState:
    """Start what was planned; `answer` is what the server has said to the plan.

    Raises:
        InputError: the server refuses it: something has changed since the plan was made.
    """
    from dstack.api import Client

    client = Client(api_client=server.api, project_name=server.project)
    server.call(client.runs.apply_plan, answer, reserve_ports=False)
    return get(server, name)


def get(server: Server, name: str) -> RunState:
    """One look at the latest run of a name.

    Raises:
        InputError: it does not exist.
    """
    run = find(server, name)
    if run is None:
        raise InputError(
            f"project {server.project!r} has no run {name!r}", hint="Clusters: cloudrl status\nAll runs: dstack ps -a"
        )
    return run


def find(server: Server, name: str) -> RunState | None:
    """One look at the latest run of a name; None if absent."""
    try:
        return state_of(server.call(server.api.runs.get, server.project, name))
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
    return [state_of(run) for run in runs]


def end(
    server: Server,
    name: str,
    *,
    timeout_s: float = 300.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Stop a run and wait until it is over; asks again when the server has forgotten that it was to stop.

    The server may write a run's status that it has computed before over the one that a stop has set, and the run
    goes on (dstack 0.22.5, server/services/runs/__init__.py: stop_runs takes no heed of the lock of the pipeline
    whose _apply_active_result writes later).

    Raises:
        WaitTimeout: it is still there after `timeout_s`, and may cost money.
    """

    def poll() -> RunState | None:
        run = get(server, name)
        if not run.is_over and run.status != "terminating":
            server.call(server.api.runs.stop, server.project, [name], False)  # not abort: it ends in order
        return run if run.is_over else None

    if wait_for(poll, timeout_s=timeout_s, clock=clock, sleep=sleep) is None:
        raise WaitTimeout(
            f"run {name!r} is still there after {duration_text(timeout_s)}", hint=f"dstack stop --abort {name}"
        )


def state_of(run: Any) -> RunState:
    """A run of dstack's as ours."""
    return RunState(
        id=str(run.id),
        name=run.run_spec.run_name,
        status=run.status.value,
        reason=run.error or run.status_message or "",
        nodes=tuple(
            Node(job.job_spec.job_num, tuple(map(_attempt, job.job_submissions)))
            for job in sorted(run.jobs, key=lambda job: int(job.job_spec.job_num))
        ),
        cost=run.cost,
        fleet=run.fleet.name if run.fleet is not None else None,
        user=run.user,
        answer=run,
    )


def _attempt(submission: Any) -> Attempt:
    machine, ended = submission.job_provisioning_data, submission.termination_reason
    code = str(getattr(ended, "value", ended) or "")
    return Attempt(
        number=submission.submission_num,
        status=submission.status.value,
        submitted_at=submission.submitted_at.timestamp(),
        finished_at=submission.finished_at.timestamp() if submission.finished_at is not None else None,
        hostname=(machine.hostname or "") if machine is not None else "",
        price=machine.price if machine is not None else 0.0,
        reason=submission.termination_reason_message or submission.error or code.replace("_", " "),
        code=code,
        backend=machine.backend.value if machine is not None else "",
    )
