"""Attempts are recorded on the volumes: a permanent failure must not be retried for ever at the user's cost.

What they have cost is recorded, too. Every node keeps the record on its own volume: the next attempt may have other
machines of the fleet, in another order.

dstack resubmits a failed run as long as its retry duration lasts, and counts that from the latest submission
that was provisioned, so a run that fails at once is resubmitted for ever (dstack 0.22, services/runs).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, Mapping, Sequence

from cloudrl.protocol.failures import Failure

_READY = ""
"""In the place of a signature: the run was ready at this time."""


class Attempts:
    """What this node's volume remembers of a run: its failures since it was ready last, and its cost.

    Args:
        folder: the checkpoint folder, with `.cloudrl/attempts/<run_id>.jsonl` and `.cloudrl/cost/<run_id>.json`.
        run_id: the same for all retries of one run.
        rank: of this node; all of them may share the folder.
        clock: seconds since the epoch.
    """

    def __init__(self, folder: Path, run_id: str, *, rank: int, clock: Callable[[], float] = time.time) -> None:
        self._path = folder / ".cloudrl" / "attempts" / f"{file_name(run_id)}.jsonl"
        self._cost_path = folder / ".cloudrl" / "cost" / f"{file_name(run_id)}.json"
        self._rank, self._clock = rank, clock

    def known(self) -> Dict[str, float]:
        """The failures: signature -> seconds since the epoch. None where the record cannot be read."""
        try:
            return self._read()
        except OSError:
            return {}

    def classify(
        self, failure: Failure, *, elsewhere: Sequence[Mapping[str, float]] = (), since: float = float("inf")
    ) -> Failure:
        """Record a failure, and make it final when the run has met the same one since it was ready last.

        A failure that a retry may cure is recorded and never final; that of a network is final when the attempt right
        before this one has ended in the same way, since a node without a way to the hub would be tried for ever. A
        permanent one that cannot be recorded is final at once: without a memory the run could go round for ever.

        Args:
            failure: what happened before the barrier.
            elsewhere: what the other nodes' volumes remember.
            since: when this attempt has begun: what is recorded from then on is this failure, seen by another node.

        Returns:
            The failure, with `final` set.
        """
        try:
            own = self._read()
            self.record(failure)
        except OSError:
            return dataclasses.replace(failure, final=failure.permanent)
        earlier = {signature: at for signature, at in _latest([own, *elsewhere]).items() if at < since}
        before = [max(earlier, key=earlier.__getitem__)] if failure.transient and earlier else list(earlier)
        may_end = failure.permanent or failure.transient
        return dataclasses.replace(failure, final=may_end and failure.signature in before)

    def record(self, failure: Failure) -> None:
        """Remember a failure that somebody else has judged.

        Raises:
            OSError: it cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            # on a line of its own, also after one that broke off
            file.write("\n" + json.dumps({"at": self._clock(), "signature": failure.signature}) + "\n")
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
        """US dollars that earlier attempts have cost."""
        try:
            return float(json.loads(self._cost_path.read_text())["cost_before"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    def write_cost(self, amount: float) -> None:
        """Remember what the run has cost so far, for its next attempt.

        Raises:
            OSError: the volume cannot be written.
        """
        self._cost_path.parent.mkdir(parents=True, exist_ok=True)
        part = self._cost_path.with_suffix(f".{self._rank}.part")
        part.write_text(json.dumps({"cost_before": round(amount, 4), "at": self._clock()}))
        part.replace(self._cost_path)

    def _read(self) -> Dict[str, float]:
        if not self._path.exists():
            return {}
        found: Dict[str, float] = {}
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                value = json.loads(line)
                found[str(value["signature"])] = float(value["at"])
            except (ValueError, KeyError, TypeError):
                continue  # the node died while it wrote this line
        return found


def _latest(records: Iterable[Mapping[str, float]]) -> Dict[str, float]:
    """Each failure since the run was ready last with the last time that anybody has met it."""
    merged: Dict[str, float] = {}
    for each in records:
        for signature, at in each.items():
            merged[signature] = max(at, merged.get(signature, at))
    ready_at = merged.pop(_READY, float("-inf"))
    return {signature: at for signature, at in merged.items() if at > ready_at}


def file_name(run_id: str) -> str:
    """A run's id as a part of a path."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in run_id)
