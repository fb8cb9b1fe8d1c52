"""How far a cluster or one of its nodes is: every word for it, from every source, and which of them are the end."""

from __future__ import annotations

import enum


class Phase(str, enum.Enum):
    """A phase; its value is the word on the wire and on the screen.

    `Phase(word)` of an unknown word is `UNKNOWN`: a newer agent or provider may have more of them.
    """

    # before agents answer, as providers say it (dstack 0.22, core/models/runs.py: JobStatus, RunStatus)
    PENDING = "pending"
    SUBMITTED = "submitted"
    PROVISIONING = "provisioning"
    PULLING = "pulling"
    RUNNING = "running"
    # the agent's own, in order; a node is in "fetch" once Ray is up and files are still coming
    START = "start"
    SETUP = "setup"
    PREFLIGHT = "preflight"
    RAY = "ray"
    FETCH = "fetch"
    BARRIER = "barrier"
    READY = "ready"
    # the end
    TERMINATING = "terminating"
    FAILED = "failed"
    ENDED = "ended"
    DOWN = "down"
    TERMINATED = "terminated"
    ABORTED = "aborted"
    DONE = "done"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Phase:  # noqa: ARG003  enum's own name for it
        return cls.UNKNOWN

    @property
    def is_terminal(self) -> bool:
        """Whether it is over, and nothing follows by itself."""
        return self in _TERMINAL

    def __str__(self) -> str:
        return self.value


_TERMINAL = (Phase.FAILED, Phase.ENDED, Phase.DOWN, Phase.TERMINATED, Phase.ABORTED, Phase.DONE)
