"""What goes wrong in a training that runs on: seen in its numbers and in those of its nodes. Pure functions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from cloudrl.jobs.hangs import hang_notice
from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import Usage
from cloudrl.protocol.stops import Stop
from cloudrl.units import duration_text, size_text
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
_BUSIER_PERCENT = 25.0
_TAKES_PART_PERCENT = 5.0
"""A node whose GPUs compute less than that has no part in the training: no rank waits for it."""
_WATCHED_S = 180.0
_GROWTH_S = 600.0
_UNKNOWN_LEFT_S = 6 * 3600.0
"""For how long a disk should last if the run's end is unknown."""
_FULL = 0.95
"""Ray takes no more objects and tasks on a node whose disk is as full (Ray 2.60, local_fs_capacity_threshold)."""
_PAUSED_S = 120.0
_FEW_BYTES = 50 * 10**9
"""Of a large share, 5% are room enough."""
_NAMED_METRICS = 3


@dataclass(frozen=True)
class RunWarning:
    """One thing that is wrong.

    Attributes:
        kind: `hang`, `debugger`, `nan`, `reward`, `entropy`, `length`, `tools`, `node` or `disk`; there is one of a
            kind at most.
        seen: what is seen, with its numbers.
        remedy: what to do.
    """

    kind: str
    seen: str
    remedy: str


@dataclass(frozen=True)
class Evidence:
    """What warnings are drawn from.

    Attributes:
        steps: of the run so far.
        usage: rank -> how busy the node was, oldest first.
        tool_failures: failed calls of tools during each of the last steps.
        left_s: seconds until the run ends; None if unknown.
        stops: tasks that wait for a debugger.
        now: seconds since the epoch.
        job: where the training stands; None if unknown.
        price_per_hour: of the cluster in US dollars; None if unknown.
    """

    steps: Sequence[Step] = ()
    usage: Mapping[int, Sequence[Usage]] = field(default_factory=dict)
    tool_failures: Sequence[int] = ()
    left_s: float | None = None
    stops: Sequence[Stop] = ()
    now: float = 0.0
    job: JobState | None = None
    price_per_hour: float | None = None


def find_warnings(evidence: Evidence) -> tuple[RunWarning, ...]:
    """All that is wrong: a hang, then what concerns the training, then its machines."""
    trained = [step for step in evidence.steps if step.step_s is not None]
    return (
        *_hang(evidence),
        *_debugger(evidence.stops, evidence.now),
        *_not_finite(evidence.steps),
        *_reward(trained),
        *_entropy(trained),
        *_length(trained),
        *_tools(evidence.tool_failures),
        *_slow_node(evidence.usage),
        *_disks(evidence.usage, evidence.left_s),
    )


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
        "If it does not recover, stop the job and resume from a checkpoint before that step "
        f"({keys.RESUME_MODE}=resume_path, {keys.RESUME_FROM}=DIR) with a lower learning rate ({keys.LEARNING_RATE})",
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


def _slow_node(usage: Mapping[int, Sequence[Usage]]) -> Iterator[RunWarning]:
    """The others wait for the slowest node in every step, so it is the one that has no pauses."""
    shares = {rank: _gpu_percent(samples) for rank, samples in usage.items()}
    busy = {rank: share for rank, share in shares.items() if share is not None and share >= _TAKES_PART_PERCENT}
    if len(busy) < 2:
        return
    slow = max(busy, key=lambda rank: busy[rank])
    others = median(share for rank, share in busy.items() if rank != slow)
    if busy[slow] - others > _BUSIER_PERCENT:
        yield RunWarning(
            "node",
            f"rank {slow} computes {busy[slow]:.0f}% of the time, the others {others:.0f}%: they wait for it",
            f"Compare its clocks and temperature with the others' (nvidia-smi -q -d PERFORMANCE on rank {slow}); "
            "replace the node if it is throttled",
        )


def _disks(usage: Mapping[int, Sequence[Usage]], left_s: float | None) -> Iterator[RunWarning]:
    """Of the disk that is full first; nodes may share one."""
    enough_s = _UNKNOWN_LEFT_S if left_s is None else left_s
    lasting = {rank: lasts_s for rank, samples in usage.items() if (lasts_s := _disk_lasts_s(samples)) is not None}
    short = sorted((rank for rank, lasts_s in lasting.items() if lasts_s <= enough_s), key=lambda rank: lasting[rank])
    if not short:
        return
    rank, *more = short
    others = f"; likewise {ranks_text(more)}" if more else ""
    last = usage[rank][-1]
    used, total = last.disk_used_bytes or 0, last.disk_total_bytes or 0
    when = f"will be full in {duration_text(lasting[rank])}" if lasting[rank] else f"is {used / total:.0%} full"
    until = f"; the run needs {duration_text(left_s)} more" if left_s is not None else ""
    yield RunWarning(
        "disk",
        f"the disk of rank {rank} {when} ({size_text(total - used)} of {size_text(total)} free){others}{until}",
        f"Keep fewer checkpoints ({keys.CHECKPOINTS_KEPT}=2), or remove some: cloudrl checkpoints prune --keep-last 2",
    )


def _disk_lasts_s(samples: Sequence[Usage]) -> float | None:
    """Seconds until a disk is full, at the pace of the samples; None if it does not fill, or it is too early to say."""
    sizes = [(sample.sampled_at, sample.disk_used_bytes, sample.disk_total_bytes) for sample in samples]
    measured = [(at, used, total) for at, used, total in sizes if used is not None and total]
    if not measured:
        return None
    (since, before, _), (now, used, total) = measured[0], measured[-1]
    if used > _FULL * total and total - used < _FEW_BYTES:
        return 0.0
    if now - since < _GROWTH_S or used <= before:
        return None
    return (total - used) * (now - since) / (used - before)


def _gpu_percent(samples: Sequence[Usage]) -> float | None:
    """The mean over all GPUs and the last minutes; None without GPUs, or of too few minutes."""
    recent = [sample for sample in samples if sample.sampled_at >= samples[-1].sampled_at - 2 * _WATCHED_S]
    if not recent or recent[-1].sampled_at - recent[0].sampled_at < _WATCHED_S:
        return None
    shares = [gpu.utilization_percent for usage in recent for gpu in usage.gpus if gpu.utilization_percent is not None]
    return fmean(shares) if shares else None


def _share_of_best(trained: Sequence[Step]) -> float:
    """The mean reward of the last steps, between the lowest (0) and the highest (1) that any of their answers had."""
    last = trained[-_WINDOW:]
    means, lows, highs = (_values(last, key) for key in (*REWARD.keys, *REWARD.band))
    if not means or not lows or not highs or max(highs) <= min(lows):
        return 0.0
    return (fmean(means) - min(lows)) / (max(highs) - min(lows))


def _values(steps: Sequence[Step], key: str) -> list[float]:
    return [value for step in steps if math.isfinite(value := step.metrics.get(key, math.nan))]
