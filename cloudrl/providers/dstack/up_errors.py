"""What goes on when a command that starts a cluster ends early."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Interrupted
from cloudrl.node.budget import dollars
from cloudrl.providers.dstack import runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.providers.dstack.runs import RunPlan, RunState
    from cloudrl.providers.dstack.server import Server

_APPEARS_WITHIN_S = 3.0


def interrupted(
    server: Server,
    planned: RunPlan | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Interrupted:
    """What to tell who has pressed Ctrl-C while a cluster was being started: what runs, what it costs, how to go on.

    Args:
        server: where.
        planned: what was going to be started; None before the server was asked.
        clock: seconds that never go back.
        sleep: between two looks; a request that was cut off may still start the run.
    """
    nothing = Interrupted("interrupted; nothing was started")
    if planned is None:
        return nothing
    deadline = clock() + _APPEARS_WITHIN_S
    while True:
        try:
            run = _started(server, planned)
        except ConnectionFailed as error:
            return Interrupted(
                f"interrupted; whether {planned.name} was started cannot be seen: {error.message}",
                hint=f"Look: cloudrl status {planned.name}\nEnd it: cloudrl down {planned.name}",
            )
        if run is not None:
            return _goes_on(run, planned)
        if clock() > deadline:
            return nothing
        sleep(0.5)


def failed(
    server: Server,
    planned: RunPlan,
    error: CloudrlError,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> CloudrlError:
    """The same error, and whether the cluster that was being started goes on without whoever asked for it.

    Args:
        server: where.
        planned: what was sent.
        error: what went wrong after that.
        clock: seconds that never go back.
        sleep: between two looks; a request that got no answer may still start the run.
    """
    deadline = clock() + (_APPEARS_WITHIN_S if isinstance(error, ConnectionFailed) else 0.0)
    name = planned.name
    while True:
        try:
            run = _started(server, planned)
        except CloudrlError:
            said, look = f"whether cluster {name} goes on cannot be seen", f"cloudrl status {name}"
            break
        if run is not None:
            said, look = f"cluster {name} goes on{_cost(run, planned)}", f"cloudrl status {name} --watch"
            break
        if clock() > deadline:
            return error
        sleep(0.5)
    hints = [*(error.hint or "").splitlines(), f"Look: {look}", f"End it: cloudrl down {name}"]
    return type(error)(f"{error.message}; {said}", hint="\n".join(hints))


def _started(server: Server, planned: RunPlan) -> RunState | None:
    """The run that this command has started, if there is one."""
    try:
        run = runs.get(server, planned.name)
    except InputError:
        return None
    was_there = planned.current is not None and planned.current.id == run.id
    return None if was_there or run.is_over else run


def _goes_on(run: RunState, planned: RunPlan) -> Interrupted:
    return Interrupted(
        f"interrupted; cluster {run.name} goes on ({run.status}){_cost(run, planned)}",
        hint=f"Go on: cloudrl status {run.name} --watch\nEnd it: cloudrl down {run.name}",
    )


def _cost(run: RunState, planned: RunPlan) -> str:
    """As the end of a sentence; "" for nothing."""
    price = run.price or planned.price or 0.0
    return f" and costs about {dollars(price)}/h" if price else ""
