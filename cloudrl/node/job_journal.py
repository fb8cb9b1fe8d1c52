"""What a node's volume remembers of the jobs that outlive their machines: a file a job, below `.cloudrl/jobs/`."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Iterable, Iterator, List

from cloudrl.foreign import parse_json
from cloudrl.private_files import write_file
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.saves.names import OURS
from cloudrl.units import limit_text

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
            ApiError: BAD_REQUEST, the id of the job is no name of a file; TOO_LARGE, it would not be read again.
            OSError: the volume does not take it.
        """
        text = record_text(job)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file(self._folder / f"{job.job_id}.json", text, sync=True)

    def read(self) -> List[DurableJob]:
        """All records that can be read; one that was cut off, or is of another release, is left out."""
        return list(self._read())

    def _read(self) -> Iterator[DurableJob]:
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*.json")):
                with contextlib.suppress(OSError):
                    yield from records_in([path.read_bytes()[:MAX_BYTES]])


def record_text(job: DurableJob) -> str:
    """A record as JSON.

    Raises:
        ApiError: BAD_REQUEST, the id of the job is no name of a file; TOO_LARGE, it would not be read again.
    """
    if not _ID.fullmatch(job.job_id):
        raise ApiError(ErrorCode.BAD_REQUEST, f"{job.job_id[:40]!r} is not the id of a job")
    text = json.dumps({"format": _FORMAT, **to_json(job)})
    if len(text) > MAX_BYTES:
        raise ApiError(ErrorCode.TOO_LARGE, f"the record of {job.job_id} takes more than {limit_text(MAX_BYTES)}")
    return text


def records_in(contents: Iterable[bytes]) -> Iterator[DurableJob]:
    """The jobs of records that can be read; one that was cut off, or is of another release, is left out."""
    for content in contents:
        with contextlib.suppress(ValueError):
            value = parse_json(content)
            if isinstance(value, dict) and value.get("format") == _FORMAT:
                yield from_json(DurableJob, value)
