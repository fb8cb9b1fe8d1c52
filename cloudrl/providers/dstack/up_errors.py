"""What goes on when a command that starts a cluster ends early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudrl.errors import CloudrlError, ConnectionFailed, Interrupted
from cloudrl.node.budget import dollars
from cloudrl.providers.dstack import runs
from cloudrl.providers.dstack.polling import wait_for

if TYPE_CHECKING:
    from cloudrl.providers.dstack.runs import RunPlan, RunState
    from cloudrl.providers.dstack.server import Server

_APPEARS_WITHIN_S = 3.0


def interrupted(server: Server, planned: RunPlan | None, **timing: Any) -> Interrupted:
    """What to tell who has pressed Ctrl-C while a cluster was being started: what runs, what it costs, how to go on.

    Args:
        server: where.
        planned: what was going to be started; None before the server was asked.
        timing: clock and sleep of `wait_for`.
    """
    nothing = Interrupted("interrupted; nothing was started")
    if planned is None:
        return nothing
    try:
        run = _started(server, planned, _APPEARS_WITHIN_S, **timing)
    except ConnectionFailed as error:
        return Interrupted(
            f"interrupted; whether {planned.name} was started cannot be seen: {error.message}",
            hint=f"Look: cloudrl status {planned.name}\nEnd it: cloudrl down {planned.name}",
        )
    return nothing if run is None else _goes_on(run, planned)


def failed(server: Server, planned: RunPlan, error: CloudrlError, **timing: Any) -> CloudrlError:
    """The same error, and whether the cluster that was being started goes on without whoever asked for it.

    Args:
        server: where.
        planned: what was sent.
        error: what went wrong after that.
        timing: clock and sleep of `wait_for`.
    """
    name = planned.name
    try:
        run = _started(
            server, planned, _APPEARS_WITHIN_S if isinstance(error, ConnectionFailed) else 0.0, **timing
        )
    except CloudrlError:
        said, look = f"whether cluster {name} goes on cannot be seen", f"cloudrl status {name}"
    else:
        if run is None:
            return error
        said, look = f"cluster {name} goes on{_cost(run, planned)}", f"cloudrl status {name} --watch"
    hints = [*(error.hint or "").splitlines(), f"Look: {look}", f"End it: cloudrl down {name}"]
    return type(error)(f"{error.message}; {said}", hint="\n".join(hints))


class _NotStarted(CloudrlError):
    """No run has appeared."""


def _started(server: Server, planned: RunPlan, within_s: float, **timing: Any) -> RunState | None:
    """The run that this command has started, if there is one: a request that was cut off may still start it."""
    before = planned.current.id if planned.current is not None else None

    def look() -> RunState | None:
        run = runs.find(server, planned.name)
        return None if run is None or run.id == before or run.is_over else run

    try:
        return wait_for(look, lambda: _NotStarted(""), timeout_s=within_s, every_s=0.5, **timing)
    except _NotStarted:
        return None


def _goes_on(run: RunState, planned: RunPlan) -> Interrupted:
    return Interrupted(
        f"interrupted; cluster {run.name} goes on ({run.status}){_cost(run, planned)}",
        hint=f"Go on: cloudrl status {run.name} --watch\nEnd it: cloudrl down {run.name}",
    )


def _cost(run: RunState, planned: RunPlan) -> str:
    """As the end of a sentence; "" for nothing."""
    price = run.price or planned.price or 0.0
    return f" and costs about {dollars(price)}/h" if price else ""
