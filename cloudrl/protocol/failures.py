"""What goes wrong: why a node or cluster ended, and how an agent says no to a call. Decisions go by kinds and codes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Optional


class FailureKind(str, enum.Enum):
    """Where it went wrong."""

    SETUP = "setup"
    PREFLIGHT = "preflight"
    DATA = "data"
    MODEL = "model"
    ARTIFACT = "artifact"
    SERVICE = "service"
    AGENT = "agent"
    # those that may pass with a retry
    RAY = "ray"
    LOST = "lost"
    JOIN = "join"
    PULL = "pull"
    DOWN = "down"
    """The end on purpose, to save money."""
    RENEWAL = "renewal"
    """The end on purpose, to be started again before the provider would end the cluster for good."""
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> FailureKind:  # noqa: ARG003  enum's own name for it
        return cls.UNKNOWN

    def __str__(self) -> str:
        return self.value


_PERMANENT = (
    FailureKind.SETUP, FailureKind.PREFLIGHT, FailureKind.DATA, FailureKind.MODEL, FailureKind.ARTIFACT,
    FailureKind.SERVICE, FailureKind.AGENT,
)  # fmt: skip
"""They come back on every retry: the machine, the image, the request or the agent is wrong."""


@dataclass(frozen=True)
class Failure:
    """What failed, on which rank, and whether a retry could help.

    Attributes:
        rank: the node on which it happened.
        reason: one line for a person; nothing is decided by it.
        tail: the last lines of the log that explains it.
        final: no retry shall follow: every rank says so and exits 0.
        transient: a download for which the network is to blame; it may pass with a retry although its kind is
            permanent.
        subject: what it is about, in words that another machine would use, too: a data set, a model, a command, a port.
        code: what happened to it: an error's name, an HTTP status, "timeout"; empty where there is one way only.
        times: how many attempts have ended with it since the run was ready last, this one included.
    """

    kind: FailureKind
    rank: int
    reason: str
    tail: str = ""
    final: bool = False
    transient: bool = False
    subject: str = ""
    code: str = ""
    times: int = 1

    @property
    def permanent(self) -> bool:
        """Whether the same failure is to be expected from a retry."""
        return self.kind in _PERMANENT and not self.transient

    @property
    def text(self) -> str:
        """The reason, and where; of a cluster that ended on purpose or lost a node the reason says it all."""
        says_it_all = self.kind in (FailureKind.LOST, FailureKind.DOWN, FailureKind.RENEWAL)
        return self.reason if says_it_all else f"rank {self.rank}, {self.kind}: {self.reason}"

    @property
    def signature(self) -> str:
        """What two equal failures have in common.

        Not the rank: where all nodes fail alike, another one is the first each time. Not the reason: free space,
        request ids and temporary names change from attempt to attempt.
        """
        return f"{self.kind}|{self.subject}|{self.code}"


@dataclass(frozen=True)
class PastFailure:
    """A failure that has ended attempts of a run: when it did last, in seconds since the epoch, and how many."""

    at: float
    times: int = 1


class ErrorCode(str, enum.Enum):
    """Why an agent refuses a call; each has one HTTP status."""

    BAD_REQUEST = "bad_request", 400
    UNAUTHORIZED = "unauthorized", 401
    FORBIDDEN = "forbidden", 403
    NO_DEBUGGER = "no_debugger", 403
    NOT_FOUND = "not_found", 404
    UNKNOWN_RANK = "unknown_rank", 404
    CONFLICT = "conflict", 409
    LENGTH_REQUIRED = "length_required", 411
    TOO_LARGE = "too_large", 413
    BAD_RANGE = "bad_range", 416
    UNREADABLE = "unreadable", 422
    DAMAGED = "damaged", 422
    WORKER_FAILED = "worker_failed", 500
    UNSUPPORTED = "unsupported", 501
    BAD_GATEWAY = "bad_gateway", 502
    TOO_MANY = "too_many", 503
    UNREACHABLE = "unreachable", 504
    NO_SPACE = "no_space", 507

    status: int

    def __new__(cls, word: str, status: int) -> ErrorCode:
        """The value is the word on the wire."""
        code = str.__new__(cls, word)
        code._value_, code.status = word, status
        return code


class ApiError(Exception):
    """An agent refuses a call: raised where it is found, sent as `to_json`, and raised again by the client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: Optional[ErrorCode] = code
        self.status = code.status

    def to_json(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": str(self), "code": self.code}
