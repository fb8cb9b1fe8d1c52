"""Whether a job fits on the machines that are offered, where they differ from what was planned with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cloudrl.errors import CloudrlError
from cloudrl.jobs.submission import Submission
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.providers.model import Offer
from cloudrl.units import size_text
from cloudrl.verl.memory.cards import card_of

_MOST_MACHINES = 6
"""Kinds of machines that are looked at, the cheapest first."""


def verdicts_by_offer(
    offers: Sequence[Offer], planned: ClusterFacts, plan_on: Callable[[ClusterFacts], Submission]
) -> Iterator[str]:
    """A sentence for each GPU and verdict that is another one than that of the plan.

    A job is planned with the smallest GPU and the least memory that its cluster asks for: `80GB:8` may be an A100 of
    one offer and an H200 of another.

    Args:
        offers: cheapest first.
        planned: the cluster as it was planned.
        plan_on: plans the job on a cluster with such machines.
    """
    machines: dict[tuple[str, int], list[str]] = {}
    for offer in offers:
        if offer.gpu:
            machines.setdefault((offer.gpu, offer.memory_bytes), []).append(offer.backend)
    before = _verdict(planned, plan_on)
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for (gpu, memory_bytes), backends in list(machines.items())[:_MOST_MACHINES]:
        facts = replace(planned, gpu=gpu, memory_bytes=memory_bytes or planned.memory_bytes)
        same = found.setdefault((card_of(gpu).name, _verdict(facts, plan_on)), [])
        same += [(backend, memory_bytes) for backend in backends]
    verdicts_of_card = Counter(card for card, _ in found)
    for (card, verdict), there in found.items():
        if verdict and verdict != before:
            yield f"on {card} of {_sources(there, tells_memory=verdicts_of_card[card] > 1)}: {verdict}"


def _sources(machines: Iterable[tuple[str, int]], *, tells_memory: bool) -> str:
    """Who offers them; with their memory, where that decides."""
    named = (f"{backend} ({size_text(size)} of memory)" if tells_memory and size else backend
             for backend, size in machines)  # fmt: skip
    return ", ".join(dict.fromkeys(named))


def _verdict(facts: ClusterFacts, plan_on: Callable[[ClusterFacts], Submission]) -> str:
    """What is said of memory on such machines; "" where nothing is known."""
    try:
        memory = plan_on(facts).memory
    except CloudrlError as refused:
        return str(refused).partition("\n")[0]
    return ". ".join(filter(None, (memory.answer, memory.advice))) if memory is not None else ""
