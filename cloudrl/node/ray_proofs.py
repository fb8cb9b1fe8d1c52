"""What Ray's own state proves of the job that rank 0 follows: actors that are dead, resources that no node has."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

from cloudrl.hangs import ray_rows
from cloudrl.hangs.pending_actors import PendingActors, rooms
from cloudrl.node.ray import Dashboard
from cloudrl.protocol.job_phases import Blame

ASK_STILL_S = 15.0
"""So long nothing moves before Ray is asked what a job waits for."""
_WAITING_EVERY_S = 15.0
_NOTED_LATE_S = 15.0
"""So long after its end a step may be noted: its line has to reach the driver's log, which is read each 5 s."""
_MOST = 2


class RayProofs:
    """Of one job.

    Args:
        dashboard: Ray's.
        job_id: Ray's own id of the job; without one, nothing is asked.
        clock: seconds that never run backwards.
        now: seconds since the epoch.
    """

    def __init__(self, dashboard: Dashboard, job_id: str, clock: Callable[[], float], now: Callable[[], float]) -> None:
        self._dashboard, self._job_id, self._clock, self._now = dashboard, job_id, clock, now
        self._step: Optional[int] = None
        self._step_at = self._waiting_at = float("-inf")
        self._pending = PendingActors()
        self._waiting: Tuple[Blame, ...] = ()

    def note_step(self, step: Optional[int]) -> None:
        """The last step that has ended: actors that were dead by then are not what a later one waits for."""
        if step != self._step:
            self._step, self._step_at = step, self._now() - _NOTED_LATE_S

    def dead(self) -> Tuple[Blame, ...]:
        """Actors that have died since the last step ended, the first of them first."""
        actors = self._dashboard.rows("actors", self._job_id) if self._job_id else ()
        found = ray_rows.dead_actors(actors or (), self._job_id)
        ends = self._dashboard.actor_ends(found) if found else {}
        since = self._step_at if self._step is not None else float("-inf")
        known = sorted((ends.get(actor, float("-inf")), actor) for actor in found)
        return tuple(found[actor] for ended_at, actor in known if ended_at >= since)[:_MOST]

    def waiting(self) -> Tuple[Blame, ...]:
        """Placement groups and actors that have waited for their resources for too long."""
        if self._job_id and self._clock() - self._waiting_at >= _WAITING_EVERY_S:
            self._waiting_at = self._clock()
            self._waiting = self._ask()
        return self._waiting

    def forget_waiting(self) -> Tuple[Blame, ...]:
        """Something moves: whatever waits from now on has to do so for the whole time."""
        self._pending, self._waiting, self._waiting_at = PendingActors(), (), float("-inf")
        return ()

    def _ask(self) -> Tuple[Blame, ...]:
        """What Ray answers now; what it said before, where it does not answer."""
        dashboard = self._dashboard
        groups, actors = dashboard.placement_groups(), dashboard.rows("actors", self._job_id)
        nodes = dashboard.rows("nodes", None) if actors else ()
        if groups is None or actors is None or nodes is None:
            return self._waiting
        used = dashboard.used_resources() if nodes else {}
        return (
            *ray_rows.waiting_groups(groups, self._job_id, self._now()),
            *self._pending.add(actors, self._job_id, rooms(nodes, used), self._clock()),
        )
