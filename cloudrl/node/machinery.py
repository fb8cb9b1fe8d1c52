"""What the supervisor of durable jobs calls: Ray, the volumes, the plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from cloudrl.durable import queue as decisions
from cloudrl.durable.verdicts import RayEnd
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.interruptions import Notices
from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.job_work import SaveNote


@dataclass(frozen=True)
class Machinery:
    """What the supervisor calls; each of these may take its time, and raise what it names.

    Attributes:
        jobs: all that Ray knows, None while it does not answer.
        submit: why Ray refuses a request, "" if it does not, None without an answer.
        stop: have Ray stop a submission.
        record: write a job to the volumes of the cluster; on how many it is then. Raises OSError where that of rank 0
            does not take it.
        plan: from which step a job can go on. Raises nothing.
        prepare: have everything in its place before an attempt starts: the package in Ray, newer steps out of the way.
            Raises OSError or CloudrlError where that may work later.
        end: what an ended attempt has left, given Ray's row. Raises nothing.
        hang: what the hang watch sees.
        saved: the last save that the trainer of a submission has told of; None before the first.
        silence_s: for how long some node has not been heard of.
        notices: rank -> its cloud's notice that it takes the machine back.
        copies: on how many volumes a record has to be, so that the loss of one machine forgets nothing.
    """

    jobs: Callable[[], Optional[Sequence[Any]]]
    submit: Callable[[Mapping[str, Any]], Optional[str]]
    stop: Callable[[str], object]
    record: Callable[[DurableJob], int]
    plan: Callable[[DurableJob], Union[decisions.Planned, decisions.PlanFailed]]
    prepare: Callable[[DurableJob], object]
    end: Callable[[DurableJob, Mapping[str, Any]], RayEnd]
    hang: Callable[[], Optional[JobState]] = lambda: None
    saved: Callable[[str], Optional[SaveNote]] = lambda _: None
    silence_s: Callable[[], float] = lambda: 0.0
    notices: Callable[[], Notices] = dict
    copies: int = 1
