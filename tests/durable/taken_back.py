"""Notices of a simulated cloud that it takes machines back: given, withdrawn, kept or not, and what must follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudrl.durable.notices import Pace, SaveWishes, near
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.interruptions import Interruption

DELAYS_TICKS = (2, 6, 6, 30, 180)
"""40 seconds to an hour."""
_LOST, _WITHDRAWN = 0.75, 0.9
_ENOUGH_TICKS = 20
"""For copies, whatever was measured of them."""
_COPIED_TICKS = 9
"""An older copy, the pause until the next order, and this copy."""


@dataclass
class _Given:
    notice: Interruption
    at: int
    lost_at: int | None
    gone_at: int


class TakenBack:
    """What the cloud says of each machine, by the machine's number.

    Args:
        world: the simulated cluster.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._given: dict[int, _Given] = {}
        self._wishes = SaveWishes()
        self._saved: dict[str, tuple[int, int]] = {}
        self._taken: set[str] = set()
        self.wish = ""

    @property
    def is_alone(self) -> bool:
        """Whether nothing else goes wrong in this world."""
        return {kind for _, kind in self._world.faults} == {"notice"}

    def notices(self) -> dict[int, Interruption]:
        """Rank -> notice, as the agents report them."""
        numbers = [machine.number for machine in self._world.nodes]
        return {numbers.index(number): given.notice for number, given in self._given.items() if number in numbers}

    def is_urgent(self) -> bool:
        now: float = self._world.now()
        return bool(near(self.notices(), now))

    def give(self) -> None:
        """Some machine gets a notice."""
        world = self._world
        number, delay = world.random.choice(world.nodes).number, world.random.choice(DELAYS_TICKS)
        fate, at = world.random.random(), world.tick
        if number not in self._given:
            notice = Interruption("AWS", "spot", world.now() + delay * world.tick_s)
            lost_at = at + delay if fate < _LOST else None
            gone_at = at + max(1, delay // 2) if fate < _WITHDRAWN else at + delay + 40
            self._given[number] = _Given(notice, at, lost_at, gone_at)

    def pass_time(self) -> None:
        """Machines whose time has come go; notices that were for nothing end."""
        for number, given in list(self._given.items()):
            if given.lost_at == self._world.tick:
                del self._given[number]
                self._lose(number, given)
            elif given.lost_at is None and self._world.tick >= given.gone_at:
                del self._given[number]

    def _lose(self, number: int, given: _Given) -> None:
        world = self._world
        numbers = [machine.number for machine in world.nodes]
        if number not in numbers:
            return  # it was lost before
        running = [job for job in world.ray.values() if job.status == "RUNNING" and job.job_id in world.scripts]
        if self.is_alone and world.supervisor is not None:
            for job in running:
                self._check_saved(job, given)
        self._taken |= {job.submission_id for job in running if world.supervisor is not None}
        world.lose_machine(numbers.index(number))

    def look(self) -> None:
        """What rank 0's agent asks trainers for."""
        world = self._world
        attempt = world.supervisor.running_attempt
        job = world.ray.get(attempt)
        copies = (0.0, 0.0)
        if job is not None and not world.is_shared:
            copies = (world.copies if world.has_copies else world.mirrors).pace(job.job_id)
        left_ticks = 0
        if job is not None and job.job_id in world.scripts:
            step_ticks = world.scripts[job.job_id].step_ticks
            left_ticks = step_ticks - job.ticks % step_ticks
        pace = Pace(left_ticks * world.tick_s, 0.0, *copies)
        self.wish = self._wishes.find(attempt, None, self.notices(), pace, world.now())

    def is_wanted(self, job: Any) -> bool:
        """Whether a trainer saves the step that it has ended."""
        return bool(self._number(job) > job.answered)

    def note_save(self, job: Any) -> None:
        if self.is_wanted(job):
            self._saved[job.submission_id] = job.step, self._world.tick
        job.answered = max(job.answered, self._number(job))

    def _number(self, job: Any) -> int:
        attempt, _, number = self.wish.partition(" ")
        return int(number) if attempt == job.submission_id else 0

    # -- what must hold -------------------------------------------------------------------------------------

    def _check_saved(self, job: Any, given: _Given) -> None:
        """What is asked in time is saved and copied in time."""
        world, step_ticks = self._world, self._world.scripts[job.job_id].step_ticks
        began = world.started_at.get(job.submission_id, world.tick)
        enough_ticks = step_ticks + (1 if world.is_shared else _ENOUGH_TICKS)
        if world.tick - max(given.at, began) > enough_ticks and job.saved_at < given.at:
            world.violate(f"N2 {job.submission_id} has saved nothing since the notice of tick {given.at}")
        step, at = self._saved.get(job.submission_id, (0, 0))
        is_safe = max(world.disks.steps_with(job.job_id, 2), default=0) >= step
        if world.has_copies and step and at + _COPIED_TICKS <= world.tick and not is_safe:
            world.violate(f"N2 step {step} of {job.job_id} was saved in time and is on one machine alone")

    def check_start(self, name: str) -> None:
        """No attempt starts that would be lost at once."""
        known = {number: given.notice for number, given in self._given.items() if given.at < self._world.tick - 1}
        if self.is_alone and near(known, self._world.now()):
            self._world.violate(f"N3 {name} starts, and a machine is about to go")

    def check_reasons(self, job: DurableJob) -> None:
        """The end of an attempt names the notice that has announced it."""
        for attempt in job.attempts:
            is_named = "takes back node" in attempt.reason
            if self.is_alone and attempt.submission_id in self._taken and not (is_named or attempt.is_open):
                self._world.violate(
                    f"N1 {attempt.submission_id} ended: {attempt.reason!r}, and a notice had come before"
                )
