"""What the mirrors of durable jobs remember of the jobs themselves: their records, and what they were sent with."""

from __future__ import annotations

import json
import threading
import zlib
from typing import BinaryIO, Callable, Dict, List, Optional, Set, Tuple

from cloudrl.foreign import parse_json
from cloudrl.node.job_files import addresses_of
from cloudrl.node.job_journal import MAX_BYTES, record_text, records_in
from cloudrl.node.mirror_progress import MirrorProgress, record_subject
from cloudrl.node.mirror_stores import FAILURES, Store
from cloudrl.node.uploads import Store as Files
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.manifest import Manifest

_JOBS, _FILES = ".cloudrl/jobs/", ".cloudrl/files/"
_MANIFEST_BYTES = 32 << 20


class MirroredJobs:
    """Writes and reads records of jobs, and the files that they need. Thread-safe.

    Args:
        store: opens a mirror.
        files: what users have sent to rank 0.
        progress: hears which records a mirror refuses.
    """

    def __init__(self, store: Callable[[str], Store], files: Optional[Files], progress: MirrorProgress) -> None:
        self._store, self._files, self._progress = store, files, progress
        self._to_record: Dict[str, DurableJob] = {}
        self._lock = threading.Lock()

    def take(self, job: DurableJob) -> Tuple[DurableJob, ...]:
        """Have in the mirror what a start of the job without any disk needs, and on rank 0 what only the mirror has.

        Returns:
            What the mirror remembers of jobs.

        Raises:
            ApiError: CONFLICT, the mirror does not take it.
        """
        try:
            store = self._store(job.mirror)
            for address in addresses_of(job):
                self._exchange(store, address)
            if store.get(_record_key(job), MAX_BYTES) is None:  # else the answer to an earlier call was lost
                store.put(_record_key(job), record_text(job).encode())
            return tuple(self.records(job.mirror))
        except FAILURES as error:
            raise ApiError(ErrorCode.CONFLICT, f"the mirror {job.mirror} does not take it: {error}") from error

    def bring_files(self, job: DurableJob) -> None:
        """Have on rank 0 what a job was sent with, as far as its mirror has it.

        Raises:
            OSError, CloudrlError, ApiError, ValueError, http.client.HTTPException: the mirror does not answer.
        """
        store = self._store(job.mirror)
        for address in addresses_of(job):
            self._fetch(store, address)

    def _exchange(self, store: Store, address: str) -> None:
        assert self._files is not None  # noqa: S101  rank 0 has them
        manifest = self._files.manifest(address)
        if manifest is None:
            self._fetch(store, address)
        elif store.get(f"{_FILES}{address}.json", _MANIFEST_BYTES) is None:
            for part in manifest.parts:
                path = self._files.root / address / part.path
                with path.open("rb") as source:
                    crc = _crc(source)
                    source.seek(0)
                    store.upload(f"{_FILES}{address}/{part.path}", source, part.size_bytes, crc, lambda _: None)
            store.put(f"{_FILES}{address}.json", json.dumps(manifest.to_json()).encode())

    def _fetch(self, store: Store, address: str) -> None:
        assert self._files is not None  # noqa: S101  rank 0 has them
        if self._files.manifest(address) is not None:
            return
        content = store.get(f"{_FILES}{address}.json", _MANIFEST_BYTES)
        if content is None:
            return
        manifest = Manifest.from_json(parse_json(content))
        here = self._files.begin(manifest)
        for part in manifest.parts:
            offset = here[part.path]
            if offset < part.size_bytes:
                with store.open(f"{_FILES}{address}/{part.path}") as source:
                    source.seek(offset)
                    self._files.write(address, part.path, offset, part.size_bytes - offset, source)

    def note(self, job: DurableJob) -> None:
        """Have the record of a job in its mirror soon; returns at once."""
        if job.mirror:
            with self._lock:
                self._to_record[job.job_id] = job

    def flush(self) -> Set[str]:
        """Write records that have changed; returns the ids of the jobs whose records are left."""
        with self._lock:
            waiting = list(self._to_record.values())
        left: Set[str] = set()
        for job in waiting:
            subject = record_subject(job.mirror, job.run)
            try:
                self._store(job.mirror).put(_record_key(job), record_text(job).encode())
            except FAILURES as error:
                self._progress.tell(subject, f"warning: the mirror {job.mirror} does not record {job.job_id}: {error}")
                left.add(job.job_id)
                continue
            self._progress.tell(subject, "")
            with self._lock:
                if self._to_record.get(job.job_id) is job:
                    del self._to_record[job.job_id]
        return left

    def records(self, mirror: str) -> List[DurableJob]:
        """The jobs that a mirror remembers.

        Raises:
            OSError, CloudrlError, http.client.HTTPException: it does not answer.
        """
        store = self._store(mirror)
        contents = (store.get(key, MAX_BYTES) for key in sorted(store.names(_JOBS)) if key.endswith(".json"))
        return list(records_in(content for content in contents if content is not None))


def _crc(source: BinaryIO) -> int:
    crc = 0
    while piece := source.read(1 << 20):
        crc = zlib.crc32(piece, crc)
    return crc


def _record_key(job: DurableJob) -> str:
    return f"{_JOBS}{job.job_id}.json"
