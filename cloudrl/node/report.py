"""What one node says of itself, as it travels in heartbeats and in the status."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional

from cloudrl.node.failure import Failure


@dataclass(frozen=True)
class Report:
    """One node.

    Attributes:
        phase: one of `cloudrl.protocol.phases.AGENT_PHASES`.
        detail: what it does at the moment, for a person.
        seconds: how long each finished step took.
        ray_up, fetched: the two halves of "at the barrier".
        rollouts: rollout engines in this node's Python.
        models: model as asked for -> folder on this node.
        blocked: ports of rank 0's Ray that this node cannot reach, though Ray is up here.
        replicated: what clients have sent for their jobs -> "whole", bytes that are here, or
            "failed: ..." with the reason.
        cost_before: US dollars that earlier attempts of the run have cost, as this node's volume remembers.
        known_failures: failures that ended earlier attempts, likewise.
    """

    rank: int
    ip: str
    hostname: str
    agent_port: int
    phase: str = "start"
    detail: str = ""
    ray_version: Optional[str] = None
    python_version: str = ""
    verl_version: Optional[str] = None
    rollouts: List[str] = field(default_factory=list)
    gpus: int = 0
    cpus: int = 0
    ray_up: bool = False
    fetched: bool = False
    models: Dict[str, str] = field(default_factory=dict)
    seconds: Dict[str, float] = field(default_factory=dict)
    blocked: List[str] = field(default_factory=list)
    replicated: Dict[str, str] = field(default_factory=dict)
    cost_before: float = 0.0
    known_failures: Dict[str, float] = field(default_factory=dict)
    failure: Optional[Failure] = None

    def to_json(self) -> Dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "failure": self.failure.to_json() if self.failure else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Read what `to_json` wrote. Unknown keys are ignored: nodes may run newer agents.

        Raises:
            KeyError, TypeError, ValueError: this is no report.
        """
        if not isinstance(data, dict):
            raise TypeError(f"a report is a JSON object, not {type(data).__name__}")
        given = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        given["failure"] = Failure.from_json(given.get("failure"))
        for name, kind in _KINDS.items():
            if name in given and not isinstance(given[name], kind):
                raise TypeError(f"{name} is {given[name]!r}")
        return cls(**given)


_TYPES: Dict[str, Any] = {
    "int": int,
    "str": str,
    "bool": bool,
    "float": (int, float),
    "Optional[str]": (str, type(None)),
    "Dict[str, str]": dict,
    "Dict[str, float]": dict,
    "List[str]": list,
    "Optional[Failure]": (Failure, type(None)),
}
_KINDS = {f.name: _TYPES[str(f.type)] for f in fields(Report)}
