"""Ending a cluster: what runs on it, what would be lost with it, the question, and what is said afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cloudrl.cli import _checkpoint_loss, _output, _price
from cloudrl.cli._interrupts import costs, ended, ending
from cloudrl.cli._retry import retry
from cloudrl.errors import ConnectionFailed, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloudrl.providers.model import CheckpointRetention, Provider, Status
    from cloudrl.transport import Connection

    Again = Callable[[Callable[[], Any]], Any]


@dataclass(frozen=True)
class TeardownImpact:
    """What ends with a cluster.

    Attributes:
        look: the cluster.
        jobs: those that have not ended; None where some may run and nobody can say.
        whose: the user that it belongs to, "" if it is one's own.
        keeping: what becomes of its checkpoints; None where there are none.
        lines: its checkpoints, one line each.
    """

    look: Status
    jobs: Sequence[str] | None
    whose: str
    keeping: CheckpointRetention | None
    lines: Sequence[str]

    @property
    def is_lost(self) -> bool:
        """Whether checkpoints lie nowhere else."""
        return self.keeping is not None and self.keeping.destroyed

    @property
    def others(self) -> list[str]:
        """What somebody else may lose: a sentence each, none for a cluster that is over."""
        if self.look.is_over:
            return []
        whose = [f"it is {self.whose}'s"] if self.whose else []
        if self.jobs is None:
            return [*whose, "whether jobs run on it cannot be seen"]
        return [*whose, f"jobs run on it: {', '.join(self.jobs)}"] if self.jobs else whose


def _once(request: Callable[[], Any]) -> Any:
    return request()


def assess(home: Provider, name: str) -> TeardownImpact:
    """Look at a cluster before it is ended."""
    look = home.status(name)
    connection = _reach(home, look)
    jobs = _running_jobs(look, connection)
    return TeardownImpact(look, jobs, look.owner, *_checkpoint_loss.look(look, connection))


def ask(impact: TeardownImpact, *, yes: bool) -> None:
    """Ask what has to be asked before a cluster is ended.

    Nobody has to be there for one's own jobs that are known; for what is another's, or cannot be seen, somebody has.

    Raises:
        InputError: the user said no, or nobody was there to say yes.
    """
    name, why = impact.look.name, "; ".join(impact.others)
    is_known = impact.jobs is not None and not impact.whose
    question = f"End cluster {name}? {why[:1].upper()}{why[1:]}."
    if why and not _output.confirm(question, yes=yes, unattended=is_known):
        raise InputError(f"{name} is left as it is")
    if impact.keeping is not None and impact.is_lost:
        _checkpoint_loss.show(name, impact.keeping, impact.lines)
        if not _output.confirm(f"End {name}?", yes=yes, unattended=False):
            raise InputError(f"{name} is left as it is")


def end(home: Provider, impact: TeardownImpact, *, again: Again = _once) -> None:
    """End a cluster without a question; say what stays, and what goes on to cost money.

    Args:
        home: its provider.
        impact: the look at it before.
        again: makes a request, and repeats it while nobody answers.
    """
    name, look = impact.look.name, impact.look
    # of a request that got through, and its answer did not, the next one finds the cluster over
    was_running = again(partial(home.down, name)) or not look.is_over
    what = "is down" if was_running else "was not running"
    _output.note(f"{name} {what}; {look.teardown_summary}")
    for notice in look.teardown_notices:
        _price.say(notice)


def after_run(
    home: Provider,
    name: str,
    *,
    down: bool | None,
    yes: bool,
    reused: bool,
    price_per_hour: float | None = None,
    again: Again = retry,
) -> None:
    """End the cluster of a run, or keep it, and say which.

    Nobody may be there to try again, and an hour of it is dear: a server that does not answer is asked for minutes.

    Args:
        home: its provider.
        name: its name.
        down: what the user has asked for; None is to be asked where somebody is there to answer.
        yes: the user has said -y, which holds for everything but the jobs of others.
        reused: whether it was there before the run.
        price_per_hour: what it cost in US dollars when the run began.
        again: makes a request, and repeats it while nobody answers.

    Raises:
        ConnectionFailed: nobody has answered for minutes; the message says that the cluster goes on.
    """
    with ending(home, name, price_per_hour):
        if down is False or (down is None and not _output.is_interactive()):
            report_still_running(home, name)
            return
        impact: TeardownImpact = again(partial(assess, home, name))
    with ending(home, name, impact.look.price_per_hour):
        if _wanted(home, impact, down=down, yes=yes, reused=reused):
            end(home, impact, again=again)
        else:
            report_still_running(home, name)


def _wanted(home: Provider, impact: TeardownImpact, *, down: bool | None, yes: bool, reused: bool) -> bool:
    """Whether the cluster of a run shall end: see `after_run`."""
    name = impact.look.name
    if down is None and impact.look.is_over:
        return False
    reasons = reasons_to_confirm(impact, yes=yes, reused=reused)
    if impact.keeping is not None and impact.is_lost:
        _checkpoint_loss.show(name, impact.keeping, impact.lines)
    return not (reasons or down is None) or _confirmed(home, name, reasons)


def reasons_to_confirm(impact: TeardownImpact, *, yes: bool, reused: bool) -> list[str]:
    """Why not to end a cluster without a question, a sentence each."""
    reasons = impact.others if reused or impact.jobs else []  # on one of its own are its own jobs
    if impact.look.is_over or yes:
        return reasons
    if reused:
        reasons.append("it was up before this command")
    if impact.is_lost:
        reasons.append("checkpoints would be lost with it")
    return reasons


def _confirmed(home: Provider, name: str, reasons: list[str]) -> bool:
    why = "; ".join(reasons)
    if not _output.is_interactive():
        _output.note(f"cluster {name} is not ended without a question: {why}")
        return False
    said = f"; {why}" if why else ""
    return _output.confirm(f"End cluster {name}? It is up{costs(home, name)}{said}.", yes=False)


def report_still_running(home: Provider, name: str) -> None:
    """Or that it does not: it may have ended by itself."""
    over = ended(home, name)
    if over:
        _output.note(f"cluster {name} has ended: {over}")
    else:
        _output.note(f"cluster {name} goes on{costs(home, name)}")
        _output.hint(f"cloudrl down {name}")


def _reach(home: Provider, look: Status) -> Connection | None:
    """The way into a cluster that is up; None where there is none, and where it has just gone."""
    try:
        return home.attach(look.name) if look.is_ready else None
    except (InputError, ConnectionFailed):
        return None


def _running_jobs(look: Status, connection: Connection | None) -> list[str] | None:
    """Those that have not ended; None where some may run and nobody can say."""
    from cloudrl.jobs import list_jobs

    if connection is None:
        return None if _checkpoint_loss.may_have_run_jobs(look) else []
    try:
        jobs = list_jobs(connection)
    except (InputError, ConnectionFailed):
        return None
    return [job.submission_id for job in jobs if not job.status.is_terminal]
