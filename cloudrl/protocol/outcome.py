"""How an agent has ended: a file for whoever started it on this machine, a line of its output for everybody else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Optional

FILE = "outcome.json"
"""In the agent's run folder."""
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

    phase: str
    reason: str
    final: bool
    at: float
    failure: Optional[Mapping[str, Any]] = None

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self))

    def to_line(self) -> str:
        """The line that stands alone in the agent's output."""
        value = asdict(self)
        del value["failure"]
        return f"{_MARK}{json.dumps(value)}"


def from_json(text: str) -> Optional[Outcome]:
    """Read the file; None where it is none, as a disk that ran full leaves one."""
    try:
        value = json.loads(text)
        return Outcome(
            str(value["phase"]),
            str(value["reason"]),
            bool(value["final"]),
            float(value["at"]),
            value.get("failure"),
        )
    except (ValueError, KeyError, TypeError):
        return None


def from_output(output: str) -> Optional[Outcome]:
    """The end that an agent's output tells of, None where it tells of none."""
    lines = [line[len(_MARK) :] for line in output.splitlines() if line.startswith(_MARK)]
    return from_json(lines[-1]) if lines else None
