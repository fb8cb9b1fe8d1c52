"""What goes wrong in a training that runs on: seen in its numbers and in those of its nodes. Pure functions."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import fmean

from cloudrl.jobs.evidence import Evidence, RunWarning
from cloudrl.jobs.hangs import hang_notice
from cloudrl.jobs.machine_warnings import find_machine_warnings
from cloudrl.protocol.stops import Stop
from cloudrl.units import duration_text
from cloudrl.verl import keys
from cloudrl.verl.charts import CUT, ENTROPY, LENGTH, REWARD, TRAINING
from cloudrl.verl.metrics import Step, not_finite

_WINDOW = 5
"""Steps that all have to say the same."""
_ENTROPY_LEFT = 0.1
_CLIPPED = 0.25
_SHORT_TOKENS = 32
"""A limit as low as that is what the task wants, such as a number or a choice."""
_FAILED_CALLS = 5
_FAILED_PROMPTS = 20
"""A prompt fails now and then, such as at a time limit of a tool."""
_PAUSED_S = 120.0
_NAMED_METRICS = 3


def find_warnings(evidence: Evidence) -> tuple[RunWarning, ...]:
    """All that is wrong: a hang, then what concerns the training, then its machines."""
    trained = _trained(evidence.steps)
    return (
        *_hang(evidence),
        *_debugger(evidence.stops, evidence.now),
        *_training(evidence.steps, trained),
        *_tools(evidence.tool_failures),
        *prompt_warnings(evidence.failed_prompts, evidence.prompt_exception, evidence.url),
        *find_machine_warnings(evidence),
    )


class StepWarnings:
    """What the steps of a job that is followed say is wrong with its training, each kind of it once."""

    def __init__(self) -> None:
        self._first: list[Step] = []
        self._last: deque[Step] = deque(maxlen=2 * _WINDOW)
        self._told: set[str] = set()

    def add(self, step: Step) -> tuple[RunWarning, ...]:
        """Warnings that the next step is the first to show."""
        kept = self._first if len(self._first) < _WINDOW and step.step_s is not None else self._last
        kept.append(step)
        steps = [*self._first, *self._last]
        new = [warning for warning in _training(steps, _trained(steps)) if warning.kind not in self._told]
        self._told |= {warning.kind for warning in new}
        return tuple(new)


def _trained(steps: Sequence[Step]) -> list[Step]:
    """Without validations before the training."""
    return [step for step in steps if step.step_s is not None]


def _training(steps: Sequence[Step], trained: Sequence[Step]) -> Iterator[RunWarning]:
    """From the first five steps and the last ten alone."""
    yield from _not_finite(steps)
    yield from _reward(trained)
    yield from _entropy(trained)
    yield from _length(trained)


def _hang(evidence: Evidence) -> Iterator[RunWarning]:
    notice = hang_notice(evidence.job, evidence.now, evidence.price_per_hour)
    if notice is not None:
        yield RunWarning("hang", notice.text, notice.hint)


def _debugger(stops: Sequence[Stop], now: float) -> Iterator[RunWarning]:
    """The GPUs are idle, but they are paid for."""
    alone = [stop for stop in stops if not stop.attached]
    first = min(alone, key=lambda stop: stop.since, default=None)
    if first is None or now - first.since < _PAUSED_S:
        return
    rank = f" rank {first.rank}" if first.rank is not None else ""
    more = f", and {len(alone) - 1} more wait" if len(alone) > 1 else ""
    yield RunWarning(
        "debugger",
        f"{first.actor or 'a task'}{rank} has waited for a debugger in {first.method} for "
        f"{duration_text(now - first.since)}{more}; the cluster costs as much as at work",
        "Debug it, and leave with q to let it go on: cloudrl debug",
    )


def _not_finite(steps: Sequence[Step]) -> Iterator[RunWarning]:
    """What the model has learned from such numbers is lost, so that it rarely recovers."""
    bad = {key: step for key, step in not_finite(steps[-_WINDOW:]).items() if key.startswith(TRAINING)}
    if not bad:
        return
    more = f" and {len(bad) - _NAMED_METRICS} more" if len(bad) > _NAMED_METRICS else ""
    yield RunWarning(
        "nan",
        f"NaN or infinite at step {min(bad.values())}: {', '.join([*bad][:_NAMED_METRICS])}{more}",
        f"If it does not recover, stop the job, and resume with a lower learning rate ({keys.LEARNING_RATE}) from a "
        f"checkpoint before that step: {keys.RESUME_MODE}=resume_path {keys.RESUME_FROM}=DIR",
    )


def _reward(trained: Sequence[Step]) -> Iterator[RunWarning]:
    """All answers alike, and none of them right; where all are right there is nothing left to learn."""
    last = trained[-_WINDOW:]
    lows, highs = (_values(last, key) for key in REWARD.band)
    if len(lows) == len(highs) == _WINDOW and min(lows) == max(highs) <= 0:
        yield RunWarning(
            "reward",
            f"every answer of the last {_WINDOW} steps scored {lows[0]:g}: there is nothing to learn from",
            f"Read some answers ({keys.ROLLOUT_DIR}=/DIR): the reward function may not find the result in them, "
            "or the task is too hard for this model",
        )


def _entropy(trained: Sequence[Step]) -> Iterator[RunWarning]:
    values = _values(trained, *ENTROPY.keys)
    if len(values) < 3 * _WINDOW:
        return
    first, last = fmean(values[:_WINDOW]), fmean(values[-_WINDOW:])
    if first > 0 and last < _ENTROPY_LEFT * first and _share_of_best(trained) < 0.9:
        yield RunWarning(
            "entropy",
            f"entropy fell from {first:.3g} to {last:.3g} nats, and answers are not yet right: "
            "they are all alike, so little is left to choose from",
            f"Lower the learning rate ({keys.LEARNING_RATE}), raise clip_ratio_high (0.28 in DAPO) or add "
            f"{keys.ENTROPY_BONUS}",
        )


def _length(trained: Sequence[Step]) -> Iterator[RunWarning]:
    """Answers that are cut off cannot score, but verl also counts those that end by themselves at the limit."""
    last = trained[-_WINDOW:]
    clipped, longest = _values(last, *CUT.keys), _values(last, LENGTH.band[1])
    if len(clipped) < _WINDOW or min(clipped) < _CLIPPED or fmean(clipped) + _share_of_best(trained) > 1:
        return
    if longest and max(longest) > _SHORT_TOKENS:
        yield RunWarning(
            "length",
            f"{fmean(clipped):.0%} of the answers reach the limit of {max(longest):.0f} tokens and are cut off",
            f"Raise {keys.RESPONSE_LENGTH}, or reward shorter answers",
        )


def _tools(failures: Sequence[int]) -> Iterator[RunWarning]:
    last = failures[-_WINDOW:]
    if sum(map(bool, last)) > 1 and sum(last) >= _FAILED_CALLS:
        yield RunWarning(
            "tools",
            f"{sum(last)} calls of tools failed during the last {len(last)} steps; the model reads the error instead "
            "of an answer",
            "See why: cloudrl jobs logs | grep -i tool",
        )


def prompt_warnings(failed: int, exception: str, url: str) -> Iterator[RunWarning]:
    """In an asynchronous mode verl replaces a prompt that fails, for ever: the job neither ends nor trains.

    Args:
        failed: prompts since the last step.
        exception: of the newest of them; "" if unknown.
        url: of the job.
    """
    if failed >= _FAILED_PROMPTS:
        last = f", the last one of {exception}" if exception else ""
        yield RunWarning(
            "prompts",
            f"{failed} prompts have failed since the last step{last}: verl replaces each, and may never get to a step",
            f"See where it was raised, often in the reward function: cloudrl why {url}\n"
            f"Stop it: cloudrl jobs stop {url}",
        )


def _share_of_best(trained: Sequence[Step]) -> float:
    """The mean reward of the last steps, between the lowest (0) and the highest (1) that any of their answers had."""
    last = trained[-_WINDOW:]
    means, lows, highs = (_values(last, key) for key in (*REWARD.keys, *REWARD.band))
    if not means or not lows or not highs or max(highs) <= min(lows):
        return 0.0
    return (fmean(means) - min(lows)) / (max(highs) - min(lows))


def _values(steps: Sequence[Step], key: str) -> list[float]:
    return [value for step in steps if math.isfinite(value := step.metrics.get(key, math.nan))]
