"""What a cluster is going to cost, before the question whether to start it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.cli import _output
from cloudrl.cli._write_file import duration, money
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudrl.providers.model import Notice, Offer, Plan, Status

_SHOWN_OFFERS = 3


def ask(plan: Plan, *, yes: bool) -> Plan:
    """Show offers and the price of the whole cluster, and ask. Returns the plan that was shown.

    Raises:
        InputError: the user said no, or a run of that name is going on.
        CapacityError: there is no such machine.
    """
    priced = plan.priced()
    price = priced.price
    if price is None:
        return priced
    say_offers(price.offers, price.total_offers)
    if price.per_hour:
        _output.note(f"{plan.cluster.nodes} nodes together: from {money(price.per_hour)}/h")
    for notice in price.notices:
        say(notice)
    cost = f" for about {money(price.per_hour)}/h" if price.per_hour else ""
    if not _output.confirm(f"Start {plan.name}{cost}?", yes=yes):
        raise InputError("nothing was started")
    return priced


def say(notice: Notice | None) -> None:
    """A notice and what may be done about it; nothing for None."""
    if notice is not None:
        _output.note(notice.text)
        if notice.hint:
            _output.hint(notice.hint)


def so_far(look: Status) -> str:
    """What a cluster has cost; "" where it costs nothing or nobody knows."""
    return money(look.cost) if look.cost else ""


def describe(look: Status) -> list[str]:
    """What a cluster costs and when it ends by itself, one sentence each; none where there is nothing to say."""
    lines = []
    if look.price_per_hour or look.cost:
        price = f"{money(look.price_per_hour)}/h, " if look.price_per_hour else ""
        lines.append(f"cost: {price}{money(look.cost or 0.0)} so far")
    idle, budget = look.limits.get("down_when_idle_s"), look.limits.get("max_cost")
    if idle is not None:
        now = look.limits.get("idle_s")
        since = f", idle for {round(now / 60)}m now" if now is not None and now >= 60 else ""
        lines.append(f"ends by itself when it is idle for {duration(int(idle))}{since}")
    if budget is not None:
        lines.append(f"ends by itself when it has cost {money(budget)}")
    if look.phase == "down" and look.reason:
        lines.append(f"it has ended by itself: {look.reason}")
    return lines


def compare(look: Status) -> None:
    """Say so when a cluster costs more than its agents count with: the cheapest offer may have been gone."""
    counted, real = look.limits.get("price_per_hour"), look.price_per_hour
    if counted and real and real > 1.005 * counted:
        budget = look.limits.get("max_cost")
        end = (
            f"; it ends at about {money(budget * real / counted)} instead of {money(budget)}"
            if budget
            else ""
        )
        _output.note(
            f"warning: {look.name} costs {money(real)}/h, and its agents count with {money(counted)}/h{end}"
        )


def say_offers(offers: Iterable[Offer], total: int) -> None:
    """The cheapest offers, a line each."""
    for offer in list(offers)[:_SHOWN_OFFERS]:
        spot = ", spot" if offer.spot else ""
        where = f"{offer.backend} {offer.region}, {offer.instance_type}"
        _output.note(f"offer: {where}: {offer.resources}{spot}, {money(offer.price)}/h")
    if total > _SHOWN_OFFERS:
        _output.note(f"and {total - _SHOWN_OFFERS} more")
