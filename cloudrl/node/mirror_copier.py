"""Copies files of this node's steps to a mirror, in the background."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import io
import os
import platform
import sys
import threading
import time
import zlib
from collections import deque
from pathlib import Path
from typing import Callable, Deque, Dict, FrozenSet, Mapping, Optional, Tuple

from cloudrl.errors import CloudrlError
from cloudrl.node.mirror_outages import is_outage
from cloudrl.node.mirror_stores import Store, open_store
from cloudrl.node.s3_calls import S3Error
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.mirrors import MirrorCheck, MirrorUrl, UploadOrder, UploadState, file_key, parse_mirror
from cloudrl.protocol.step_copies import WantedFile
from cloudrl.saves.below import Refused, open_below
from cloudrl.saves.names import is_step_path

_PIECE_BYTES = 8 << 20
_LONGEST_REST_S = 10.0
"""Storage ends a connection that is silent in the middle of a file (AWS: RequestTimeout, after 20 s or so)."""
_REST = 1.0
"""After each piece as long a pause as it took: training uses the same network and the same disk."""
_KEPT = 8
"""So many orders that are done are remembered."""
_PROBE, _REMOVED_PROBE = ".cloudrl/probe", ".cloudrl/removed-probe"
_S3_HINT = "Its keys are those of the cluster's `secrets:`, AWS_ENDPOINT_URL_S3 and AWS_REGION of its `env:`"
_GCS_HINT = (
    "On machines of Google Cloud their service account needs the role Storage Object User; elsewhere "
    "GOOGLE_APPLICATION_CREDENTIALS names the file of a key on every node, under `env:` of the cluster's file"
)
_SLURM_HINT = "Name a folder that all nodes share; nodes that run containers see those of slurm.volumes alone"
_IO_PRIORITY_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13
_Key = Tuple[str, str, str]
_Upload = Tuple[float, FrozenSet[WantedFile]]


class MirrorCopier:
    """One node's; it works on one order at a time, in a thread of its own.

    Args:
        root: the folder of checkpoints.
        environment: of the node; has the keys of S3.
        log: of the children that some mirrors need.
        store: opens a mirror.
        sleep: waits that many seconds.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        *,
        log: Path = Path("mirror.log"),
        store: Callable[[str, Mapping[str, str], Path], Store] = open_store,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._environment, self._open = root, environment, store
        self._sleep, self._clock, self._log = sleep, clock, log
        self._stores: Dict[str, Store] = {}
        self._changed = threading.Condition()
        self._orders: Deque[UploadOrder] = deque()
        self._done: Dict[_Key, Tuple[_Upload, UploadState]] = {}
        self._errors: Dict[_Key, Tuple[str, int]] = {}
        self._copied_bytes, self._files, self._piece_at, self._began_at, self._rested_s = 0, 0, 0.0, 0.0, 0.0
        self._urgent, self._bytes_per_s = False, 0
        self._thread: Optional[threading.Thread] = None

    def store(self, mirror: str) -> Store:
        """Open a mirror.

        Raises:
            InputError: its address or its keys are missing or wrong.
        """
        if mirror not in self._stores:
            store = self._open(mirror, self._environment, self._log)
            if not parse_mirror(mirror).scheme:
                return store
            self._stores[mirror] = store  # its child waits for the next call
        return self._stores[mirror]

    def take(self, order: UploadOrder) -> UploadState:
        """Copy these files; an order that is under way changes nothing but its pace.

        Of an order that has failed the next call tells why, and the one after that tries again.

        Raises:
            ApiError: BAD_REQUEST, it names other files than those of one step.
        """
        _check(order)
        key = _key_of(order)
        with self._changed:
            self._urgent, self._bytes_per_s = order.is_urgent, order.bytes_per_s
            done = self._done.get(key)
            if done is not None and done[0] == _upload_of(order):
                return done[1]  # a file that was written again has another size or date
            is_coming = any(_key_of(known) == key for known in self._orders)
            error, files = ("", 0) if is_coming else self._errors.pop(key, ("", 0))
            if not is_coming and not error:
                self._orders.append(order)
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            if not is_coming or _key_of(self._orders[0]) != key:
                return UploadState({}, error=error, files=files)  # it waits for another one
            return UploadState({}, self._copied_bytes, self._clock() - self._began_at, files=self._files)

    def copy(self, order: UploadOrder) -> UploadState:
        """Copy the files of an order.

        Raises:
            OSError, CloudrlError, Refused, http.client.HTTPException: one of them is not there.
        """
        self._copied_bytes, self._files, self._began_at, self._rested_s = 0, 0, self._clock(), 0.0
        began, store, sums = self._began_at, self.store(order.mirror), {}
        for file in order.files:
            key = file_key(order.attempt, file.path, order.folder)
            sums[file.path] = self._copy(store, key, file)
            self._files = len(sums)
        seconds = self._clock() - began
        return UploadState(sums, self._copied_bytes, seconds, work_s=seconds - self._rested_s)

    def check(self, mirror: str, token: str, *, writes: bool) -> MirrorCheck:
        """Whether this node can use a mirror, and sees there what rank 0 has put there.

        Args:
            mirror: its address.
            token: what is put there.
            writes: whether this is rank 0.
        """
        try:
            store = self.store(mirror)
            if writes:
                store.begin()
                store.put(_PROBE, token.encode())
                store.names(".cloudrl/")
                store.upload(_REMOVED_PROBE, io.BytesIO(b"-"), 1, zlib.crc32(b"-"), lambda _: None)
                store.remove([_REMOVED_PROBE])  # keys that may not remove would fill the place
            content = store.get(_PROBE, 1 << 10)
        except CloudrlError as error:
            return MirrorCheck(error.message, error.hint or "")
        except (OSError, ValueError, http.client.HTTPException) as error:
            hint = _hint_for(parse_mirror(mirror), error, self._environment.get("CLOUDRL_PROVIDER", ""))
            return MirrorCheck(str(error) or type(error).__name__, hint, may_pass=is_outage(error))
        return MirrorCheck(warning=store.warning((Path("/"), self._root)), is_seen=content == token.encode())

    def _work(self) -> None:
        use_disk_when_idle()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._orders))
                order = self._orders[0]
            error, state = "", None
            try:
                state = self.copy(order)
            except (OSError, CloudrlError, http.client.HTTPException, ValueError) as failure:
                error = str(failure) or type(failure).__name__
            except Refused:
                error = "a link is in the way"
            key = _key_of(order)
            with self._changed:
                self._orders.popleft()
                if state is not None:
                    self._done[key] = _upload_of(order), state
                    for old in list(self._done)[:-_KEPT]:
                        del self._done[old]
                else:
                    self._errors[key] = error, self._files

    def _copy(self, store: Store, key: str, file: WantedFile) -> int:
        """Returns the CRC-32 of the file, which is on its own disk then."""
        self._piece_at = self._clock()
        with open_below(self._root, file.path) as source:
            state, crc = os.fstat(source.fileno()), 0
            if state.st_size != file.size_bytes or abs(state.st_mtime - file.modified_at) > 1.0:
                raise OSError(f"{file.path} has changed")
            os.fsync(source.fileno())
            while piece := source.read(_PIECE_BYTES):
                crc = zlib.crc32(piece, crc)
                self._pace(0)
            source.seek(0)
            store.upload(key, source, file.size_bytes, crc, self._pace)
        return crc

    def _pace(self, count: int) -> None:
        """Wait after a piece of so many bytes."""
        worked_until = self._clock()
        took = worked_until - self._piece_at
        self._copied_bytes += count
        if not self._urgent:
            limit_s = count / self._bytes_per_s - took if self._bytes_per_s else _REST * took
            self._sleep(min(_LONGEST_REST_S, max(0.0, limit_s)))
        self._piece_at = self._clock()
        self._rested_s += self._piece_at - worked_until


def use_disk_when_idle() -> None:
    """Have this thread's reads wait for those of others, where the disk's scheduler knows that (ioprio_set(2))."""
    number = _IO_PRIORITY_SET.get(platform.machine())
    if number is not None and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, _IDLE)


def _hint_for(place: MirrorUrl, error: Exception, provider: str) -> str:
    """What may help a node that cannot use a mirror."""
    if isinstance(error, S3Error):
        return error.hint or "\n".join(filter(None, (_S3_HINT, error.more_hint)))
    if place.bucket:
        return _S3_HINT if place.is_s3 else _GCS_HINT
    return _SLURM_HINT if provider == "slurm" else f"Mount a volume on every node: --set volumes=[NAME:{place.prefix}]"


def _upload_of(order: UploadOrder) -> _Upload:
    return order.began_at, frozenset(order.files)


def _key_of(order: UploadOrder) -> _Key:
    return order.mirror, order.attempt, order.folder


def _check(order: UploadOrder) -> None:
    """Raises: ApiError: BAD_REQUEST, a path is not below the step."""
    if not is_step_path(order.folder, order.attempt, *(file.path for file in order.files)):
        raise ApiError(ErrorCode.BAD_REQUEST, f"{order.folder[:200]!r} is not a step, or has no such files")
