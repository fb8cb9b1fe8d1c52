"""What the server counts, for `GET /health` and, in Prometheus's text format, for `GET /metrics`."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

_PREFIX = "cloudrl_retriever"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
OUTCOMES = ("answered", "invalid", "refused", "queue_full", "late", "gone", "failed")


class Histogram:
    """Values by the first bound that they do not exceed."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def add(self, value: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> list[str]:
        """As Prometheus reads it."""
        so_far, lines = 0, [f"# TYPE {name} histogram"]
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            so_far += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {so_far}')
        return [*lines, f"{name}_sum {self.sum:.6f}", f"{name}_count {so_far}"]


class Counters:
    """Since the start.

    Attributes:
        requests: how many ended in which of `OUTCOMES`: `late` met their deadline, of `gone` the client went away.
        queries: that requests asked.
        searched: that were searched; fewer, where several asked the same at once.
        request_s: how long requests took that were answered.
        batch_sizes: queries searched at once.
        batch_s: how long that took.
    """

    def __init__(self) -> None:
        self.requests = dict.fromkeys(OUTCOMES, 0)
        self.queries = self.searched = self.failed_batches = 0
        self.request_s, self.batch_sizes, self.batch_s = Histogram(_SECONDS), Histogram(_SIZES), Histogram(_SECONDS)

    def as_json(self) -> dict[str, object]:
        """For `/health`."""
        batches = self.batch_sizes.count
        return {
            "requests": dict(self.requests),
            "queries": self.queries,
            "searched": self.searched,
            "batches": batches,
            "failed_batches": self.failed_batches,
            "mean_batch": round(self.searched / batches, 2) if batches else None,
        }

    def as_metrics(self, gauges: Mapping[str, float]) -> str:
        """For `/metrics`.

        Args:
            gauges: what is so now, by its name.
        """
        lines = [f"# TYPE {_PREFIX}_requests_total counter"]
        lines += [f'{_PREFIX}_requests_total{{outcome="{name}"}} {count}' for name, count in self.requests.items()]
        for name in ("queries", "searched", "failed_batches"):
            lines += [f"# TYPE {_PREFIX}_{name}_total counter", f"{_PREFIX}_{name}_total {getattr(self, name)}"]
        for name, value in gauges.items():
            lines += [f"# TYPE {_PREFIX}_{name} gauge", f"{_PREFIX}_{name} {value:g}"]
        lines += self.request_s.lines(f"{_PREFIX}_request_seconds")
        lines += self.batch_sizes.lines(f"{_PREFIX}_batch_queries")
        lines += self.batch_s.lines(f"{_PREFIX}_batch_seconds")
        return "\n".join(lines) + "\n"
