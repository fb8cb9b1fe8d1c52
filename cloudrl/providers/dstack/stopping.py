"""What goes on, and what is lost, when a command or a cluster ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Interrupted
from cloudrl.node.money import dollars, duration
from cloudrl.providers.dstack import fleets, runs
from cloudrl.providers.model import Keeping

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.providers.dstack.runs import RunPlan, RunState
    from cloudrl.providers.dstack.server import Server

_APPEARS_WITHIN_S = 3.0
_OWN_HOSTS = "remote"
"""dstack's word for the backend of SSH hosts (core/models/backends/base.py)."""


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


def keeping(server: Server, run: RunState, checkpoint_dir: str) -> Keeping:
    """What becomes of a run's checkpoints when it ends."""
    mount = _mount(run, checkpoint_dir)
    if mount is None:
        return Keeping(lost=True, where="in the containers, which go with the run")
    names = getattr(mount, "name", None)
    if names is not None:
        volumes = (names,) if isinstance(names, str) else tuple(names)
        return Keeping(lost=False, where=f"on network volume {', '.join(volumes)}", volumes=volumes)
    if run.nodes and all(node.latest.backend == _OWN_HOSTS for node in run.nodes):
        hosts = ", ".join(node.latest.hostname for node in run.nodes)
        return Keeping(lost=False, where=f"in {mount.instance_path} of your hosts {hosts}", fleet=run.fleet)
    return Keeping(
        lost=True, where=f"on the machines' own disks: {_until(server, run.fleet)}", fleet=run.fleet
    )


def _mount(run: RunState, folder: str) -> Any:
    """The volume that holds a folder of the containers, None if none does."""
    for mount in run.answer.run_spec.configuration.volumes or ():
        if f"{folder.rstrip('/')}/".startswith(f"{mount.path.rstrip('/')}/"):
            return mount
    return None


def _until(server: Server, fleet: str | None) -> str:
    """When a fleet's machines are given back."""
    if fleet is None:
        return "they go with the machines"
    try:
        look = fleets.get(server, fleet)
    except CloudrlError:  # of another project, or gone; only the words are poorer
        return f"they go with the machines of fleet {fleet}"
    if look.why_kept:
        return f"they go when fleet {fleet} is deleted"
    idle = duration(look.idle_duration_s or 0)
    return f"fleet {fleet} gives the machines back when they were idle for {idle}"
