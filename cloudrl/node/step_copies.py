"""Rank 0 has each step of a durable job on two machines, and each shard where its rank is going to look for it."""

from __future__ import annotations

import http.client
import time
from dataclasses import replace
from typing import Callable, Dict, Mapping, Optional, Sequence, Set, Tuple

from cloudrl.errors import CloudrlError
from cloudrl.protocol import job_calls
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.mirrors import MIRROR_RANK
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.step_copies import CopyOrder
from cloudrl.saves.copies import CopyPlan, plan_copies
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.keeping import mark_kept
from cloudrl.saves.lineage import without_abandoned
from cloudrl.units import size_text

EVERY_S = 5.0
"""Between two looks at what is on one machine alone."""
_THROTTLED = 0.5
"""Of the time of network and disk, while nothing is urgent (`step_copier`)."""
_TRIES, _TRIES_FROM_MIRROR = 3, 30
"""After as many failures a job goes on without these copies, from an older step."""
_WARN_EVERY_S = 300.0


class StepCopies:
    """Orders copies; what has come of them is seen at the next look at the nodes' disks.

    Args:
        reports: of all nodes, the newest.
        agent: the client of a node's agent, given its report.
        inventory: of all nodes.
        is_urgent: whether the cluster may end soon.
        say: prints a line.
        clock: seconds that never run backwards.

    Attributes:
        begun: run -> the step of which copies are under way; None without any.
        unreadable: (run, step) of what could not be brought from a mirror.
    """

    def __init__(
        self,
        reports: Callable[[], Sequence[NodeReport]],
        agent: Callable[[NodeReport], AgentClient],
        inventory: Callable[[], Inventory],
        *,
        is_urgent: Callable[[], bool],
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reports, self._agent, self._inventory = reports, agent, inventory
        self._is_urgent, self._say, self._clock = is_urgent, say, clock
        self._began: Dict[str, float] = {}
        self._took_s: Dict[str, float] = {}
        self._told: Dict[str, str] = {}
        self._warn_again_at: Dict[str, float] = {}
        self._failures: Dict[str, int] = {}
        self.begun: Dict[str, Optional[int]] = {}
        self.unreadable: Set[Tuple[str, int]] = set()

    def mirror(
        self, jobs: Sequence[DurableJob], addresses: Mapping[int, str], orders: Mapping[str, Sequence[int]]
    ) -> bool:
        """Order what the newest whole step of each job lacks to be safe, then those that stay for good.

        Returns whether anything is missing.

        Args:
            jobs: those that may go on.
            addresses: node -> IP address, of all nodes that may keep copies.
            orders: job -> nodes that train, as `plan_copies` has them, of those that do not take all.
        """
        inventory, is_missing = self._inventory(), False
        for job in jobs:
            begun, order = self.begun.get(job.run), orders.get(job.job_id, ())
            plan = _plan(job, inventory, addresses, order, begun)
            if plan is None or inventory.silent:
                continue
            if begun is not None and not (plan.needed or plan.spare):  # it is done; a newer one may have come meanwhile
                self._tell(f"{job.run}/{plan.step}", "")
                plan = _plan(job, inventory, addresses, order) or plan
            if not (plan.needed or plan.spare):
                plan = _plan_kept(job, inventory, addresses, order) or plan
            missing = [*plan.needed, *plan.spare]
            failed = [self.order(replace(copies, is_urgent=self._is_urgent())) for copies in missing]
            # nodes that each copy another step would never have one step between them
            self.begun[job.run] = plan.step if missing and not any(failed) else None
            is_missing = is_missing or bool(missing) or begun is not None
            pace = " with all of the network" if self._is_urgent() else ""
            copied = "" if plan.is_safe else f"{_size_text(missing)} of it are being copied{pace}"
            self._tell(f"{job.run}/{plan.step}", copied)
        return is_missing

    def bring(
        self, job: DurableJob, inventory: Inventory, addresses: Mapping[int, str], order: Sequence[int] = ()
    ) -> str:
        """Have every rank find its shards of the newest whole step where it is going to run.

        Args:
            job: that is going to run.
            inventory: of all nodes.
            addresses: node -> IP address, of all nodes that may keep copies.
            order: see `plan_copies`.

        Returns:
            What is waited for; "" if nothing is missing, or if that could not be brought.
        """
        plan = _plan(job, inventory, addresses, order)
        if plan is None or not plan.needed or inventory.silent:
            return ""
        step = f"{job.run}/{plan.step}"
        needed = [replace(order, is_urgent=True, address=job.mirror) for order in plan.needed]
        failed = [error for order in needed if (error := self.order(order))]
        self._failures[step] = self._failures.get(step, 0) + bool(failed)
        is_mirrored = any(order.source == MIRROR_RANK for order in plan.needed)
        if self._failures[step] > (_TRIES_FROM_MIRROR if is_mirrored else _TRIES):
            if not is_mirrored:
                return ""
            self.unreadable.add((job.run, plan.step))
            return f"step {plan.step} cannot be brought from the mirror: {failed[0] if failed else 'it has failed'}"
        ranks = ranks_text(sorted({order.rank for order in plan.needed}), "node")
        return f"{_size_text(plan.needed)} of step {plan.step} are copied to {ranks}" + (
            f": {failed[0]}" if failed else ""
        )

    def order(self, order: CopyOrder) -> str:
        """Send one to its node; returns why the one before for this step failed, or this cannot be sent."""
        reports = {report.rank: report for report in self._reports()}
        source, target = reports.get(order.source), reports.get(order.rank)
        if target is None or (source is None and order.source != MIRROR_RANK):
            return "a node is gone"
        if source is not None:
            order = replace(order, address=f"{source.ip}:{source.agent_port}")
        try:
            error = job_calls.order_copies(self._agent(target), order).error
        except (CloudrlError, OSError, http.client.HTTPException) as failure:
            error = str(failure)
        key = f"{order.rank} {order.folder}"
        if error and self._clock() >= self._warn_again_at.get(key, 0.0):
            self._warn_again_at[key] = self._clock() + _WARN_EVERY_S
            source_text = "the mirror" if source is None else f"rank {order.source}"
            self._say(f"warning: {order.folder} is not copied from {source_text} to rank {order.rank}: {error}")
        return error

    def pace(self, run: str) -> Tuple[float, float]:
        """Seconds until the step of a run that is being copied is safe, and of such a copy; 0 for what is not known.

        Both with all of the network: a copy that takes half of the time was measured, as a rule.
        """
        took_s, began = self._took_s.get(run, 0.0), self._began.get(run)
        return max(0.0, took_s - (self._clock() - began)) if began is not None else 0.0, took_s

    def _tell(self, step: str, missing: str) -> None:
        """One line when copies begin, and one when the step is safe; none if it was safe at the first look."""
        before, self._told[step] = self._told.get(step, ""), missing
        is_news = bool(before) != bool(missing)
        if is_news:
            run, _, number = step.rpartition("/")
            if missing:
                self._began[run] = self._clock()
            elif run in self._began:
                share = 1.0 if self._is_urgent() else _THROTTLED
                self._took_s[run] = share * (self._clock() - self._began.pop(run))
            self._say(f"run {run}: step {number}: {missing or 'two nodes have it now'}")


def _plan(
    job: DurableJob,
    inventory: Inventory,
    addresses: Mapping[int, str],
    order: Sequence[int],
    first: Optional[int] = None,
) -> Optional[CopyPlan]:
    valid = without_abandoned(inventory, job)
    return plan_copies(valid, job.run, world_size=job.world_size, addresses=addresses, order=order, first=first)


def _plan_kept(
    job: DurableJob, inventory: Inventory, addresses: Mapping[int, str], order: Sequence[int]
) -> Optional[CopyPlan]:
    """What the oldest step that stays for good lacks: newer ones came while it was to be copied."""
    valid = mark_kept(without_abandoned(inventory, job), job)
    for step in sorted({one.step for one in valid.checkpoints if one.run == job.run and one.kept}):
        plan = _plan(job, inventory, addresses, order, step)
        if plan is not None and plan.step == step and (plan.needed or plan.spare):
            return plan
    return None


def _size_text(orders: Sequence[CopyOrder]) -> str:
    return size_text(sum(order.size_bytes for order in orders))
