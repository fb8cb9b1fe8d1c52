"""Network volumes: create, list and delete them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from cloudrl import spec
from cloudrl.errors import InputError, Interrupted
from cloudrl.providers.dstack import server, volumes
from cloudrl.render.volume import volume_to_dstack
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, silent, unattended


class NetworkVolume(spec.NetworkVolume):
    """A network volume as it is declared (see `cloudrl.spec.NetworkVolume` for the fields), with the verbs for it."""

    def to_dstack(self) -> str:
        """The exact YAML of the dstack volume."""
        return volume_to_dstack(self)

    def create(
        self, project: str | None = None, *, confirm: Confirm = unattended, on_progress: OnProgress = silent
    ) -> volumes.VolumeState:
        """Create it, and wait until it can be mounted.

        Raises:
            InputError: no server is configured, it refuses the volume, or the answer was no.
            CapacityError: the backend cannot make it.
            Interrupted: Ctrl-C; the volume is being made, and costs money.
        """
        where = server.connect(project)
        if not confirm(Question(f"Create volume {self.name}?")):
            raise InputError("nothing was created")
        try:
            volumes.create(where, self.to_dstack())
            state = volumes.wait(where, self.name)
        except KeyboardInterrupt:
            at = f" --project {shlex.quote(project)}" if project is not None else ""
            raise Interrupted(
                f"interrupted; volume {self.name} is still being created, and its disk costs money until you delete it",
                hint=f"Look: cloudrl volume list{at}\nDelete it: cloudrl volume delete {self.name}{at}",
            ) from None
        use = f"--volume {self.name}:/checkpoints with `cloudrl task create` or `cloudrl up`"
        on_progress(Notice(f"volume {self.name}: {state.size} in {state.backend} {state.region}", use))
        return state


def list_volumes(project: str | None = None) -> list[volumes.VolumeState]:
    """All network volumes of the dstack project."""
    return volumes.list_all(server.connect(project))


def delete_volumes(
    names: Sequence[str], project: str | None = None, *, confirm: Confirm = unattended, on_progress: OnProgress = silent
) -> None:
    """Delete network volumes and all that lies on them.

    Raises:
        InputError: there is none of a name, a run uses one, the answer was no, or nobody was there to answer.
    """
    where = server.connect(project)
    for name in names:
        volumes.get(where, name)
    if not confirm(Question(f"Delete {', '.join(names)} and everything on them?", default=None)):
        raise InputError("nothing was deleted")
    volumes.delete(where, list(names))
    on_progress(Notice(f"deleted {', '.join(names)}"))
