"""Ending a cluster: what runs on it, what would be lost with it, the questions, and what stays."""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Interrupted
from cloudrl.jobs.supervised import durable_jobs
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.phases import Phase
from cloudrl.providers.model import ClusterRef, Provider, Status
from cloudrl.providers.registry import find, locate
from cloudrl.providers.registry import provider as get_provider
from cloudrl.saves.inventory import Inventory, SaveVersion
from cloudrl.saves.places import places_text
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, silent, unattended
from cloudrl.sdk.costs import current_state, with_state
from cloudrl.units import dollars_text, duration_text, size_text

_SHOWN = 20
_AWAY = Backoff(first_s=5.0, longest_s=5.0, give_up_s=300.0)
"""A server that is restarted, or a laptop that has just woken, is back within minutes."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class TeardownImpact:
    """What ends with a cluster.

    Attributes:
        status: the look at it before.
        running_jobs: those that have not ended; None if it is unknown whether some run.
        lost_with: where checkpoints are that are nowhere else and go with it, in half a sentence; None where none do.
        checkpoints: those that would be destroyed, one line each.
        sizes_bytes: of each of them; empty if they cannot be listed.
        newest: which save the newest complete one of each run among them is.
    """

    status: Status
    running_jobs: tuple[str, ...] | None
    lost_with: str | None = None
    checkpoints: tuple[str, ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    newest: frozenset[SaveVersion] = frozenset()

    def loses(self, copied: Set[SaveVersion]) -> bool:
        """Whether checkpoints would be lost that matter: a run's newest save, if it was not copied as it is now."""
        return self.lost_with is not None and not (self.newest and self.newest <= copied)

    @property
    def losses_of_others(self) -> list[str]:
        """What somebody else may lose, a sentence each; none for a cluster that is over."""
        if self.status.is_over:
            return []
        reasons = [f"it is {self.status.owner}'s"] if self.status.owner else []
        if self.running_jobs is None:
            reasons.append("it is unknown whether jobs are running on it")
        elif self.running_jobs:
            reasons.append(f"jobs are running on it: {', '.join(self.running_jobs)}")
        return reasons

    @property
    def loss_text(self) -> str:
        """What would be lost, for the question: `2 checkpoints, 5.7 MB`."""
        count = len(self.sizes_bytes)
        if not count:
            return "checkpoints that cannot be listed"
        return f"{count} checkpoint{'' if count == 1 else 's'}, {size_text(sum(self.sizes_bytes))}"

    def notices(self) -> list[Notice]:
        """The checkpoints that would be destroyed, and how to keep one; none where none would be."""
        if self.lost_with is None:
            return []
        head = f"These checkpoints exist only {self.lost_with}:"
        more = [f"  ({len(self.checkpoints) - _SHOWN} more)"] if len(self.checkpoints) > _SHOWN else []
        lines = [head, *more, *(f"  {checkpoint}" for checkpoint in self.checkpoints[-_SHOWN:])]
        first = f"Merge one first: cloudrl checkpoints merge --cluster {self.status.name} --to ./model"
        return [Notice("\n".join(lines), first)]


def assess(provider: Provider, name: str) -> TeardownImpact:
    """Look at a cluster before it is ended: its owner, its jobs, and the checkpoints on all of its nodes."""
    from cloudrl.checkpoints.sources import ClusterSource

    status = provider.status(name)
    connection, running = None, None
    with suppress(InputError, ConnectionFailed):  # it may just have gone
        connection = provider.attach(name) if status.is_ready else None
    if connection is None and not _may_have_run_jobs(status):
        return TeardownImpact(status, ())
    if connection is not None:
        with suppress(InputError, ConnectionFailed):
            jobs = connection.ray().list_jobs()
            running = tuple(job.submission_id for job in jobs if not job.status.is_terminal)
            running += tuple(
                f"{job.next_submission_id} (waiting)" for job in durable_jobs(connection) if job.is_waiting
            )
    impact = TeardownImpact(status, running)
    if status.retention is None or not status.retention.destroyed:
        return impact
    lossy = replace(impact, lost_with=status.retention.location)
    if connection is None:
        return replace(lossy, checkpoints=("they cannot be listed: the cluster cannot be reached",))
    try:
        inventory = ClusterSource(connection).inventory()
    except CloudrlError as error:
        return replace(lossy, checkpoints=(f"they cannot be listed: {error.message}",))
    if not inventory.checkpoints and not inventory.notes:
        return impact
    newest = {
        checkpoint.run: checkpoint.version
        for checkpoint in inventory.checkpoints
        if checkpoint.complete and checkpoint.role == "actor"
    }  # in order
    return replace(
        lossy,
        checkpoints=_lines(inventory),
        sizes_bytes=tuple(checkpoint.size_bytes for checkpoint in inventory.checkpoints),
        newest=frozenset(newest.values()),
    )


def teardown(provider: Provider, name: str, *, confirm: Confirm = unattended, on_progress: OnProgress = silent) -> bool:
    """End a cluster, after a question where another's work or checkpoints would be lost.

    Args:
        provider: where it lives.
        name: its name.
        confirm: answers questions.
        on_progress: receives what would be lost, what stays and what goes on to cost money.

    Returns:
        Whether something of it was running.

    Raises:
        InputError: there is nothing to end, the answer was no, or there was no terminal to ask on.
        ConnectionFailed: no answer; the message says that the cluster goes on.
        Interrupted: Ctrl-C; the message says whether it goes on, and what it costs.
    """
    with ending(provider, name):
        impact = assess(provider, name)
    with ending(provider, name, impact.status.price_per_hour):
        _ask(impact, confirm, on_progress)
        return end(provider, impact, on_progress=on_progress)


def down(name: str, *, confirm: Confirm = unattended, on_progress: OnProgress = silent) -> bool:
    """End a cluster by its name; see `teardown`."""
    ref = locate(name)
    was_running = teardown(get_provider(ref.provider), ref.name, confirm=confirm, on_progress=on_progress)
    if not was_running and "/" not in name:  # the one that was over may not be the one that was meant
        for other_provider, error in find(name).errors.items():
            other = ClusterRef(other_provider, name)
            unseen = f"{error.message}; if there is a cluster {other}, it keeps running"
            on_progress(Notice(unseen, f"When it answers: cloudrl down {other}"))
    return was_running


def _ask(impact: TeardownImpact, confirm: Confirm, on_progress: OnProgress) -> None:
    """Whether a question must be answered: not for the user's own known jobs, but for all others."""
    name, why = impact.status.name, "; ".join(impact.losses_of_others)
    is_known = impact.running_jobs is not None and not impact.status.owner
    about_jobs = Question(f"End cluster {name}? {why[:1].upper()}{why[1:]}.", default=True if is_known else None)
    refused = InputError(f"{name} is left as it is")
    if why and not confirm(about_jobs):
        raise refused
    for notice in impact.notices():
        on_progress(notice)
    about_checkpoints = Question(f"End cluster {name} and lose {impact.loss_text}?", default=None)
    if impact.lost_with is not None and not confirm(about_checkpoints):
        raise refused


def end(
    provider: Provider,
    impact: TeardownImpact,
    *,
    on_progress: OnProgress = silent,
    again: Callable[[Callable[[], bool]], bool] = lambda request: request(),
) -> bool:
    """End a cluster without a question; whether it was running."""
    name, status = impact.status.name, impact.status
    # of a request that got through, and its answer did not, the next one finds the cluster over
    was_running = again(partial(provider.down, name)) or not status.is_over
    what = "is down" if was_running else "was not running"
    for notice in (Notice(f"{name} {what}; {status.teardown_summary}"), *status.teardown_notices):
        on_progress(notice)
    return was_running


def report_state(provider: Provider, name: str, on_progress: OnProgress) -> None:
    """Say that a cluster goes on, and what it costs, or that it has ended by itself."""
    goes_on, state = current_state(provider, name)
    on_progress(Notice(f"cluster {name} {state}", f"cloudrl down {name}" if goes_on else ""))


def patient(say: Callable[[str], object]) -> Callable[[Callable[[], _T]], _T]:
    """A `retry` for the end of a cluster: the user may not be there to try again, and an hour of it is dear.

    Args:
        say: told of the first failure, and that it is tried again.
    """
    told: list[ConnectionFailed] = []

    def on_break(failure: ConnectionFailed) -> None:
        told.append(failure)
        if len(told) == 1:
            say(f"{failure.message}; trying again for {duration_text(_AWAY.give_up_s)}")

    return lambda request: retry(request, _AWAY, on_break=on_break)


@contextmanager
def ending(provider: Provider, name: str, price_per_hour: float | None = None) -> Iterator[None]:
    """For the end of a cluster, and the question before it.

    Raises:
        Interrupted: Ctrl-C.
        ConnectionFailed: no answer; the message says that the cluster goes on.
    """
    try:
        yield
    except ConnectionFailed as error:  # its status would be asked in vain
        price = f" and costs about {dollars_text(price_per_hour)}/h" if price_per_hour else ""
        hints = [*(error.hint or "").splitlines(), f"End it: cloudrl down {name}"]
        raise type(error)(f"{error.message}; cluster {name} keeps running{price}", hint="\n".join(hints)) from error
    except KeyboardInterrupt:
        stopped = Interrupted("interrupted", hint=f"Look: cloudrl status {name}")
        raise with_state(stopped, provider, name, alive="may not have ended") from None


def _lines(inventory: Inventory) -> tuple[str, ...]:
    """Run, step, role, size and where, of each checkpoint, and what nodes did not say."""
    lines = []
    for checkpoint in inventory.checkpoints:
        state = "" if checkpoint.complete else f", incomplete: {checkpoint.shortfall}"
        lines.append(
            f"{checkpoint.name}, {size_text(checkpoint.size_bytes)}, ranks {places_text(checkpoint.locations)}{state}"
        )
    return (*lines, *inventory.notes)


def _may_have_run_jobs(status: Status) -> bool:
    """Whether jobs may have run on a cluster that does not answer, and is not over; "running" is all dstack sees."""
    was_up = status.phase in (Phase.READY, Phase.RUNNING) or status.ready_at is not None
    return not status.is_over and (was_up or bool(status.previous_attempts))
