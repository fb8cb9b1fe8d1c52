"""What is found: the error that came first, where, what it means and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Sighting:
    """Something else that went wrong within a second of the cause; times are Unix seconds."""

    error: str
    at: float | None = None
    rank: int | None = None
    process: str = ""

    def __str__(self) -> str:
        """For example `rank 1, WorkerDict_0:1 (pid 4242): KeyError: 2`."""
        return ": ".join(filter(None, (_place(self.rank, self.process), self.error)))


@dataclass(frozen=True)
class Cause:
    """The first root cause of a job's failure. All text in it is the job's own, and may hold anything.

    Attributes:
        error: one line, such as `ValueError: no`.
        at: Unix seconds; None where nothing says when.
        rank: of the node; None where it is not known.
        process: on that node: an actor's name or class, a task, `driver`, `raylet`; with its process id.
        signature: name of the row in `known/` that knows it; None where no row does.
        meaning: of the signature, for a person.
        remedy: likewise, with a command or an override.
        lines: the innermost traceback, or the end of the log of a process that died.
        elsewhere: what other processes said in that second.
        code: file, line and function of the user's in which it happened; "" where the traceback has none.
        call: that line with the arguments of its call, as the traceback quotes it; "" where it quotes none.
    """

    error: str
    at: float | None = None
    rank: int | None = None
    process: str = ""
    signature: str | None = None
    meaning: str = ""
    remedy: str = ""
    lines: tuple[str, ...] = ()
    elsewhere: tuple[Sighting, ...] = ()
    code: str = ""
    call: str = ""

    def __str__(self) -> str:
        """The error, its place, and what it means."""
        place = f" ({self.where})" if self.where else ""
        return f"{self.error}{place}" + (f"\n{self.meaning}" if self.meaning else "")

    @property
    def where(self) -> str:
        """For example `rank 1, WorkerDict_0:1 (pid 4242)`; "" where nothing is known."""
        return _place(self.rank, self.process)


class Finding(NamedTuple):
    """What a search for the cause has found.

    Attributes:
        cause: None where nothing is left that says why, or only what follows from something else.
        is_complete: whether all was looked at; else the search took too long, and something may be missing.
    """

    cause: Cause | None
    is_complete: bool = True


def _place(rank: int | None, process: str) -> str:
    """For example `rank 1, raylet`; "" where nothing is known."""
    return ", ".join(filter(None, ("" if rank is None else f"rank {rank}", process)))
