"""A cluster as it is declared, with the verbs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl import spec
from cloudrl.providers.registry import ensure_name_free, provider
from cloudrl.render.dstack import to_dstack
from cloudrl.sdk.running import RunningCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.providers.model import Plan, Status


class Cluster(spec.Cluster):
    """A cluster as it is declared (see `cloudrl.spec.Cluster` for the fields), with the verbs for it."""

    def to_dstack(self) -> str:
        """The exact YAML of its dstack task."""
        return to_dstack(self)

    def plan(self, on: str = "local") -> Plan:
        """What `up` would do; `.render()` is the text that `--dry-run` prints."""
        return provider(on).plan(self)

    def up(
        self,
        on: str = "local",
        *,
        on_status: Callable[[Status], None] | None = None,
        detach: bool = True,
    ) -> RunningCluster:
        """Start it and return once it is READY.

        As a context manager the result ends the cluster when the block is left, also by an exception; otherwise
        it goes on until `down()`, also after this program.

        Args:
            on: the provider.
            on_status: called with every look at the cluster while it comes up.
            detach: let it outlive this program; otherwise it ends when this program does, even by SIGKILL, which
                only provider `local` can do.

        Raises:
            InputError: one of this name is up already, here or elsewhere, or `detach` is False on dstack.
            CapacityError: the provider cannot give what is asked for.
            ClusterFailed: it did not become ready; nothing of it is left running.
        """
        where = provider(on)
        plan = where.plan(self)
        ensure_name_free(self.name, on)
        connection = where.up(plan, on_status=on_status, detach=detach)
        return RunningCluster(connection, provider=on, owned=True)
