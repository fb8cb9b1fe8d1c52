"""How right the estimate of memory is: its verdicts and figures against runs that somebody published or measured.

    PYTHONPATH=tests python benchmarks/bench_memory.py [-v]      # no GPU; seconds

The rows and their sources are in tests/memory_truth.yml.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter

from memory_truth import Row, rows

from cloudrl.verl.memory.remedies import find_remedy
from cloudrl.verl.memory.verdict import Verdict

_PERCENTILES = {"median": 0.5, "90th percentile": 0.9, "worst": 1.0}


def main() -> None:
    """Print verdicts beside what was seen, errors of peaks, and how long an estimate takes."""
    labelled = [row for row in rows() if row.seen]
    counts = Counter((row.seen, row.estimate.verdict.value) for row in labelled)
    print(f"{len(labelled)} runs                 " + "".join(f"{each.value:>14}" for each in Verdict))
    for seen, words in (("fits", "did fit"), ("oom", "ran out of memory")):
        print(f"  {words:<20}" + "".join(f"{counts[seen, each.value]:>14}" for each in Verdict))
    sure = [row for row in labelled if row.estimate.verdict is not Verdict.TIGHT]
    right = [row for row in sure if (row.estimate.verdict is Verdict.FITS) is (row.seen == "fits")]
    likely = [row for row in labelled if row.estimate.likely_fits is (row.seen == "fits")]
    minima = [row for row in labelled if row.is_minimum]
    refused = [row for row in minima if row.estimate.verdict is Verdict.DOES_NOT_FIT]
    print(f"sure answers right: {len(right)} of {len(sure)}; likely answers right: {len(likely)} of {len(labelled)}")
    print(f"published minima called `does not fit`: {len(refused)} of {len(minima)}")
    _errors()
    _speed(labelled)
    if "-v" in sys.argv[1:]:
        for row in labelled:
            worst = row.estimate.worst
            need = f"{worst.need.likely:6.1f} of {worst.limit.likely:6.1f} GiB"
            print(f"  {row.name:32}{row.seen:6}{row.estimate.verdict.value:14}{need}  {worst.group}: {worst.moment}")


def _errors() -> None:
    found = sorted(
        abs(row.estimate.trainer_peak_gib[1] / row.figures["allocated"] - 1)
        for row in rows()
        if "allocated" in row.figures
    )
    parts = [f"{name} {found[min(int(part * len(found)), len(found) - 1)]:.1%}" for name, part in _PERCENTILES.items()]
    print(f"error of the peak that training allocates ({len(found)} runs): {', '.join(parts)}")


def _speed(labelled: list[Row]) -> None:
    estimates, remedies = [], []
    for row in labelled:
        start = time.process_time()
        fits = row.estimate.with_mean(row.estimate.work.lengths.usual.likely).likely_fits
        estimates.append(time.process_time() - start)
        if not fits and row.setting is not None:
            start = time.process_time()
            find_remedy(row.setting, row.estimate)
            remedies.append(time.process_time() - start)
    for what, seconds in (("an estimate", estimates), ("what makes a job fit", remedies)):
        print(f"{what}: {statistics.median(seconds) * 1000:.1f} ms of CPU, at most {max(seconds) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
