"""The verdict on a job's memory: in a sentence, as bars, and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cloudrl.verl.memory.amount import Amount, Phase
from cloudrl.verl.memory.bars import Bar, draw
from cloudrl.verl.memory.cards import Card
from cloudrl.verl.memory.host import NODE_MEMORY
from cloudrl.verl.memory.remedies import Remedy
from cloudrl.verl.memory.rollout import ENGINE_MEMORY
from cloudrl.verl.memory.runs import RunMemory
from cloudrl.verl.memory.verdict import Estimate, Verdict

GROUPS = ("load", "rollout", "log-probs", "update", "save")
"""The phases of the GPU, in the order of a run."""
_MUCH_MORE = 1.3
"""So many times the memory of a node is worth a word."""
_NO_REMEDY = "No change that cloudrl knows makes it fit: take GPUs with more memory, a smaller model, or LoRA"


@dataclass(frozen=True)
class MemoryReport:
    """What `check` says of a job's memory.

    Attributes:
        estimate: what it needs, and what there is.
        card: the GPU.
        remedy: what makes it fit; None where it fits, or nothing that is known helps.
        notes: what the estimate rests on, a sentence each.
    """

    estimate: Estimate
    card: Card
    remedy: Remedy | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def longest_mean(self) -> int | None:
        """See `Estimate.longest_mean`."""
        return None if self.estimate.verdict is Verdict.FITS else self.estimate.longest_mean()

    @property
    def warning(self) -> str:
        """What may end the job, with both numbers and what to change; "" where it likely fits."""
        if self.estimate.likely_fits:
            return ""
        worst, is_sure = self.estimate.worst, self.estimate.verdict is Verdict.DOES_NOT_FIT
        largest = worst.dominant
        text = (
            f"memory {'does not' if is_sure else 'may not'} fit: {_moment(worst)} needs {_gib(worst.need)} of "
            f"{worst.limit.likely:.0f} GiB, {largest.amount.likely:.0f} of it for {largest.what}"
        )
        if self.longest_mean is not None:
            text += f". It fits up to a mean of {self.longest_mean} tokens a sequence"
        return f"{text}. {self.advice}" if self.advice else text

    @property
    def doubt(self) -> str:
        """What a promise that the job can run has to leave out; "" where it likely fits."""
        if self.estimate.likely_fits:
            return ""
        return f"it {'does' if self.estimate.verdict is Verdict.DOES_NOT_FIT else 'may'} not fit in memory"

    @property
    def advice(self) -> str:
        """What makes it fit, as it is typed; "" where it likely fits."""
        if self.estimate.likely_fits:
            return ""
        if self.remedy is None:
            return _NO_REMEDY
        before, after = (_node_gib(each) for each in (self.estimate, self.remedy.estimate))
        on_host = f" (then a node needs {after:.0f} GiB of memory)" if after > _MUCH_MORE * before else ""
        return f"It fits with: {' '.join(self.remedy.words)}{on_host}"

    @property
    def answer(self) -> str:
        """For a reader of nothing else."""
        worst, verdict = self.estimate.worst, self.estimate.verdict
        if verdict is Verdict.FITS:
            return "memory: fits"
        text = f"memory: {verdict.value}: {_moment(worst)}, {worst.dominant.what} most of all"
        if self.longest_mean is not None:
            text += f"; fits up to a mean of {self.longest_mean} tokens a sequence"
        return text

    def shown(self, width: int, *, is_unicode: bool = True) -> list[str]:
        """Bars for a person, a line each, with the answer last.

        Args:
            width: of the terminal.
            is_unicode: whether it can show blocks.
        """
        model, counts = self.estimate.model, self.estimate.model.counts
        parameters = f"{'' if counts.is_exact else 'about '}{counts.total / 1e9:.2f} B parameters"
        card = f"{self.card.name}, {self.estimate.machine.card_gib:.0f} GiB"
        bars = [_bar(phase) for group in GROUPS if (phase := self._worst_of(group)) is not None]
        return [
            f"GiB of each GPU ({card}) for {model.name} ({parameters}):",
            *draw(bars, width, is_unicode=is_unicode),
            *(f"  {_moment(phase)}: {_gib(phase.need)}{_limit(phase)} GiB" for phase in self._others()),
            *(f"  {note}" for note in self.notes),
            self.answer,
        ]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form; sizes are GiB."""
        estimate = self.estimate
        return {
            "verdict": estimate.verdict.value,
            "likely_fits": estimate.likely_fits,
            "gpu": self.card.name,
            "gpu_gib": estimate.machine.card_gib,
            "parameters": estimate.model.counts.total,
            "trainer_peak_gib": [round(each, 2) for each in estimate.trainer_peak_gib],
            "mean_tokens": estimate.work.lengths.mean,
            "longest_mean_tokens": self.longest_mean,
            "phases": [_phase_json(phase) for phase in estimate.phases],
            "overrides": dict(self.remedy.overrides) if self.remedy else {},
            "options": list(self.remedy.options) if self.remedy else [],
            "notes": list(self.notes),
        }

    def run_of(self, submission_id: str, recipe: str) -> RunMemory:
        """What to keep of the estimate, for when the job has run."""
        work = self.estimate.work
        peak = tuple(round(each, 2) for each in self.estimate.trainer_peak_gib)
        shape = f"{work.nodes} x {work.gpus} x {self.card.name}"
        return RunMemory(submission_id, recipe, self.estimate.model.name, shape, peak)

    def _worst_of(self, group: str) -> Phase | None:
        """The moment of a phase with the least room; what an engine does with its share only where it is too little."""
        found = [phase for phase in self.estimate.phases if phase.group == group]
        found = [phase for phase in found if phase.moment != ENGINE_MEMORY or not phase.fits_for_sure]
        return min(found, key=lambda phase: phase.room, default=None)

    def _others(self) -> list[Phase]:
        """Host memory and disk."""
        return [phase for phase in self.estimate.phases if phase.group not in GROUPS]


def _node_gib(estimate: Estimate) -> float:
    return sum(phase.need.likely for phase in estimate.phases if phase.moment == NODE_MEMORY)


def _bar(phase: Phase) -> Bar:
    need, limit = phase.need, phase.limit.likely
    if phase.fits_for_sure:
        state = ""
    elif phase.fails_for_sure:
        state = "  does not fit"
    else:
        state = "  tight" if phase.likely_fits else "  likely too much"
    return Bar(phase.group, need.likely, need.high, limit, f"{need.likely:3.0f} of {limit:.0f}{state}")


def _moment(phase: Phase) -> str:
    if phase.group in GROUPS:
        return f"{phase.group} ({phase.moment})"
    return "memory of a node" if phase.moment == NODE_MEMORY else phase.moment


def _gib(amount: Amount) -> str:
    """`36`, or with its range where that is wide: `36 (30 to 50)`."""
    is_narrow = amount.high - amount.low < max(1.0, 0.1 * amount.likely)
    return f"{amount.likely:.0f}" + ("" if is_narrow else f" ({amount.low:.0f} to {amount.high:.0f})")


def _limit(phase: Phase) -> str:
    return f" of {phase.limit.likely:.0f}" if math.isfinite(phase.limit.likely) else ""


def _phase_json(phase: Phase) -> dict[str, Any]:
    need, limit = phase.need, phase.limit.likely
    return {
        "phase": phase.group,
        "moment": phase.moment,
        "gib": [round(each, 2) for each in (need.low, need.likely, need.high)],
        "limit_gib": round(limit, 2) if math.isfinite(limit) else None,
        "terms": {term.what: round(term.amount.likely, 2) for term in phase.terms},
    }
