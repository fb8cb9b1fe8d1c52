"""What becomes of a run's checkpoints when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudrl.errors import CloudrlError
from cloudrl.node.budget import duration
from cloudrl.providers.dstack import fleets
from cloudrl.providers.model import CheckpointRetention

if TYPE_CHECKING:
    from cloudrl.providers.dstack.runs import RunState
    from cloudrl.providers.dstack.server import Server

_OWN_HOSTS = "remote"
"""dstack's word for the backend of SSH hosts (core/models/backends/base.py)."""


def retention(server: Server, run: RunState, checkpoint_dir: str) -> CheckpointRetention:
    """What becomes of a run's checkpoints when it ends."""
    mount = _mount(run, checkpoint_dir)
    if mount is None:
        return CheckpointRetention(destroyed=True, location="in the containers, which go with the run")
    names = getattr(mount, "name", None)
    if names is not None:
        volumes = (names,) if isinstance(names, str) else tuple(names)
        return CheckpointRetention(destroyed=False, location=f"on network volume {', '.join(volumes)}")
    if run.nodes and all(node.latest.backend == _OWN_HOSTS for node in run.nodes):
        hosts = ", ".join(node.latest.hostname for node in run.nodes)
        return CheckpointRetention(
            destroyed=False, location=f"in {mount.instance_path} of your hosts {hosts}"
        )
    return CheckpointRetention(
        destroyed=True, location=f"on the machines' own disks: {_until(server, run.fleet)}"
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
    if look.never_released_reason:
        return f"they go when fleet {fleet} is deleted"
    idle = duration(look.idle_duration_s or 0)
    return f"fleet {fleet} gives the machines back when they were idle for {idle}"
