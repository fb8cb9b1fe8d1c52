"""What becomes of the cluster when a run is through, one way or the other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cloudrl.protocol import backoff
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, silent, unattended
from cloudrl.sdk.costs import costs
from cloudrl.sdk.teardown import TeardownImpact, assess, end, ending, report_still_running

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.errors import ConnectionFailed
    from cloudrl.sdk.running import RunningCluster

BACKOFF = backoff.Backoff(first_s=5.0, longest_s=5.0, give_up_s=300.0)
"""A server that is restarted, or a laptop that has just woken, is back within minutes."""


def end_after_run(
    cluster: RunningCluster,
    *,
    down: bool | None,
    in_vain: bool = False,
    price_per_hour: float | None = None,
    confirm: Confirm = unattended,
    on_progress: OnProgress = silent,
    retry: Callable[..., Any] = backoff.retry,
) -> bool:
    """End the cluster of a run, or keep it, and say which; whether it was ended.

    Nobody may be there to try again, and an hour of it is dear: a server that does not answer is asked for minutes.

    Args:
        cluster: it may have been there before the run, and some of its checkpoints may be safe elsewhere.
        down: what was asked for; None leaves it to `confirm`.
        in_vain: whether it was started for a job that never came, so that nobody waits for it.
        price_per_hour: what it cost in US dollars when the run began.
        confirm: answers questions.
        on_progress: is told what becomes of it.
        retry: repeats a request while nobody answers.

    Raises:
        ConnectionFailed: nobody has answered for minutes; the message says that the cluster goes on.
        Interrupted: Ctrl-C.
    """
    where, name = cluster.get_provider(), cluster.name
    again = partial(retry, backoff=BACKOFF, on_break=_told_once(on_progress))
    with ending(where, name, price_per_hour):
        if down is False:
            report_still_running(where, name, on_progress)
            return False
        impact: TeardownImpact = again(partial(assess, where, name))
    with ending(where, name, impact.status.price_per_hour):
        others, own = _reasons(impact, cluster)
        if impact.status.is_over:
            wanted = bool(down)
        elif down and not others and not own:
            wanted = True
        else:
            _show(impact, on_progress)
            explicit = down is None or bool(others)
            default = in_vain and not own and not others
            wanted = confirm(_question(impact, [*others, *own], default=default, explicit=explicit))
        if wanted:
            end(where, impact, on_progress=on_progress, retry=again)
            return True
        if why := "; ".join([*others, *own]):
            on_progress(Notice(f"cluster {name} is not ended: {why}"))
        report_still_running(where, name, on_progress)
        return False


def _reasons(impact: TeardownImpact, cluster: RunningCluster) -> tuple[list[str], list[str]]:
    """Why not to end it without a question: what others may lose, and what oneself may; a sentence each."""
    others = impact.losses_of_others if not cluster.owned or impact.running_jobs else []
    own = [] if cluster.owned else ["it was up before this run"]
    return others, [*own, "checkpoints would be lost with it"] if impact.loses(cluster.copied) else own


def _question(impact: TeardownImpact, reasons: list[str], *, default: bool, explicit: bool) -> Question:
    why = "; ".join(reasons)
    text = f"End cluster {impact.status.name}? It is up{costs(impact.status)}{'; ' * bool(why)}{why}."
    return Question(text, default=default, explicit=explicit)


def _show(impact: TeardownImpact, on_progress: OnProgress) -> None:
    for notice in impact.notices():
        on_progress(notice)


def _told_once(on_progress: OnProgress) -> Callable[[ConnectionFailed], None]:
    told: list[ConnectionFailed] = []

    def tell(failure: ConnectionFailed) -> None:
        if not told:
            on_progress(Notice(f"{failure.message}; trying again for {BACKOFF.give_up_s / 60:.0f} minutes"))
        told.append(failure)

    return tell
