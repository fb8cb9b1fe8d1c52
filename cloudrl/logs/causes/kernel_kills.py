"""A process that was killed without a word, where the kernel's own counters say by whom and why."""

from __future__ import annotations

from dataclasses import replace

from cloudrl.logs.causes.evidence import Evidence
from cloudrl.logs.causes.signatures import signatures
from cloudrl.logs.causes.suspect import Suspect

_KILLED, _BY_KERNEL = "process-killed", "kernel-memory"
_NEAR_MS = 60_000
"""Between a death and the rise of the counter; clocks of nodes differ, and Ray may see a death late."""


def by_kernel(evidence: Evidence, suspect: Suspect) -> Suspect:
    """The same death with the kernel as its cause, if its node has counted a kill for lack of memory at that time."""
    kills = evidence.oom_kills.get(suspect.rank) if suspect.rank is not None else None
    is_killed = suspect.signature is not None and suspect.signature.name == _KILLED
    if kills is None or not is_killed:
        return suspect
    died_ms = suspect.at_ms if suspect.at_ms is not None else evidence.ended_ms
    if died_ms is not None and abs(died_ms - kills.at * 1000) > _NEAR_MS:
        return suspect
    row = next(signature for signature in signatures() if signature.name == _BY_KERNEL)
    processes = "a process" if kills.count == 1 else f"{kills.count} processes"
    text = f"{suspect.error}: the kernel of rank {suspect.rank} has ended {processes} for lack of memory"
    return replace(suspect, error=text, signature=row)
