"""What a cluster on dstack is going to cost, before the question whether to start it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloudrl.cli import _output
from cloudrl.cli._rendered import money
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from cloudrl.providers.dstack.provider import DstackPlan
    from cloudrl.providers.dstack.runs import RunPlan
    from cloudrl.providers.model import Plan

_SHOWN_OFFERS = 3


def ask(plan: Plan, *, yes: bool) -> None:
    """Show offers and the price of the whole cluster, and ask.

    Raises:
        InputError: the user said no, or a run of that name is going on.
        CapacityError: there is no such machine.
    """
    from cloudrl.providers.dstack import runs
    from cloudrl.providers.dstack.provider import quote

    quoted = quote(cast("DstackPlan", plan))
    runs.check(quoted)
    say(quoted)
    cost = f" for about {money(quoted.price)}/h" if quoted.price else ""
    if not _output.confirm(f"Start {quoted.name}{cost}?", yes=yes):
        raise InputError("nothing was started")


def say(quoted: RunPlan) -> None:
    """Offers, the price of all nodes together, and what does not work on those backends."""
    for offer in quoted.offers[:_SHOWN_OFFERS]:
        spot = ", spot" if offer.spot else ""
        where = f"{offer.backend} {offer.region}, {offer.instance_type}"
        _output.note(f"offer: {where}: {offer.resources}{spot}, {money(offer.price)}/h")
    if quoted.total_offers > _SHOWN_OFFERS:
        _output.note(f"and {quoted.total_offers - _SHOWN_OFFERS} more")
    if quoted.price:
        _output.note(f"{quoted.nodes} nodes together: from {money(quoted.price)}/h")
    if quoted.without_instance_volumes:
        backends = ", ".join(quoted.without_instance_volumes)
        _output.note(
            f"note: {backends} cannot mount a folder of the host: checkpoints need a network volume there"
        )
