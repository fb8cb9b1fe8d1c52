"""Starts on which other nodes never came, as rank 0 has recorded them: a run must not start so for ever.

A node that fails before its agent runs (image, sshd, volume, driver) has no agent to count its failures, and dstack
starts such a run again without end: in 0.22.5, server/background/pipeline_tasks/runs/active.py, `retry.duration` counts
from the latest attempt that had a machine. Rank 0 is then ended from outside, without time to write anything.
"""

import json
from pathlib import Path
from typing import Sequence, Tuple

from cloudrl.private_files import write_file
from cloudrl.saves.names import OURS, file_name

ENOUGH = 5
"""So many in a row end the run."""


class PartialStarts:
    """What rank 0's volume remembers of them since all nodes of the run came together last.

    Args:
        folder: of checkpoints, with `.cloudrl/starts/<run_id>.json`.
        run_id: the same for all retries of one run.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._path = folder / OURS / "starts" / f"{file_name(run_id)}.json"
        self._times = 0
        self._missing: Sequence[int] = ()
        self._is_open = False

    @property
    def missing(self) -> Sequence[int]:
        """Ranks that had not been heard of when the latest start ended, or so far in this one."""
        return self._missing

    def begin(self, missing: Sequence[int]) -> int:
        """Record this start if ranks are missing, and return how many before it, in a row, ended without all ranks.

        Raises:
            OSError: the volume cannot be written.
        """
        if not missing:
            self._path.unlink(missing_ok=True)
            return 0
        times, were_missing = self._read()
        if times >= ENOUGH:
            self._missing = were_missing
            return times
        self._is_open, self._times = True, times + 1
        self._write(missing)
        return times

    def note(self, missing: Sequence[int]) -> None:
        """Record which ranks have not been heard of yet; with none of them this start is no longer such a one.

        Raises:
            OSError: the volume cannot be written.
        """
        if not self._is_open or tuple(missing) == self._missing:
            return
        if missing:
            self._write(missing)
        else:
            self.forget()

    def forget(self) -> None:
        """Start the count anew: all ranks came, or this attempt has a reason of its own.

        Raises:
            OSError: the record cannot be removed.
        """
        if self._is_open:
            self._is_open = False
            self._path.unlink()

    def _write(self, missing: Sequence[int]) -> None:
        self._missing = tuple(missing)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self._path, json.dumps({"times": self._times, "missing": list(missing)}), mode=0o666)

    def _read(self) -> Tuple[int, Sequence[int]]:
        """How many, and the ranks that the latest lacked; nothing of a record that is absent or damaged."""
        try:
            value = json.loads(self._path.read_text(encoding="utf-8"))
            return int(value["times"]), tuple(int(rank) for rank in value["missing"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0, ()
