"""A fleet as it is declared, with the verbs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl import spec
from cloudrl.render.fleet import fleet_to_dstack

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.providers.dstack.fleets import FleetPlan, FleetState


class Fleet(spec.Fleet):
    """A fleet as it is declared (see `cloudrl.spec.Fleet` for the fields), with the verbs for it."""

    def to_dstack(self) -> str:
        """The exact YAML of the dstack fleet."""
        return fleet_to_dstack(self)

    def plan(self, project: str | None = None) -> FleetPlan:
        """What `create` would do, with offers and prices; asks the dstack server.

        Raises:
            InputError: no server is configured, or it refuses the fleet.
            ConnectionFailed: it does not answer.
        """
        from cloudrl.providers.dstack import fleets, server

        return fleets.plan(server.connect(project), self.to_dstack())

    def create(
        self,
        project: str | None = None,
        *,
        replace: bool = False,
        on_look: Callable[[FleetState], None] = lambda _look: None,
    ) -> FleetState:
        """Create it, or change it to what is declared here, and wait for the machines that come at once.

        Args:
            project: of the dstack server; None for the default one.
            replace: delete a fleet of this name that cannot be changed in place, with its machines and their disks.
            on_look: called with every look while machines come.

        Raises:
            InputError: no server is configured, it refuses the fleet, or one would have to be replaced.
            CapacityError: there are no such machines, or one of them did not come up.
            ConnectionFailed: the server does not answer.
        """
        from cloudrl.providers.dstack import fleets, server

        where = server.connect(project)
        planned = fleets.plan(where, self.to_dstack())
        if not replace:
            fleets.refuse_replacing(planned)
        if planned.action != "nothing":
            fleets.apply(where, planned)
        return fleets.wait(where, self.name, on_look=on_look)
