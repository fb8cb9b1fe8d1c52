"""Whether a job fits on the machines that are offered, where they differ from what was planned with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cloudrl.errors import CloudrlError
from cloudrl.jobs.submission import Submission
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.providers.model import Offer
from cloudrl.verl.memory.cards import card_of

_MOST_MACHINES = 6
"""Kinds of machines that are looked at, the cheapest first."""


def verdicts_by_offer(
    offers: Sequence[Offer], planned: ClusterFacts, plan_on: Callable[[ClusterFacts], Submission]
) -> Iterator[str]:
    """A sentence for each kind of machine whose verdict is another one than that of the plan.

    A job is planned with the smallest GPU and the least memory that its cluster asks for: `80GB:8` may be an A100 of
    one offer and an H200 of another.

    Args:
        offers: cheapest first.
        planned: the cluster as it was planned.
        plan_on: plans the job on a cluster with such machines.
    """
    machines: dict[tuple[str, int], list[str]] = {}
    for offer in offers:
        if offer.gpu and offer.backend not in (found := machines.setdefault((offer.gpu, offer.memory_bytes), [])):
            found.append(offer.backend)
    before = _verdict(planned, plan_on)
    for (gpu, memory_bytes), backends in list(machines.items())[:_MOST_MACHINES]:
        facts = replace(planned, gpu=gpu, memory_bytes=memory_bytes or planned.memory_bytes)
        if (verdict := _verdict(facts, plan_on)) and verdict != before:
            yield f"on {card_of(gpu).name} of {', '.join(backends)}: {verdict}"


def _verdict(facts: ClusterFacts, plan_on: Callable[[ClusterFacts], Submission]) -> str:
    """What is said of memory on such machines; "" where nothing is known."""
    try:
        memory = plan_on(facts).memory
    except CloudrlError as refused:
        return str(refused).partition("\n")[0]
    return f"{memory.answer}. {memory.advice}".rstrip(". ") if memory is not None else ""
