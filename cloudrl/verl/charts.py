"""The metrics that matter most of all that verl reports: what each is called, and where it is shown.

The keys are verl 0.9.1's: trainer/ppo/metric_utils.py, and trainer/sft_trainer.py for a fine-tuning.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Chart(NamedTuple):
    """Metrics that are drawn together.

    Attributes:
        title: With the unit where it has one.
        keys: One curve each. A key that ends in `/` stands for all keys that start with it.
        band: Keys of the lowest and the highest value, drawn as an area around the curve.
        in_watch: Whether `cloudrl watch` draws it too, as far as there is room; the report draws all charts.
        on_card: Whether a model card lists its values.
        fallback: The key whose value stands for that of the first key where verl has not reported that.
        progress: Name of that value in the progress line, and in `Progress.metrics`; "" if it is in neither.
    """

    title: str
    keys: tuple[str, ...]
    band: tuple[str, ...] = ()
    in_watch: bool = False
    on_card: bool = False
    fallback: str = ""
    progress: str = ""

    def matching(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Those of the keys that it draws, in the chart's order; of a prefix in the order given."""
        there = list(keys)
        return tuple(key for start in self.keys for key in there if _matches(start, key))

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """That of the first key, or of the fallback; None if verl has reported neither."""
        return metrics.get(self.keys[0], metrics.get(self.fallback))


REWARD = Chart(
    "Reward",
    ("critic/score/mean",),
    ("critic/score/min", "critic/score/max"),
    on_card=True,
    fallback="critic/rewards/mean",
    progress="reward",
)
"""Of a step's answers, as scored; the fallback is after the KL penalty."""
LOSS = Chart("Loss", ("train/loss", "val/loss"), progress="loss")
"""A fine-tuning has it in place of rewards."""
VALIDATION = Chart("Validation", ("val-core/",))
ALL_VALIDATION = "val-"
"""What the keys of every validation start with, also of those that are not core metrics."""
TRAINING = ("actor/", "critic/")
"""What the keys of a training step's metrics start with."""
KL = Chart("KL divergence", ("actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty"), on_card=True)
ENTROPY = Chart("Entropy", ("actor/entropy",), in_watch=True, on_card=True)
LENGTH = Chart(
    "Answer length (tokens)",
    ("response_length/mean",),
    ("response_length/min", "response_length/max"),
    in_watch=True,
    on_card=True,
)
CUT = Chart("Answers cut at the length limit", ("response_length/clip_ratio",))
GRADIENT = Chart("Gradient norm", ("actor/grad_norm", "critic/grad_norm", "train/grad_norm"), in_watch=True)
MEMORY = Chart(
    "Memory (GB)",
    tuple(
        f"{worker}{key}"
        for key in ("perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb", "perf/cpu_memory_used_gb")
        for worker in ("actor/", "critic/", "")
    ),
    in_watch=True,
)
"""The most that PyTorch has held on a GPU, and what the host uses (verl 0.9.1, workers/engine_workers.py)."""
STALENESS = Chart(
    "Age of the weights behind an answer (steps)",
    ("training/off_policy/trajectory_staleness/mean",),
    ("training/off_policy/trajectory_staleness/min", "training/off_policy/trajectory_staleness/max"),
)
"""By the newest weights that wrote it (verl 0.9.1, trainer/ppo/v1/trainer_base.py: _compute_metrics); 0 in `sync`."""
OLDEST_WEIGHTS = Chart(
    "Age of the oldest weights behind an answer (steps)",
    ("training/off_policy/trajectory_staleness_worst/mean",),
    ("training/off_policy/trajectory_staleness_worst/min", "training/off_policy/trajectory_staleness_worst/max"),
)
"""Likewise: an answer that was interrupted by new weights goes on with them."""
SPANS = Chart(
    "Versions of the weights in one answer",
    ("training/off_policy/trajectory_spans/mean",),
    ("training/off_policy/trajectory_spans/min", "training/off_policy/trajectory_spans/max"),
)
THROWN_AWAY = Chart(
    "Prompts thrown away (too old, failed, or all answers alike)",
    (
        "training/off_policy/evicted_samples",
        "training/rollout_failure/evicted_samples",
        "training/filter_groups/evicted_samples",
    ),
)
"""verl 0.9.1, trainer/ppo/v1/replay_buffer.py: _evict_terminal_groups."""
READY = Chart(
    "Prompts ready, and still wanted, at the end of a step",
    ("separate_async/decision/sampleable_count", "separate_async/decision/remaining"),
)
"""Where training GPUs help out with the rollout (verl 0.9.1, trainer_separate_async.py: on_step_end)."""
APART = Chart("Rollout and training policy apart (KL)", ("rollout_corr/kl", "rollout_corr/k3_kl"))
"""What truncated importance sampling makes up for (verl 0.9.1, trainer/ppo/rollout_corr_helper.py)."""
THROUGHPUT = Chart("Throughput (tokens/s/GPU)", ("perf/throughput",), in_watch=True)

CHARTS = (
    REWARD,
    LOSS,
    VALIDATION,
    KL,
    LENGTH,
    CUT,
    ENTROPY,
    Chart("Clipped policy updates", ("actor/pg_clipfrac",)),
    GRADIENT,
    STALENESS,
    OLDEST_WEIGHTS,
    SPANS,
    THROWN_AWAY,
    READY,
    APART,
    THROUGHPUT,
    MEMORY,
)
IN_PROGRESS = tuple(chart for chart in CHARTS if chart.progress)


def _matches(start: str, key: str) -> bool:
    return key == start or (start.endswith("/") and key.startswith(start))
