"""A job and its cluster, looked at again and again until the job has ended."""

import time
from collections.abc import Callable
from contextlib import suppress

from cloudrl.errors import CloudrlError, ConnectionFailed
from cloudrl.jobs import Ended, JobHandle, Line, Progress, Starting, Step
from cloudrl.jobs.history import earlier_steps
from cloudrl.jobs.look import JobRecord, Price
from cloudrl.jobs.pools import node_pools
from cloudrl.protocol.report import ClusterStatus
from cloudrl.sdk.callbacks import Notice, OnProgress, Update, silent
from cloudrl.sdk.costs import prices
from cloudrl.sdk.debugging import ask_nodes
from cloudrl.sdk.submission import follow, no_longer_following
from cloudrl.transport.ray_job import RayJob

_LOOK_S, _NODES_S, _PRICE_S = 1.0, 5.0, 60.0
"""How often somebody is shown something, nodes are asked, and the provider, debuggers and Ray's actors are."""


def watch(
    job: JobHandle,
    *,
    on_progress: OnProgress = silent,
    every_s: float = _LOOK_S,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> Progress | None:
    """Follow a job to its end; returns where it stood last.

    Args:
        job: the job.
        on_progress: receives every event, and a `Look` at most every `every_s` seconds.
        every_s: seconds between two looks; those between two looks at nodes are five at least.
        clock: seconds that never run backwards.
        now: seconds since the epoch.

    Raises:
        JobFailed: it failed or was stopped.
        Interrupted: Ctrl-C; the job goes on.
        ConnectionFailed: the cluster no longer answers; the job goes on.
    """
    try:
        watching = _Watching(job, on_progress, every_s, clock, now)
    except KeyboardInterrupt:
        raise no_longer_following(job) from None
    return follow(  # without warnings: those of its looks are more
        job, on_progress=watching.add, on_silence=watching.add_status, warns=False
    )


class _Watching:
    """Passes events on; with each of them, and while the log is silent, looks at job and cluster if it is time."""

    def __init__(
        self,
        job: JobHandle,
        on_progress: OnProgress,
        every_s: float,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._job, self._on_progress, self._every_s, self._clock, self._now = job, on_progress, every_s, clock, now
        self._look_at = self._nodes_at = self._price_at = clock()
        self._record, self._knows_history = JobRecord(job.url), False
        with suppress(ConnectionFailed):  # `follow` meets it again, and waits until somebody answers
            self._record.add_status(job.status())
            self._look()
            self._record.add_steps(earlier_steps(job))

    def add(self, update: Update) -> None:
        """One event of the job, or why none comes."""
        if isinstance(update, Notice):
            self._record.notice = update.text
        elif isinstance(update, (Line, Starting, Step, Progress, Ended)):
            self._record.add_event(update)
        if isinstance(update, Ended):
            self._look_at = self._clock()
        self._look()
        self._on_progress(update)

    def add_status(self, job: RayJob) -> None:
        """What Ray says of the job, whenever its log is silent."""
        self._record.add_status(job)
        self._look()

    def _look(self) -> None:
        if self._clock() < self._look_at:
            return
        if self._clock() >= self._nodes_at:
            with suppress(CloudrlError):  # what does not answer is asked again
                self._ask_agent()
            self._nodes_at = self._clock() + _NODES_S
        self._on_progress(self._record.look(self._now()))
        self._look_at = self._clock() + self._every_s

    def _ask_agent(self) -> None:
        agent = self._job.connection.agent(timeout_s=_NODES_S)
        if agent is None:
            return
        status = agent.status()
        self._record.add_nodes(status.nodes)
        self._record.job = status.job
        if not self._knows_history:
            self._knows_history = True
            with suppress(CloudrlError):  # agents of an older release
                self._record.add_history(agent.usage("hour"))
        if self._clock() >= self._price_at:
            with suppress(CloudrlError):  # of a release without debuggers
                self._record.stops = ask_nodes(agent, status.nodes)
            self._record.price = self._price(status) or self._record.price
            with suppress(CloudrlError):  # Ray does not answer
                self._record.pools = node_pools(self._job.connection, self._job.status(), status.nodes)
            self._price_at = self._clock() + _PRICE_S

    def _price(self, status: ClusterStatus) -> Price | None:
        """What the cluster has cost and costs per hour now; None where it costs nothing."""
        found = prices(self._job.connection.name, status)
        return Price(*found, self._now()) if found is not None else None
