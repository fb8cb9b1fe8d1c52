"""Steps -> series that a page can draw: elapsed time, parts of a step, and fewer points where there are many."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

from cloudrl.verl.charts import CHARTS, VALIDATION, Chart
from cloudrl.verl.metrics import Step
from cloudrl.verl.timing import mean_parts, step_parts

_DIGITS = 5
_LEAST_POINTS = 200
_POINTS, _TOP_POINTS, _BARS = 1_000, 10_000, 300


def charts_of(keys: Iterable[str]) -> list[Chart]:
    """The charts of which there is something to draw, with the keys that are there."""
    names = sorted(keys)
    charts = [chart._replace(keys=chart.matching(names)) for chart in CHARTS]
    return [chart._replace(band=tuple(key for key in chart.band if key in names)) for chart in charts if chart.keys]


def finite(value: float | None) -> float | None:
    """None for what JSON has no number for."""
    return value if value is not None and math.isfinite(value) else None


def elapsed_seconds(steps: Sequence[Step]) -> list[float]:
    """Seconds of training up to the end of each step."""
    return list(accumulate(step.step_s or 0.0 for step in steps))


def run_series(steps: Sequence[Step], shares: int, top: frozenset[str]) -> dict[str, Any]:
    """What the page draws of one run: numbers of `steps`, `elapsed`, and `series`, in which `i` are places in `steps`.

    `summary` is of all steps, of which a long series has only some.

    Args:
        steps: of the run.
        shares: how many runs and groups share the page.
        top: keys that keep more points than others.
    """
    columns: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for place, step in enumerate(steps):
        for key, value in step.metrics.items():
            if math.isfinite(value):
                columns[key][0].append(place)
                columns[key][1].append(value)
    series = {}
    for key, (places, values) in columns.items():
        indices = thinned(values, point_limit(key, shares, top))
        mine = {"v": [shortened(values[index]) for index in indices]}
        if len(indices) < len(steps):
            mine["i"] = [places[index] for index in indices]
        series[key] = mine
    return {
        "steps": [step.step for step in steps],
        "elapsed": [round(second, 1) for second in elapsed_seconds(steps)],
        "series": series,
        "summary": summary(steps),
        "time": _time_bars(steps),
    }


def point_limit(key: str, shares: int, top: frozenset[str]) -> int:
    """How many points a series of the page keeps."""
    return max(_LEAST_POINTS, (_TOP_POINTS if key in top else _POINTS) // shares)


def thinned(values: Sequence[float], limit: int) -> list[int]:
    """Places of at most `limit` values: the last, and of each bucket the least and the greatest: no peak is lost."""
    if len(values) <= limit:
        return list(range(len(values)))
    buckets, indices = max(1, (limit - 1) // 2), {len(values) - 1}
    for bucket in range(buckets):
        span = range(bucket * len(values) // buckets, (bucket + 1) * len(values) // buckets)
        indices |= {min(span, key=values.__getitem__), max(span, key=values.__getitem__)}
    return sorted(indices)


def summary(steps: Sequence[Step]) -> dict[str, float | None]:
    """What the overview says of a run: rewards, validation, median seconds of a step, seconds of training.

    None where nothing says it.
    """
    rewards = _finite(step.reward for step in steps)
    validated = next((key for step in steps for key in VALIDATION.matching(step.metrics)), "")
    validations = _finite(step.metrics.get(validated) for step in steps)
    seconds = _finite(step.step_s for step in steps)
    return {
        "reward": shortened(rewards[-1]) if rewards else None,
        "best": shortened(max(rewards)) if rewards else None,
        "validation": shortened(validations[-1]) if validations else None,
        "step_s": shortened(median(seconds)) if seconds else None,
        "trained_s": round(sum(seconds), 1) if seconds else None,
    }


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _time_bars(steps: Sequence[Step]) -> dict[str, Any]:
    """Mean seconds of each part, over as many steps as one bar stands for."""
    timed = [(step.step, parts) for step in steps if (parts := step_parts(step))]
    per_bar = max(1, math.ceil(len(timed) / _BARS))
    bars = [timed[start : start + per_bar] for start in range(0, len(timed), per_bar)]
    means = {
        name: [shortened(sum(parts.get(name, 0.0) for _, parts in bar) / len(bar)) for bar in bars]
        for name in mean_parts(steps)
    }
    return {"steps": [bar[-1][0] for bar in bars], "per_bar": per_bar, "parts": means}


def shortened(value: float) -> float:
    """As many digits as a curve can show; the greatest floats would be infinite with so few."""
    rounded = finite(float(f"{value:.{_DIGITS}g}")) or value
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
