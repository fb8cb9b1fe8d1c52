"""What a cluster's declaration means on one machine.

The same declaration runs on dstack, so that its image, its fleets and the like are no error here: what has no effect
is named. What a job would miss, its checkpoint folder and its secrets, is kept or refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.errors import InputError
from cloudrl.spec import Volume

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.spec import Cluster

_HONOURED = (
    "name", "nodes", "gpu", "env", "secrets", "setup", "services", "data", "models", "down_when_idle", "max_cost",
    "price_per_hour",
)  # fmt: skip


def check_secrets(cluster: Cluster, shell: Mapping[str, str] = os.environ) -> None:
    """Agents on this machine have the variables of the shell that starts them.

    Raises:
        InputError: one of the cluster's secrets is not among them.
    """
    for secret in cluster.secrets:
        if not shell.get(secret):
            raise InputError(
                f"secret {secret} is not set: on this machine it comes from this shell",
                hint=f"export {secret}=...",
            )


def checkpoint_folder(cluster: Cluster) -> Path | None:
    """The folder that jobs save into: what the volume is on its host, which is this machine.

    None for the usual one in the cluster's own folder: none was declared, or it is on a network volume.
    """
    if not {"checkpoints", "volumes"} & set(cluster.explicit_fields()):
        return None
    for mount in cluster.mounts:
        if isinstance(mount, Volume) and mount.holds(cluster.checkpoints):
            return Path(mount.instance_path) / Path(cluster.checkpoints).relative_to(mount.path)
    return None


def unsupported_fields(cluster: Cluster) -> tuple[str, ...]:
    """Fields that say nothing here, where there is no container, no machine to choose and no volume of a cloud."""
    used = _HONOURED if checkpoint_folder(cluster) is None else (*_HONOURED, "checkpoints", "volumes")
    return tuple(name for name in cluster.explicit_fields() if name not in used)
