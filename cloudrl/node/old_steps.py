"""Rank 0 clears what a durable job's run does not need any more: older steps beyond those to keep, and older copies.

The newest step that two nodes have stays, and so does every step that a job may go on from. Both are counted from what
is seen at that moment.
"""

from __future__ import annotations

import http.client
from typing import Callable, Collection, Dict, Mapping, Optional, Sequence, Set

from cloudrl.errors import CloudrlError
from cloudrl.protocol import job_calls
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.step_copies import ClearOrder
from cloudrl.saves.clearing import plan_clearing
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.keeping import mark_kept
from cloudrl.saves.lineage import without_abandoned
from cloudrl.saves.prune import plan_prune

_FAILURES = (CloudrlError, OSError, http.client.HTTPException)


class OldSteps:
    """Removes; what a node does not do now is seen again at the next look.

    Args:
        reports: of all nodes, the newest.
        agent: the client of a node's agent, given its report.
        say: prints a line.
    """

    def __init__(
        self,
        reports: Callable[[], Sequence[NodeReport]],
        agent: Callable[[NodeReport], AgentClient],
        *,
        say: Callable[[str], object],
    ) -> None:
        self._reports, self._agent, self._say = reports, agent, say
        self._answered: Dict[str, Set[ClearOrder]] = {}

    def clear(
        self,
        jobs: Sequence[DurableJob],
        inventory: Inventory,
        addresses: Mapping[int, str],
        orders: Mapping[str, Sequence[int]],
        copying: Mapping[str, Collection[Optional[int]]],
    ) -> None:
        """Clear what each of these jobs does not need; nothing while a node is silent.

        Args:
            jobs: those that may go on, in the order of the queue.
            inventory: of all nodes.
            addresses: node -> IP address, of all nodes that may keep copies.
            orders: job -> nodes that train, as `plan_copies` has them, of those that do not take all.
            copying: run -> the steps of which copies are under way, which stay.
        """
        if inventory.silent:
            return
        for job in {job.run: job for job in jobs}.values():  # of a run the last one decides
            valid = mark_kept(without_abandoned(inventory, job), job)
            self._clear_copies(job, valid, addresses, orders.get(job.job_id, ()))
            if job.keep:
                self._prune(job, valid, copying.get(job.run, ()))

    def _clear_copies(
        self, job: DurableJob, inventory: Inventory, addresses: Mapping[int, str], order: Sequence[int]
    ) -> None:
        agents = {report.rank: self._agent(report) for report in self._reports()}
        orders = plan_clearing(inventory, job.run, world_size=job.world_size, addresses=addresses, order=order)
        # what a node's own ranks have saved stays, and is not asked for again
        self._answered[job.run] = self._answered.get(job.run, set()) & set(orders)
        for copies in orders:
            if copies.rank in agents and copies not in self._answered[job.run]:
                try:
                    job_calls.clear_copies(agents[copies.rank], copies)
                    self._answered[job.run].add(copies)
                except _FAILURES as error:
                    self._say(f"warning: copies of {copies.folder} stay on rank {copies.rank}: {error}")

    def _prune(self, job: DurableJob, inventory: Inventory, copying: Collection[Optional[int]]) -> None:
        agents = {report.rank: self._agent(report) for report in self._reports()}
        removals = plan_prune(inventory, job.keep, run=job.run).removals
        for removal in (removal for removal in removals if removal.step not in copying):
            is_removed = True
            for location in removal.locations:
                rank = location.ranks[0]
                try:
                    agents[rank].remove_step(rank, location.root, removal.path)
                except _FAILURES as error:
                    is_removed = False
                    self._say(f"warning: {removal.path} stays on rank {rank}: {error}")
            if is_removed:
                self._say(f"run {job.run}: step {removal.step} is removed, as the job keeps {job.keep}")
