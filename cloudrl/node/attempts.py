"""Attempts are recorded on the volumes: no failure before READY must be retried for ever at the user's cost.

What they have cost is recorded, too. Every node keeps the record on its own volume: the next attempt may have other
machines of the fleet, in another order.

dstack resubmits a failed run as long as its retry duration lasts, and counts that from the latest submission
that was provisioned, so a run that fails at once is resubmitted for ever (dstack 0.22, services/runs).
"""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, Mapping, Sequence

from cloudrl.private_files import write_file
from cloudrl.protocol.failures import Failure, FailureKind, PastFailure
from cloudrl.saves.names import OURS, file_name

_READY = ""
"""In the place of a signature: the run was ready at this time."""
_ENOUGH = 5
"""So many attempts that end alike end the run, whatever the failure: what may pass with a retry has not passed."""


class Attempts:
    """What this node's volume remembers of a run: its failures since it was ready last, and its cost.

    Args:
        folder: the checkpoint folder, with `.cloudrl/attempts/<run_id>.jsonl` and `.cloudrl/cost/<run_id>.json`.
        run_id: the same for all retries of one run.
        rank: of this node; all of them may share the folder.
        attempt: the id of this attempt.
        clock: seconds since the epoch.
    """

    def __init__(
        self, folder: Path, run_id: str, *, rank: int, attempt: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = folder / OURS / "attempts" / f"{file_name(run_id)}.jsonl"
        self._cost_path = folder / OURS / "cost" / f"{file_name(run_id)}.json"
        self._rank, self._attempt, self._clock = rank, attempt, clock

    def known(self) -> Dict[str, PastFailure]:
        """The failures by their signatures. None where the record cannot be read."""
        try:
            return self._read()
        except OSError:
            return {}

    def classify(
        self, failure: Failure, *, elsewhere: Sequence[Mapping[str, PastFailure]] = (), since: float = float("inf")
    ) -> Failure:
        """Record a failure, and make it final when the run has met the same one often since it was ready last.

        A permanent one is final at its second time. That of a network is when the attempt right before this one has
        ended in the same way, since a node without a way to the hub would be tried for ever. Any other is at its fifth
        time, except a lost node: that is not a fault of the run, and the next attempt has another one. A permanent one
        that cannot be recorded is final at once: without a memory the run could go round for ever.

        Args:
            failure: what happened before the barrier.
            elsewhere: what the other nodes' volumes remember.
            since: when this attempt has begun: what is recorded from then on is this failure, seen by another node.

        Returns:
            The failure, with `final` and `times` set.
        """
        try:
            failures = _latest([self._read(), *elsewhere])
            past = failures.get(failure.signature, PastFailure(since, 1))
            failure = dataclasses.replace(failure, times=past.times + (past.at < since))
            self.record(failure)
        except OSError:
            return dataclasses.replace(failure, final=failure.permanent)
        if failure.kind is FailureKind.LOST:
            return failure
        earlier = {signature: failed.at for signature, failed in failures.items() if failed.at < since}
        again = failure.transient and failure.signature == max(earlier, key=earlier.__getitem__, default=None)
        if failure.times >= _ENOUGH:
            failure = dataclasses.replace(failure, reason=f"{failure.reason}; {failure.times} attempts ended like this")
        return dataclasses.replace(failure, final=again or failure.times >= (2 if failure.permanent else _ENOUGH))

    def record(self, failure: Failure) -> None:
        """Remember a failure that somebody else has judged.

        Raises:
            OSError: it cannot be written.
        """
        line = {"at": self._clock(), "signature": failure.signature, "times": failure.times}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            # on a line of its own, also after one that broke off
            file.write("\n" + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Forget the failures of a run: it has become ready, so none of them was permanent.

        That is written down in their place, for nodes that were not among them and remember those failures still.

        Raises:
            OSError: the record is there and cannot be written.
        """
        if self._path.exists():
            self._path.write_text(json.dumps({"at": self._clock(), "signature": _READY}) + "\n")

    def read_cost(self) -> float:
        """US dollars that earlier attempts have cost; another rank of this one may have written to a shared folder."""
        try:
            record = json.loads(self._cost_path.read_text())
            return float(record["before_it" if record.get("attempt") == self._attempt else "cost_before"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return 0.0

    def write_cost(self, amount: float, before_it: float) -> None:
        """Remember what the run has cost so far, for its next attempt, and what it had cost before this one.

        Raises:
            OSError: the volume cannot be written.
        """
        self._cost_path.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "cost_before": round(amount, 4), "at": self._clock(), "attempt": self._attempt, "before_it": before_it,
        }  # fmt: skip
        write_file(self._cost_path, json.dumps(record), mode=0o666)

    def _read(self) -> Dict[str, PastFailure]:
        if not self._path.exists():
            return {}
        latest: Dict[str, PastFailure] = {}
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                value = json.loads(line)
                latest[str(value["signature"])] = PastFailure(float(value["at"]), int(value.get("times", 1)))
            except (ValueError, KeyError, TypeError):
                continue  # the node died while it wrote this line
        return latest


def _latest(records: Iterable[Mapping[str, PastFailure]]) -> Dict[str, PastFailure]:
    """Each failure since the run was ready last, as whoever has met it last remembers it."""
    merged: Dict[str, PastFailure] = {}
    for record in records:
        for signature, failure in record.items():
            merged[signature] = max(failure, merged.get(signature, failure), key=lambda past: past.at)
    ready_at = merged.pop(_READY, PastFailure(float("-inf"))).at
    return {signature: failure for signature, failure in merged.items() if failure.at > ready_at}
