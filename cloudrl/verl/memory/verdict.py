"""Whether a job fits, in one of three words, with the phase that decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from cloudrl.verl.memory.amount import Phase
from cloudrl.verl.memory.host import host_phases
from cloudrl.verl.memory.rollout import Rollout, reward_phase
from cloudrl.verl.memory.training import Trainer
from cloudrl.verl.memory.workload import Machine, Workload
from cloudrl.verl.model_config import ModelConfig

_TRAINER_GROUPS = ("load", "log-probs", "update", "save")
_HALVINGS = 20


class Verdict(Enum):
    """The answer, and how sure it is."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True)
class Estimate:
    """What a job needs, and what there is.

    Attributes:
        model: of the actor.
        critic_model: of the critic; the actor's without a critic.
        work: the job.
        machine: what it runs on.
    """

    model: ModelConfig
    critic_model: ModelConfig
    work: Workload
    machine: Machine

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """All moments of a step, of the GPU first.

        Raises:
            CheckpointError: config.json does not tell the sizes.
        """
        trainer = Trainer(self.model, self.critic_model, self.work, self.machine)
        found = list(trainer.phases())
        if self.work.engine is not None:
            found += Rollout(trainer, self.work.engine).phases()
        if self.work.reward is not None:
            found.append(reward_phase(trainer, self.work.reward))
        return (*found, *host_phases(trainer))

    @cached_property
    def worst(self) -> Phase:
        """The phase that decides: the least certain, then that with the least room."""
        return min(self.phases, key=lambda phase: (_certainty(phase), phase.room))

    @property
    def verdict(self) -> Verdict:
        """The answer."""
        return list(Verdict)[::-1][_certainty(self.worst)]

    @property
    def likely_fits(self) -> bool:
        """Whether every phase likely fits."""
        return all(phase.likely_fits for phase in self.phases)

    @cached_property
    def trainer_peak_gib(self) -> tuple[float, float, float]:
        """What `perf/max_memory_allocated_gb` will likely say: the trainer alone, without fragmentation."""
        peaks = [_allocated(phase) for phase in self.phases if phase.group in _TRAINER_GROUPS]
        low, likely, high = (max(peak[at] for peak in peaks) for at in range(3))
        return low, likely, high

    def longest_mean(self) -> int | None:
        """The mean length of sequences, in tokens, up to which every phase likely fits.

        None where the length does not decide: it fits whatever the length, or does not fit at any.
        """
        limit = self.work.lengths.longest
        if self.with_mean(limit).likely_fits or not self.with_mean(1).likely_fits:
            return None
        return _last(lambda mean: self.with_mean(mean).likely_fits, limit)

    def with_mean(self, mean: float) -> Estimate:
        """The same for sequences of another mean length, in tokens."""
        return replace(self, work=replace(self.work, lengths=replace(self.work.lengths, mean=mean)))


def _certainty(phase: Phase) -> int:
    """0 where it does not fit for sure, 2 where it fits for sure."""
    return 0 if phase.fails_for_sure else 2 if phase.fits_for_sure else 1


def _allocated(phase: Phase) -> tuple[float, float, float]:
    """Of the trainer's process: engines are processes of their own, and fragmentation is not allocated."""
    own = [term.amount for term in phase.terms if "the engine" not in term.what]
    plain = [term.amount for term in phase.terms if "the engine" not in term.what and term.what != "fragmentation"]
    return sum(each.low for each in plain), sum(each.likely for each in plain), sum(each.high for each in own)


def _last(holds: Callable[[float], bool], limit: float) -> int:
    """The largest number below a limit for which something holds that does not hold for the limit."""
    low, high = 1.0, limit
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return int(low)
