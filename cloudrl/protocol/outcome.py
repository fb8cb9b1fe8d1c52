"""How an agent has ended: a file for whoever started it on this machine, a line of its output for everybody else."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Optional

from cloudrl.foreign import parse_json
from cloudrl.protocol.failures import Failure
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.wire import from_json, to_json

FILE = "outcome.json"
"""In the agent's run folder."""
STARTED = "cloudrl node: "
"""Stands in the first line that an agent prints: a log without it is of a node that had none yet."""
FAILED = "CLOUDRL FAILED: "
"""Begins the last line of a node whose failure is final, for people; where no agent could start, it is all there is."""
ENDED_BY = "ended by "
"""Begins what a node logs when a signal has asked it to end, as `down` does; the signal's name follows."""
RETRY_STATUS = "CLOUDRL_RETRY_STATUS"
"""A variable: the exit status after the loss of a cluster that was READY, so that trying again is worth it."""
FAILED_STATUS = 4
"""The exit status after any other failure, where that variable is set; dstack, for one, wants 0 for a final one."""
_MARK = "CLOUDRL OUTCOME "


@dataclass(frozen=True)
class Outcome:
    """The end of one agent.

    Attributes:
        phase: "failed"; "down", by itself and to save money; "ended", as it was told to.
        reason: one line for people.
        final: whether starting it again would change nothing.
        at: seconds since the epoch.
        failure: all that is known of it.
    """

    phase: Phase
    reason: str
    final: bool
    at: float
    failure: Optional[Failure] = None

    def to_text(self) -> str:
        """The content of the file."""
        return json.dumps(to_json(self))

    def to_line(self) -> str:
        """The line that stands alone in the agent's output."""
        return _MARK + replace(self, failure=None).to_text()


def from_text(text: str) -> Optional[Outcome]:
    """Read the file; None if it is malformed, as a disk that ran full leaves it."""
    try:
        return from_json(Outcome, parse_json(text))
    except ValueError:
        return None


def from_output(output: str) -> Optional[Outcome]:
    """The end that an agent's output tells of, None where it tells of none."""
    lines = [line[len(_MARK) :] for line in output.splitlines() if line.startswith(_MARK)]
    return from_text(lines[-1]) if lines else None
