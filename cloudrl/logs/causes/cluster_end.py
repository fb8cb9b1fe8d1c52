"""Why a cluster ended and took the job along: what the agents of its nodes have logged at their ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from cloudrl.logs.causes.cause import Cause
from cloudrl.logs.causes.evidence import AgentLog, Evidence
from cloudrl.logs.causes.printed import read_line
from cloudrl.logs.causes.signatures import recognise
from cloudrl.logs.causes.suspect import MOST_LINES, Suspect
from cloudrl.protocol.outcome import ENDED_BY, from_output
from cloudrl.protocol.phases import Phase
from cloudrl.verl.metrics import without_ansi

_EXITED = re.compile(
    r"\b(?P<name>[a-z_]{1,40})(?: \[exit code=|\.(?:out|err) tail \(exit code\(s\)=)(?P<code>-?\d{1,3})\b"
)
"""Ray 2.60, scripts/scripts.py: _log_unexpected_subprocess_exit_details."""
_DUMP = "[state-dump]"
"""Begins lines of a raylet's log that say nothing of its end (Ray 2.60); so do those of level I and W."""
_RANK = re.compile(r"\brank (?P<rank>\d{1,5})\b")
_LATER_MS = 60_000


def end_of_cluster(evidence: Evidence) -> Suspect | None:
    """The first failure of the nodes, by their agents; None where they say of none, or it came after the job's end."""
    ends = sorted(_ends(evidence), key=lambda end: end.at_ms or 0)
    until = (evidence.ended_ms or float("inf")) + _LATER_MS
    if ends:
        return next((end for end in ends if (end.at_ms or 0) <= until), None)
    if not _is_silent(evidence):
        return None
    text = "the agents of all nodes are gone, and none of them has logged why"
    return Suspect(text, (text,), process="agent", crashed=True, signature=recognise(text))


def cause_of(reason: str) -> Cause:
    """The cause that the reason of a failed cluster names; its rank is the first one in it."""
    named, signature = _RANK.search(reason), recognise(reason)
    return Cause(
        error=reason,
        rank=int(named["rank"]) if named is not None else None,
        process="agent",
        signature=signature.name if signature else None,
        meaning=signature.cause if signature else "",
        remedy=signature.remedy if signature else "",
    )


def has_failed(evidence: Evidence) -> bool:
    """Whether the cluster has ended by a failure that its agents have logged."""
    return any(True for _ in _ends(evidence))


def _ends(evidence: Evidence) -> Iterator[Suspect]:
    return (end for agent in evidence.agents if (end := _end(agent)) is not None)


def _is_silent(evidence: Evidence) -> bool:
    """Whether the agents have been killed: asked to end, they log that, and ask Ray for its state."""
    is_lost = evidence.cluster_is_over and not evidence.state.job and evidence.agents
    return bool(is_lost) and not any(ENDED_BY in line for agent in evidence.agents for line in agent.lines)


def _end(agent: AgentLog) -> Suspect | None:
    outcome = from_output("\n".join(agent.lines))
    if outcome is None or outcome.phase is not Phase.FAILED:
        return None
    lines = [without_ansi(line) for line in agent.lines]
    printed = [line for line in lines if line.strip() and not line.startswith(_DUMP) and not read_line(line).is_quiet]
    exited = next((match for line in printed if (match := _EXITED.search(line)) is not None), None)
    named = _RANK.search(outcome.reason)
    text = outcome.reason if exited is None else _death_of(exited["name"], int(exited["code"]))
    return Suspect(
        error=text,
        lines=tuple(printed[-MOST_LINES:]),
        at_ms=outcome.at * 1000,
        rank=int(named["rank"]) if named is not None else agent.rank,
        process="agent" if exited is None else exited["name"],
        crashed=True,
        signature=recognise(text),
    )


def _death_of(name: str, code: int) -> str:
    """For example `Ray's gcs_server was killed by signal 9, SIGKILL`."""
    number = -code if code < 0 else code - 128
    names = {number.value: number.name for number in signal.Signals}
    how = f"was killed by signal {number}, {names[number]}" if number in names else f"ended with exit code {code}"
    return f"Ray's {name} {how}"
