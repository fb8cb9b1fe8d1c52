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


def interrupted(server: Server, planned: RunPlan | None, **timing: Any) -> CloudrlError:
    """What to tell who has pressed Ctrl-C while a cluster was being started; `planned` is None before that."""
    nothing = Interrupted("interrupted; nothing was started")
    if planned is None:
        return nothing
    error = Interrupted("interrupted")
    told = failed(server, planned, error, **timing)
    return nothing if told is error else told


def failed(server: Server, planned: RunPlan, error: CloudrlError, **timing: Any) -> CloudrlError:
    """The same error, and whether the cluster that was being started goes on without whoever asked for it.

    Args:
        server: where.
        planned: what was sent.
        error: what went wrong after that.
        timing: clock and sleep of `wait_for`.
    """
    name = planned.name
    may_appear = isinstance(
        error, ConnectionFailed | Interrupted
    )  # a request that was cut off may still start it
    try:
        run = _started(server, planned, _APPEARS_WITHIN_S if may_appear else 0.0, **timing)
    except CloudrlError as unseen:
        said, look = (
            f"whether cluster {name} goes on cannot be seen: {unseen.message}",
            f"cloudrl status {name}",
        )
    else:
        if run is None:
            return error
        price = run.price or planned.price or 0.0
        cost = f" and costs about {dollars(price)}/h" if price else ""
        said, look = f"cluster {name} goes on ({run.status}){cost}", f"cloudrl status {name} --watch"
    hints = [*(error.hint or "").splitlines(), f"Look: {look}", f"End it: cloudrl down {name}"]
    return type(error)(f"{error.message}; {said}", hint="\n".join(hints))


class _NotStarted(CloudrlError):
    """No run has appeared."""


def _started(server: Server, planned: RunPlan, within_s: float, **timing: Any) -> RunState | None:
    """The run that this command has started, if there is one."""
    before = planned.current.id if planned.current is not None else None

    def look() -> RunState | None:
        run = runs.find(server, planned.name)
        return None if run is None or run.id == before or run.is_over else run

    try:
        return wait_for(look, lambda: _NotStarted(""), timeout_s=within_s, every_s=0.5, **timing)
    except _NotStarted:
        return None
