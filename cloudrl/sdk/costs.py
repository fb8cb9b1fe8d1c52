"""What machines cost, in words. Pure but for the look at a cluster's status."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from cloudrl.errors import CloudrlError
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.report import BudgetStatus, ClusterStatus
from cloudrl.providers.model import Price, Provider, Status
from cloudrl.providers.registry import provider
from cloudrl.sdk.callbacks import OnProgress
from cloudrl.units import dollars_text, duration_option

if TYPE_CHECKING:
    from cloudrl.transport import Connection

_SHOWN_OFFERS = 3


def costs(status: Status) -> str:
    """As the end of a sentence: " and costs $12.30/h, $4.56 so far"; "" for nothing."""
    if not status.price_per_hour:
        return ""
    so_far = f", {dollars_text(status.cost)} so far" if status.cost is not None else ""
    return f" and costs {dollars_text(status.price_per_hour)}/h{so_far}"


def prices(name: str, status: ClusterStatus) -> tuple[float | None, float] | None:
    """What a cluster has cost, if that is known, and costs per hour, in US dollars.

    What its provider says comes first, then what its agents assume.

    Args:
        name: of the cluster.
        status: as its agents report it.

    Returns:
        None where neither knows the price.
    """
    sources: list[Status | BudgetStatus] = [status.budget]
    with suppress(CloudrlError):
        sources.insert(0, provider(status.facts.provider).status(name))
    priced = [(source.cost, source.price_per_hour) for source in sources if source.price_per_hour]
    both = (amounts for amounts in priced if amounts[0] is not None)
    return next(both, next(iter(priced), None))


def counted_dollars(
    connection: Connection, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[], float | None]:
    """What a cluster has cost so far, in US dollars, as a function: one look at it, then counted on by its price.

    Args:
        connection: to the cluster.
        clock: seconds that never run backwards.

    Returns:
        The function; it gives None where the price, or the cost up to now, is unknown.
    """
    known = None
    with suppress(CloudrlError):  # bytes are worth more than dollars
        if (agent := connection.agent()) is not None:
            known = prices(connection.name, agent.status())
    cost, per_hour = known or (None, 0.0)
    if cost is None:
        return lambda: None
    so_far, began = cost, clock()
    return lambda: so_far + per_hour * (clock() - began) / 3600


def current_state(provider: Provider, name: str, *, alive: str = "keeps running") -> tuple[bool, str]:
    """Whether a cluster goes on, as far as anybody can say, and the end of a sentence that says it.

    Args:
        provider: where it lives.
        name: its name.
        alive: what to say of one that is not over; what it costs is added.
    """
    try:
        status = provider.status(name)
    except CloudrlError:  # what the caller has to say is worth more than a price
        return True, alive
    if status.is_over:
        return False, f"has ended: {status.reason or status.phase}"
    return True, f"{alive}{costs(status)}"


def with_state(error: CloudrlError, provider: Provider, name: str, *, alive: str = "keeps running") -> CloudrlError:
    """The same error, with what becomes of a cluster, and how to end it if it goes on; see `current_state`."""
    goes_on, state = current_state(provider, name, alive=alive)
    hints = [*(error.hint or "").splitlines(), *([f"End it: cloudrl down {name}"] if goes_on else [])]
    return type(error)(f"{error.message}; cluster {name} {state}", hint="\n".join(hints) or None)


def describe(status: Status) -> list[str]:
    """What a cluster costs and when it ends by itself, one sentence each; empty without limits."""
    lines = []
    if status.price_per_hour or status.cost:
        price = f"{dollars_text(status.price_per_hour)}/h" if status.price_per_hour else ""
        so_far = f"{dollars_text(status.cost)} so far" if status.cost is not None else ""
        lines.append(f"cost: {', '.join(filter(None, (price, so_far)))}")
    idle, budget = status.budget.down_when_idle_s, status.budget.max_cost
    if idle is not None:
        now = status.budget.idle_s
        since = f", idle for {round(now / 60)}m now" if now is not None and now >= 60 else ""
        lines.append(f"stops by itself after being idle for {duration_option(int(idle))}{since}")
    if budget is not None:
        lines.append(f"stops by itself once it has cost {dollars_text(budget)}")
    if status.phase is Phase.DOWN and status.reason:
        lines.append(f"it stopped by itself: {status.reason}")
    return lines


def price_difference(status: Status) -> str:
    """Says that a cluster costs more than its agents count with, as the cheapest offer was gone; "" if it does not."""
    counted, real = status.budget.price_per_hour, status.price_per_hour
    if not counted or not real or real <= 1.005 * counted:
        return ""
    budget = status.budget.max_cost
    end = (
        f"; it will stop at about {dollars_text(budget * real / counted)} instead of {dollars_text(budget)}"
        if budget
        else ""
    )
    return f"warning: {status.name} costs {dollars_text(real)}/h, but its agents assume {dollars_text(counted)}/h{end}"


def report_price(price: Price, together: str, on_progress: OnProgress) -> None:
    """Tell the cheapest offers, what all machines cost together (`2 nodes together`), and what else there is to say."""
    for offer in price.offers[:_SHOWN_OFFERS]:
        machine = f"{offer.backend} {offer.region}, {offer.instance_type}: {offer.resources}{', spot' * offer.spot}"
        on_progress(Notice(f"offer: {machine}, {dollars_text(offer.price)}/h"))
    if price.total_offers > _SHOWN_OFFERS:
        on_progress(Notice(f"and {price.total_offers - _SHOWN_OFFERS} more"))
    if price.per_hour:
        on_progress(Notice(f"{together}: from {dollars_text(price.per_hour)}/h"))
    for notice in price.notices:
        on_progress(notice)
