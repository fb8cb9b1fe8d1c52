"""Attempts are recorded on the volume: a permanent failure must not be retried for ever at the user's cost.

dstack resubmits a failed run as long as its retry duration lasts, and counts that from the latest submission
that was provisioned, so a run that fails at once is resubmitted for ever (dstack 0.22, services/runs).
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import TYPE_CHECKING, List, Optional

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.node.failure import Failure


def judge(failure: Failure, *, folder: Path, run_id: str, now: Optional[float] = None) -> Failure:
    """Record a failure, and make it final when the run has met the same one since it was ready last.

    A failure that a retry may cure is recorded and never final; that of a network is final when the attempt right
    before this one has ended in the same way, since a node without a way to the hub would be tried for ever. A
    permanent one that cannot be recorded is final at once: without a memory the run could go round for ever.

    Args:
        failure: what happened before the barrier.
        folder: the checkpoint folder; the record is `.cloudrl/attempts/<run_id>.jsonl` below it.
        run_id: the same for all retries of one run.
        now: seconds since the epoch.

    Returns:
        The failure, with `final` set.
    """
    path = _path(folder, run_id)
    try:
        earlier = _signatures(path)
        _append(path, {"at": time.time() if now is None else now, "signature": failure.signature})
    except OSError:
        return dataclasses.replace(failure, final=failure.permanent)
    before = earlier[-1:] if failure.transient else earlier
    may_end = failure.permanent or failure.transient
    return dataclasses.replace(failure, final=may_end and failure.signature in before)


def clear(folder: Path, run_id: str) -> None:
    """Forget the failures of a run: it has become ready, so none of them was permanent.

    Raises:
        OSError: the record is there and cannot be removed.
    """
    _path(folder, run_id).unlink(missing_ok=True)


def _path(folder: Path, run_id: str) -> Path:
    return folder / ".cloudrl" / "attempts" / f"{file_name(run_id)}.jsonl"


def _signatures(path: Path) -> List[str]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(str(json.loads(line)["signature"]))
        except (ValueError, KeyError, TypeError):
            continue  # the node died while it wrote this line
    return found


def _append(path: Path, record: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(record) + "\n")  # on a line of its own, also after one that broke off
        file.flush()
        os.fsync(file.fileno())


def file_name(run_id: str) -> str:
    """A run's id as a part of a path."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in run_id)
