"""What the log of a training's driver says of its progress, read as it grows."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Optional, Tuple

from cloudrl.hangs import rollout
from cloudrl.protocol.job_phases import JobPhase

STEP_LINE = re.compile(r"\bstep:([0-9]{1,9}) - ")
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10


class DriverLog:
    """One log.

    Attributes:
        step: the last one that has ended; None before.
        unfinished: what verl's last line about a rollout says; None after a step, and in a new phase.
    """

    def __init__(self) -> None:
        self.step: Optional[int] = None
        self.unfinished: Optional[rollout.Unfinished] = None
        self._offset: Optional[int] = None
        self._phase: Tuple[str, float] = ("", 0.0)

    @property
    def next_step(self) -> Optional[int]:
        """The step that runs, None before the first one has ended."""
        return None if self.step is None else self.step + 1

    def read(self, path: Path) -> None:
        """Take what is new; of a long log that was never read, its end."""
        with suppress(OSError), path.open("rb") as file:
            size = file.seek(0, 2)
            if self._offset is None:
                self._offset = max(0, size - _TAIL_BYTES)
            file.seek(max(self._offset, size - _CHUNK_BYTES))
            text = file.read(_CHUNK_BYTES)
            whole = text.rpartition(b"\n")[0]
            self._offset = file.tell() - (len(text) - len(whole))
            for line in whole.decode("utf-8", "replace").splitlines():
                self._take(line)

    def begin(self, phase: str, since: float) -> None:
        """The phase in which the next lines were written; in a new one, the counts of an earlier rollout are old."""
        if (phase, since) != self._phase:
            self._phase, self.unfinished = (phase, since), None

    def unfinished_in(self, phase: str) -> Optional[rollout.Unfinished]:
        """Prompts that a rollout waits for; None in a phase in which verl says nothing of them."""
        return self.unfinished if phase in (JobPhase.GEN, JobPhase.TESTING) else None

    def waiting_for(self, phase: str) -> str:
        """The same in words; "" in another phase."""
        return str(self.unfinished_in(phase) or "")

    def _take(self, line: str) -> None:
        step = STEP_LINE.search(line)
        if step is not None:
            self.step, self.unfinished = int(step[1]), None
        self.unfinished = rollout.parse(line) or self.unfinished
