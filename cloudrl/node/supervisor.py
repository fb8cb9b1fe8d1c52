"""Rank 0 carries jobs through: it hands their attempts to Ray, sees them end, and does what `cloudrl.durable` decides.

All that it decides is in `durable.queue.step`. Here are the thread, the calls and the order: what is to be done first
is done before what comes after it, and is tried again until it can be done. So Ray is asked for nothing that is not on
a volume, and a full disk keeps a job waiting instead of losing it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from dataclasses import replace
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set

from cloudrl.durable import queue as decisions
from cloudrl.durable.hangs import find_hang
from cloudrl.durable.notices import Noticed
from cloudrl.durable.progress import Saved, Stepped
from cloudrl.durable.queue import Action, Event, Queue
from cloudrl.durable.request import JOB_KEY, request_of_attempt
from cloudrl.errors import CloudrlError
from cloudrl.node.background import repeat
from cloudrl.node.machinery import Machinery
from cloudrl.protocol.durable_jobs import DurableJob, Outcome, Result
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.job_phases import Grade

_EVERY_S = 1.0
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_TAKEN_WITHIN_S = 120.0
"""Without an answer to a submission; meanwhile it is sent again, as Ray takes an id only once."""
_GONE_ROUNDS = 3
"""So many answers of Ray without an attempt, one after the other, mean that it is gone."""
_LAST_WORD_S = 60.0
"""After its end a trainer's last save is still heard of: nodes look at their processes every few seconds."""
_LOSS_SHOWS_S = 2.0
"""From the end of a job that failed with its node until the agents have seen that something is lost."""
_WARN_EVERY_S, _RECORD_AGAIN_S = 300.0, 30.0


class Supervisor:
    """The queue of a cluster, and the thread that carries it.

    Args:
        cluster: the id of this start of the cluster.
        cluster_run: that of the cluster's run.
        machinery: what it calls.
        say: prints a line.
        now: seconds since the epoch.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        cluster: str,
        cluster_run: str,
        machinery: Machinery,
        *,
        say: Callable[[str], object] = lambda _: None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster_run = cluster_run
        self._machinery, self._say, self._now, self._clock = machinery, say, now, clock
        self._lock, self._has_news = threading.Lock(), threading.Event()
        self._queue = Queue(cluster)
        self._events: Deque[Event] = deque()
        self._to_do: Deque[Action] = deque()
        self._sent_at: Dict[str, float] = {}
        self._missing: Dict[str, int] = {}
        self._failed_at: Dict[str, float] = {}
        self._thin: Set[str] = set()
        self._proven_at: Optional[float] = None
        self._told_at = self._record_again_at = float("-inf")
        self.is_ready, self.refusal = False, ""

    # -- for other threads ----------------------------------------------------------------------------------

    def restore(self, records: Sequence[DurableJob]) -> None:
        """Take up what the volumes remember; before the first look.

        What too few of them remember is written again, also the end of a job: nodes may have been replaced.
        """
        with self._lock:
            self._queue, actions = decisions.restore(
                records, cluster=self._queue.cluster, cluster_run=self.cluster_run, now=self._now()
            )
            self._to_do.extend(actions)
            copies = Counter(record.job_id for record in records if record == self._queue.jobs.get(record.job_id))
            self._thin = {job_id for job_id in self._queue.jobs if copies[job_id] < self._machinery.copies}
        self.is_ready = True

    def take(self, job: DurableJob) -> None:
        """Accept the job that the cluster is for, unless the volumes know it; before the first look.

        It is tried until Ray and the nodes answer. What is in the way after that is the `refusal`.
        """
        ends_at = self._clock() + _TAKEN_WITHIN_S
        while self._queue.of(job.job_id) is None:
            try:
                self.accept(job)
            except (OSError, ApiError) as error:
                if self._clock() > ends_at:
                    self.refusal = str(error)
                    return
                time.sleep(_EVERY_S)

    def start(self) -> None:
        """Look until the process ends."""
        repeat(self.look, _EVERY_S, self._pause)

    def _pause(self, seconds: float) -> None:
        """A job that comes meanwhile is looked at at once."""
        self._has_news.wait(seconds)
        self._has_news.clear()

    @property
    def jobs(self) -> List[DurableJob]:
        """All jobs, in the order of the queue, each with what its run keeps for good."""
        return self._queue.in_order

    @property
    def is_settled(self) -> bool:
        """Whether all that follows from what has happened is done and recorded."""
        return not self._to_do

    @property
    def has_work(self) -> bool:
        """Whether a job runs, waits, or is between two attempts."""
        return self._queue.has_work or bool(self._events)

    def accept(self, job: DurableJob) -> DurableJob:
        """Take a job; it is on the volumes when this returns.

        Raises:
            ApiError: CONFLICT, its id is taken, or too few nodes could write it down.
            OSError: the volume of rank 0 does not take it.
        """
        with self._lock:
            if self._queue.of(job.job_id) is not None:
                known = self._queue.jobs.get(job.job_id)
                if known is not None and known.request == job.request:
                    return known  # the answer to the first call was lost
                raise ApiError(ErrorCode.CONFLICT, f"the id {job.job_id} is taken")
            job = replace(
                job, number=decisions.next_number(self._queue), cluster_run=self.cluster_run, submitted_at=self._now()
            )
            rows = self._machinery.jobs()
            if rows is None:
                raise ApiError(ErrorCode.CONFLICT, "Ray does not answer")
            if job.job_id in _by_id(rows):
                raise ApiError(ErrorCode.CONFLICT, f"the id {job.job_id} is taken")
            copies = self._machinery.record(job)
            if copies < self._machinery.copies:
                refused = Outcome(Result.FAILED, "too few nodes could record it", self._now())
                self._machinery.record(replace(job, outcome=refused))  # no restart shall find it
                raise ApiError(ErrorCode.CONFLICT, f"only {copies} of {self._machinery.copies} nodes could record it")
            self._queue, _ = decisions.step(self._queue, decisions.Accepted(job), self._now())
        self._has_news.set()
        return job

    def stop_job(self, submission_id: str) -> bool:
        """Have a job end for good; False for one that is not known. Its end is recorded when this returns.

        Raises:
            OSError: the volume of rank 0 does not take it; the job ends as soon as it does.
        """
        with self._lock:
            job = self._queue.of(submission_id)
            if job is None:
                return False
            self._queue, actions = decisions.step(self._queue, decisions.StopAsked(submission_id), self._now())
            self._to_do.extend(actions)
            self._machinery.record(self._queue.jobs[job.job_id])  # also where an earlier call could not
        self._has_news.set()
        return True

    def note(self, event: Event) -> None:
        """Take what somebody else has seen, at the next look; returns at once."""
        self._events.append(event)

    # -- the thread -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """One round: what others asked for, what Ray says, and what follows."""
        while self._events:
            self._happen(self._events.popleft())
        if (notices := self._machinery.notices()) != self._queue.notices:
            self._happen(Noticed(notices))
        if not self._do():
            return
        with contextlib.suppress(OSError):
            self._record_again()
        rows = self._machinery.jobs()
        if rows is None:
            return  # silence proves nothing
        by_id = _by_id(rows)
        self._hear_of_saves()
        attempt = self.running_attempt
        if attempt is not None:
            self._look_at(attempt, by_id.get(attempt))
        others = self._others(by_id)
        self._happen(decisions.Tick(is_ray_free=not others))
        self._do()
        if self._events:  # a plan: its user waits for the job
            self._has_news.set()
        for name in others:
            if self._is_attempt(by_id[name]):  # it came to Ray after it had been given up
                self._machinery.stop(name)

    def _others(self, by_id: Mapping[str, Mapping[str, Any]]) -> List[str]:
        """Jobs that run beside the open attempt."""
        own = self.running_attempt
        return [name for name, row in by_id.items() if name != own and str(row.get("status")) not in _ENDED]

    def _is_attempt(self, row: Mapping[str, Any]) -> bool:
        """Whether a job of Ray's is an attempt of ours, and not another one with such an id."""
        job = self._queue.of(str(row.get("submission_id")))
        return job is not None and (row.get("metadata") or {}).get(JOB_KEY) == job.job_id

    @property
    def running_attempt(self) -> Optional[str]:
        """The submission id of the attempt that may run now."""
        running = self._queue.running
        return running.submission_id if running is not None else None

    def _look_at(self, submission_id: str, row: Optional[Mapping[str, Any]]) -> None:
        if row is None:
            self._look_for(submission_id)
            return
        self._missing.pop(submission_id, None)
        self._sent_at.pop(submission_id, None)
        if str(row.get("status")) in _ENDED:
            job = self._queue.of(submission_id)
            assert job is not None  # noqa: S101  it has the open attempt
            if str(row.get("status")) != "FAILED" or self._is_cluster_whole(submission_id):
                self._happen(decisions.Ended(submission_id, self._machinery.end(job, row)))
            return
        state = self._machinery.hang()
        if state is not None and state.submission_id == submission_id and state.step is not None:
            self._happen(Stepped(submission_id, state.step - 1))  # the step that runs has not ended
        is_proven = state is not None and state.hang is not None and state.hang.grade is Grade.PROOF
        if not is_proven:
            self._proven_at = None
        elif self._proven_at is None:
            self._proven_at = self._clock()
        proven_s = self._clock() - self._proven_at if self._proven_at is not None else 0.0
        hung = find_hang(state, submission_id, proven_s)
        if hung is not None:
            self._happen(hung)

    def _is_cluster_whole(self, submission_id: str) -> bool:
        """Whether all nodes have been heard of after an attempt failed.

        It may have failed with its node. That loss ends the cluster, and is to be seen before anybody is to blame.
        """
        failed_at = self._failed_at.setdefault(submission_id, self._clock())
        return self._clock() - self._machinery.silence_s() >= failed_at + _LOSS_SHOWS_S

    def _hear_of_saves(self) -> None:
        for job in list(self._queue.jobs.values()):
            last = job.last
            if last is None or (last.ended_at is not None and self._now() - last.ended_at > _LAST_WORD_S):
                continue
            saved = self._machinery.saved(last.submission_id)
            if saved is not None and not saved.is_async:
                self._happen(Saved(last.submission_id, saved.step))

    def _look_for(self, submission_id: str) -> None:
        """Ray answers without an attempt: it was never there, or is gone."""
        sent_at = self._sent_at.get(submission_id)
        if sent_at is not None:
            if self._clock() - sent_at > _TAKEN_WITHIN_S:
                self._sent_at.pop(submission_id)
                self._happen(decisions.Gone(submission_id, f"Ray did not take it within {_TAKEN_WITHIN_S:.0f} s"))
            return
        self._missing[submission_id] = self._missing.get(submission_id, 0) + 1
        if self._missing[submission_id] >= _GONE_ROUNDS:
            self._missing.pop(submission_id)
            self._happen(decisions.Gone(submission_id))

    def _happen(self, event: Event) -> None:
        with self._lock:
            self._queue, actions = decisions.step(self._queue, event, self._now())
            self._to_do.extend(actions)

    def _do(self) -> bool:
        """Do what is to be done, in order; False where something of it has to wait for a later round."""
        while self._to_do:
            action = self._to_do[0]
            try:
                is_done = self._perform(action)
            except (OSError, CloudrlError, ApiError) as error:
                self._warn(f"{_subject(action)} has to wait: {error}")
                return False
            except Exception as error:  # noqa: BLE001  one job that cannot be handled must not hold up the others
                self._say(f"warning: {_subject(action)} cannot be handled: {error!r}")
                self._give_up(action, repr(error))
                is_done = True
            if not is_done:
                return False
            self._to_do.popleft()
        return True

    def _give_up(self, action: Action, reason: str) -> None:
        if isinstance(action, decisions.Plan):
            self._events.append(decisions.PlanFailed(action.job.job_id, reason))
        elif isinstance(action, decisions.Submit):
            self._happen(decisions.Refused(action.job.submission_id, reason))

    def _perform(self, action: Action) -> bool:
        if isinstance(action, decisions.Say):
            self._say(action.text)
        elif isinstance(action, decisions.Record):
            self._record(action.job.job_id)
        elif isinstance(action, decisions.Plan):
            self._events.append(self._machinery.plan(action.job))
        elif isinstance(action, decisions.Stop):
            self._machinery.stop(action.submission_id)
        else:
            return self._submit(action)
        return True

    def _record(self, job_id: str) -> None:
        """Write a job down as it is now, never over a newer record; a node that could not is asked again later."""
        with self._lock:
            copies = self._machinery.record(self._queue.jobs[job_id])
        if copies < self._machinery.copies:
            self._thin.add(job_id)
        else:
            self._thin.discard(job_id)

    def _record_again(self) -> None:
        if self._thin and self._clock() >= self._record_again_at:
            self._record_again_at = self._clock() + _RECORD_AGAIN_S
            for job_id in sorted(self._thin):
                self._record(job_id)

    def _submit(self, action: decisions.Submit) -> bool:
        """Hand an attempt to Ray; False while that is not known to have worked.

        An answer may be lost, so it is sent again until Ray lists it; Ray takes an id only once.
        """
        submission_id = action.job.submission_id
        if self._queue.jobs[action.job.job_id].outcome is not None:  # it was stopped meanwhile
            if submission_id not in self._sent_at:
                self._happen(decisions.Gone(submission_id, "it was stopped before it was sent"))
            return True  # otherwise Ray tells whether it has it
        if submission_id not in self._sent_at:
            rows = self._machinery.jobs()
            if rows is None or self._others(_by_id(rows)):  # one has come since this attempt was planned
                return False
            self._machinery.prepare(action.job)
            self._sent_at[submission_id] = self._clock()
        refusal = self._machinery.submit(request_of_attempt(action.job, action.overrides, action.variables))
        return refusal == "" or self._is_settled(submission_id, refusal)

    def _is_settled(self, submission_id: str, refusal: Optional[str]) -> bool:
        """Whether a submission without a good answer was taken all the same, or is given up."""
        rows = self._machinery.jobs()
        row = _by_id(rows).get(submission_id) if rows is not None else None
        if row is not None and self._is_attempt(row):
            return True
        is_late = self._clock() - self._sent_at[submission_id] > _TAKEN_WITHIN_S
        is_taken = row is not None  # by a job of somebody else
        is_refused = refusal is not None and rows is not None and (is_taken or not refusal.startswith("5"))
        if not (is_late or is_refused):
            return False
        self._sent_at.pop(submission_id)
        if is_refused:
            self._happen(decisions.Refused(submission_id, _last_line(str(refusal))))
        else:
            self._happen(decisions.Gone(submission_id, f"Ray did not take it: {refusal or 'no answer'}"))
        return True

    def _warn(self, text: str) -> None:
        if self._clock() - self._told_at > _WARN_EVERY_S:
            self._told_at = self._clock()
            self._say(f"warning: {text}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason is given"])[-1]


def _subject(action: Action) -> str:
    job = getattr(action, "job", None)
    return f"job {job.job_id}" if job is not None else "a job"


def _by_id(rows: Sequence[Any]) -> Dict[str, Mapping[str, Any]]:
    """Ray's rows by submission id; a driver that was not submitted has none, and counts by the id of its job."""
    return {str(row.get("submission_id") or row.get("job_id")): row for row in rows if isinstance(row, Mapping)}
