"""An amount of memory with its uncertainty, and a phase of a step as a sum of such amounts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Amount:
    """Between `low` and `high`, most likely `likely`; in GiB.

    `Amount.exact(3) + Amount(0.5, 1, 2)` is `Amount(3.5, 4, 5)`.
    """

    low: float
    likely: float
    high: float

    @classmethod
    def exact(cls, gib: float) -> Amount:
        """One that is known."""
        return cls(gib, gib, gib)

    @classmethod
    def of_bytes(cls, low: float, likely: float, high: float) -> Amount:
        """The same from bytes."""
        return cls(low / GIB, likely / GIB, high / GIB)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def __mul__(self, factor: float) -> Amount:
        return Amount(self.low * factor, self.likely * factor, self.high * factor)

    def less(self, other: Amount) -> Amount:
        """What is left: the least where most is taken."""
        return Amount(self.low - other.high, self.likely - other.likely, self.high - other.low)

    def times(self, other: Amount) -> Amount:
        """The product of two uncertain factors."""
        return Amount(self.low * other.low, self.likely * other.likely, self.high * other.high)


NOTHING = Amount.exact(0)


def total(amounts: Iterable[Amount]) -> Amount:
    """Their sum."""
    return sum(amounts, NOTHING)


@dataclass(frozen=True)
class Term:
    """One thing that is in memory during a phase.

    Attributes:
        what: in words, for messages: `gradients`, `logits`.
        amount: of it.
    """

    what: str
    amount: Amount


@dataclass(frozen=True)
class Phase:
    """What is in memory at one moment, and how much room there is.

    Attributes:
        group: the phase as a user knows it: `load`, `rollout`, `log-probs`, `update`, `save`, `host`, `disk`.
        moment: the moment in it: `optimizer step`.
        terms: what is in memory; those of no size are left out.
        limit: how much may be.
    """

    group: str
    moment: str
    terms: tuple[Term, ...]
    limit: Amount

    @property
    def need(self) -> Amount:
        """All terms together."""
        return total(term.amount for term in self.terms)

    @property
    def dominant(self) -> Term:
        """The largest term."""
        return max(self.terms, key=lambda term: term.amount.likely, default=Term("nothing", NOTHING))

    @property
    def room(self) -> float:
        """GiB that are likely left; below 0 where it likely does not fit."""
        return self.limit.likely - self.need.likely

    @property
    def fits_for_sure(self) -> bool:
        """Whether it fits in the worst case."""
        return self.need.high <= self.limit.low

    @property
    def fails_for_sure(self) -> bool:
        """Whether it does not fit in the best case."""
        return self.need.low > self.limit.high

    @property
    def likely_fits(self) -> bool:
        """Whether it fits in the likely case."""
        return self.room >= 0


def phase(group: str, moment: str, limit: Amount, terms: Iterable[tuple[str, Amount]], waste: float = 0.0) -> Phase:
    """A phase of these terms.

    Args:
        group: see `Phase`.
        moment: see `Phase`.
        limit: see `Phase`.
        terms: what is in memory, and how much of it.
        waste: the part of the sum that fragmentation likely adds; it may be none, and three times as much.
    """
    found = tuple(Term(what, amount) for what, amount in terms if amount.high > 0)
    if waste:
        likely = total(term.amount for term in found).likely
        found += (Term("fragmentation", Amount(0, waste * likely, 3 * waste * likely)),)
    return Phase(group, moment, found, limit)
