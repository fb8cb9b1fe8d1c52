"""What a node's volume remembers of the jobs that outlive their machines: a file a job, below `.cloudrl/jobs/`."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Iterator, List

from cloudrl.foreign import parse_json
from cloudrl.private_files import write_file
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.saves.names import OURS

MAX_BYTES = 1 << 20
"""Of one record; the command of a job is a few KB."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,190}")
_FORMAT = 1


class JobJournal:
    """The records of a node, also those of another cluster whose volume this was.

    Args:
        checkpoints: the folder of checkpoints.
    """

    def __init__(self, checkpoints: Path) -> None:
        self._folder = checkpoints / OURS / "jobs"

    def write(self, job: DurableJob) -> None:
        """Put a record in place of the one before; it is on the disk when this returns.

        Raises:
            ApiError: BAD_REQUEST, the id of the job is no name of a file.
            OSError: the volume does not take it.
        """
        if not _ID.fullmatch(job.job_id):
            raise ApiError(ErrorCode.BAD_REQUEST, f"{job.job_id[:40]!r} is not the id of a job")
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{job.job_id}.json"
        write_file(path, json.dumps({"format": _FORMAT, **to_json(job)}), mode=0o600)
        _sync(path)

    def read(self) -> List[DurableJob]:
        """All records that can be read; one that was cut off, or is of another release, is left out."""
        return list(self._read())

    def _read(self) -> Iterator[DurableJob]:
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*.json")):
                with contextlib.suppress(OSError, ValueError):
                    value = parse_json(path.read_bytes()[:MAX_BYTES])
                    if isinstance(value, dict) and value.get("format") == _FORMAT:
                        yield from_json(DurableJob, value)


def _sync(path: Path) -> None:
    """Have file and folder on the disk, so that a loss of power does not forget them."""
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
