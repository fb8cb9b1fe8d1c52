"""Has copies of what other nodes have saved, or a mirror has, on this node's disk, at the same paths.

A file comes as `.NAME.part`. Its CRC-32 is compared with what the source reads from its own disk, which is synced then,
as the copy is. The files of an order appear together at the end, records last: until then nothing counts them.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import threading
import time
import zlib
from pathlib import Path
from typing import BinaryIO, Callable, ContextManager, Deque, Dict, Iterator, List, Optional, Protocol, Tuple, Union

from cloudrl.errors import CloudrlError
from cloudrl.node.copied_files import clear_copies, note_copies
from cloudrl.node.mirror_saves import read_save
from cloudrl.node.mirror_stores import Store, open_store
from cloudrl.private_files import sync_to_disk
from cloudrl.protocol import routes
from cloudrl.protocol.client import CHECK_TIMEOUT_S, LISTING_TIMEOUT_S, AgentClient
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.mirrors import MIRROR_RANK, file_key
from cloudrl.protocol.step_copies import ClearOrder, CopyOrder, CopyState, WantedFile
from cloudrl.saves.below import Refused, open_folder_below
from cloudrl.saves.copies import refuse_changed, refuse_without_room
from cloudrl.saves.names import is_step_path
from cloudrl.units import size_text

_PIECE_BYTES = 8 << 20
_REST = 1.0
"""After each piece as long a pause as it took: training uses the same network and the same disk."""


class StepCopier:
    """One node's; it works on one order at a time, in a thread of its own.

    Args:
        root: the folder of checkpoints.
        client: of the agent at an address, `10.0.0.2:8266`.
        mirror: opens one by its address.
        free_bytes: of the disk of a folder.
        sleep: waits that many seconds.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        root: Path,
        client: Callable[[str], AgentClient],
        *,
        mirror: Callable[[str], Store] = lambda address: open_store(address, os.environ),
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._client, self._mirror = root, client, mirror
        self._free_bytes, self._sleep, self._clock = free_bytes, sleep, clock
        self._changed = threading.Condition()
        self._orders: Deque[CopyOrder] = Deque()
        self._errors: Dict[str, str] = {}
        self._copied_bytes = 0
        self._urgent = False
        self._thread: Optional[threading.Thread] = None

    def take(self, order: CopyOrder) -> CopyState:
        """Have these files; an order for a step that is under way changes nothing but its urgency.

        Of an order that has failed the next call tells why, and the one after that tries again.

        Raises:
            ApiError: BAD_REQUEST, it names other files than those of one step.
        """
        _check(order)
        with self._changed:
            self._urgent = order.is_urgent
            is_coming = any(known.folder == order.folder for known in self._orders)
            error = "" if is_coming else self._errors.pop(order.folder, "")
            if not is_coming and not error:
                self._orders.append(order)
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            return CopyState(is_coming, self._copied_bytes if is_coming else 0, error)

    def copy(self, order: CopyOrder) -> None:
        """Copy the files of an order.

        Raises:
            OSError, CloudrlError, ApiError, Refused, http.client.HTTPException: nothing of it counts as copied.
        """
        missing = sum(file.size_bytes for file in order.files)
        refuse_without_room(missing, self._free_bytes(self._root))
        parts: List[Path] = []
        try:
            source = self._source(order)
            for file in order.files:
                parts += [self._fetch(source, file)]
            note_copies(self._root, order.folder, order.files)
            for file, part in zip(order.files, parts):  # noqa: B905  Python 3.9
                part.replace(part.parent / file.path.rpartition("/")[2])
            for folder in {part.parent for part in parts}:
                sync_to_disk(folder)
        finally:
            for part in parts:
                with contextlib.suppress(OSError):
                    part.unlink()

    def clear(self, order: ClearOrder) -> int:
        """Remove copies that this node has made; returns how many bytes that were.

        Raises:
            ApiError: BAD_REQUEST, it names other files than those of one step.
            OSError, Refused: a copy cannot be removed.
        """
        _check(order)
        return clear_copies(self._root, order)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._orders))
                order, self._copied_bytes = self._orders[0], 0
            error = ""
            try:
                self.copy(order)
            except (OSError, CloudrlError, ApiError, http.client.HTTPException, ValueError) as failure:
                error = str(failure) or type(failure).__name__
            except Refused:
                error = "a link is in the way"
            with self._changed:
                self._orders.popleft()
                if error:
                    self._errors[order.folder] = error

    def _source(self, order: CopyOrder) -> _Source:
        if order.source == MIRROR_RANK:
            return _Mirror(self._mirror(order.address), order)
        return _Node(self._client(order.address), order.source)

    def _fetch(self, source: _Source, file: WantedFile) -> Path:
        """Bring one file; returns where it is until it gets its name."""
        folder, _, name = file.path.rpartition("/")
        self._make(folder)
        part = self._root / folder / f".{name}.part"
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(part, flags, 0o644), "wb") as target, source.open(file) as stream:
                crc = self._receive(stream, target, file)
                target.flush()
                os.fsync(target.fileno())
            refuse_changed(file, crc, source.sums(file))
            os.utime(part, (file.modified_at, file.modified_at))
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        return part

    def _receive(self, source: BinaryIO, target: BinaryIO, file: WantedFile) -> int:
        """Returns the CRC-32 of what was written."""
        crc = size = 0
        while True:
            began = self._clock()
            piece = source.read(_PIECE_BYTES)
            if not piece:
                break
            size, crc = size + len(piece), zlib.crc32(piece, crc)
            if size > file.size_bytes:
                raise OSError(f"{file.path} has grown while it was copied")
            target.write(piece)
            self._copied_bytes += len(piece)
            if not self._urgent:
                self._sleep(_REST * (self._clock() - began))
        if size != file.size_bytes:
            raise OSError(f"{file.path} broke off after {size_text(size)} of {size_text(file.size_bytes)}")
        return crc

    def _make(self, folder: str) -> None:
        """Make a folder below the root, and pass no link on the way."""
        here = ""
        for name in folder.split("/"):
            parent = open_folder_below(self._root, here)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=parent)
            finally:
                os.close(parent)
            here = f"{here}/{name}" if here else name
        os.close(open_folder_below(self._root, here))


def _check(order: Union[CopyOrder, ClearOrder]) -> None:
    """Raises: ApiError: BAD_REQUEST, a path is not below the step."""
    attempt = order.attempt if isinstance(order, CopyOrder) else ""
    if not is_step_path(order.folder, attempt, *(file.path for file in order.files)):
        raise ApiError(ErrorCode.BAD_REQUEST, f"{order.folder[:200]!r} is not a step, or has no such files")


class _Source(Protocol):
    """Where files of a step come from."""

    def open(self, file: WantedFile) -> ContextManager[BinaryIO]:
        """Its bytes."""

    def sums(self, file: WantedFile) -> Tuple[int, int]:
        """Size and CRC-32 of the original, which outlives a loss of power then."""


class _Node:
    """Another node's agent."""

    def __init__(self, agent: AgentClient, rank: int) -> None:
        self._agent, self._rank = agent, rank

    @contextlib.contextmanager
    def open(self, file: WantedFile) -> Iterator[BinaryIO]:
        request = self._agent.request(
            routes.CHECKPOINT_FILE, rank=self._rank, root=routes.CHECKPOINTS, path=file.path,
            timeout_s=LISTING_TIMEOUT_S,
        )  # fmt: skip
        with self._agent.open(request) as answer:
            yield answer.stream

    def sums(self, file: WantedFile) -> Tuple[int, int]:
        request = self._agent.request(
            routes.CHECKPOINT_FILE, rank=self._rank, root=routes.CHECKPOINTS, path=file.path,
            query={"crc32": 0, "sync": 1}, timeout_s=CHECK_TIMEOUT_S,
        )  # fmt: skip
        return self._agent.call(request, lambda value: (int(value["size_bytes"]), int(value["crc32"])))


class _Mirror:
    """A save in a mirror, compared with its manifest."""

    def __init__(self, store: Store, order: CopyOrder) -> None:
        self._store, self._order = store, order
        save = read_save(store, order.attempt, order.folder)
        self._files = {file.path: file for file in save.files}

    def open(self, file: WantedFile) -> ContextManager[BinaryIO]:
        return self._store.open(file_key(self._order.attempt, file.path, self._order.folder))

    def sums(self, file: WantedFile) -> Tuple[int, int]:
        known = self._files.get(file.path)
        if known is None:
            raise OSError(f"the mirror has no {file.path} of this save")
        return known.size_bytes, known.crc32
