"""What becomes of a run's checkpoints when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudrl.node.budget import duration
from cloudrl.providers.model import CheckpointRetention

if TYPE_CHECKING:
    from cloudrl.providers.dstack.fleets import FleetState
    from cloudrl.providers.dstack.runs import RunState

_OWN_HOSTS = "remote"
"""dstack's word for the backend of SSH hosts (core/models/backends/base.py)."""


def retention(run: RunState, checkpoint_dir: str, fleet: FleetState | None) -> CheckpointRetention:
    """What becomes of a run's checkpoints when it ends; `fleet` is the one that its machines belong to."""
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
        destroyed=True, location=f"on the machines' own disks: {_until(run.fleet, fleet)}"
    )


def _mount(run: RunState, folder: str) -> Any:
    """The volume that holds a folder of the containers, None if none does."""
    for mount in run.answer.run_spec.configuration.volumes or ():
        if f"{folder.rstrip('/')}/".startswith(f"{mount.path.rstrip('/')}/"):
            return mount
    return None


def _until(name: str | None, fleet: FleetState | None) -> str:
    """When a fleet's machines are given back."""
    if name is None:
        return "they go with the machines"
    if fleet is None:  # of another project, or gone; only the words are poorer
        return f"they go with the machines of fleet {name}"
    if fleet.never_released:
        return f"they go when fleet {name} is deleted"
    return (
        f"fleet {name} gives the machines back when they were idle for {duration(fleet.idle_duration_s or 0)}"
    )
