"""The user's files on one node: taken in piece by piece, checked, and there as a whole or not at all.

    <root>/<address>/<name>...   whole and checked, never changed again
    <root>/<address>.json        its manifest; it comes last, so what has one is whole
    <root>/.<address>.part/      what is still coming; a transfer that broke off goes on where it stopped

The address is that of the content, so nothing comes twice, and no file replaces another user's.
"""

import contextlib
import functools
import json
import os
import shutil
import threading
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterator, Optional, Tuple

from cloudrl.node.fetch import sha256
from cloudrl.node.files import disk_refusal
from cloudrl.private_files import write_file
from cloudrl.protocol.exchange import is_network_error
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.manifest import Manifest, Part
from cloudrl.units import size_text

SPARE_BYTES = 1 << 30
"""Left free on the disk, for whatever else writes there."""
_CHUNK_BYTES = 1 << 20
_MANIFESTS_AT_HAND = 8
"""One of 10 000 files takes a tenth of a second to read, and each call asks for it."""


class Store:
    """The folder with the user's files. Thread-safe; a second sender of a file takes the place of the first.

    Args:
        root: made when the first file comes.
        free_bytes: of the disk of a folder.
    """

    def __init__(
        self, root: Path, *, free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    ) -> None:
        self.root = root
        self._free_bytes = free_bytes
        self._lock = threading.Lock()
        self._turns: Dict[Tuple[str, str], int] = {}

    def manifest(self, address: str) -> Optional[Manifest]:
        """The manifest of what is here as a whole; None for anything else."""
        return self._read(self.root / f"{address}.json")

    def begin(self, manifest: Manifest) -> Dict[str, int]:
        """Make room, unless it is here; returns how many bytes of each part are here already.

        Raises:
            ApiError: NO_SPACE, the disk has no room for it, or cannot be written.
        """
        with self._blamed_on_the_disk(), self._lock:
            self._drop_unchecked(manifest)
            here = self._here(manifest)
            if self.manifest(manifest.address) is None:
                self._make_room(manifest, sum(here.values()))
            return here

    def here(self, address: str) -> Optional[Dict[str, int]]:
        """How many bytes of each part are here; None for what was never begun."""
        with self._blamed_on_the_disk(), self._lock:
            manifest = self._known(address)
            return None if manifest is None else self._here(manifest)

    def write(self, address: str, path: str, offset: int, count: int, source: BinaryIO) -> None:
        """Add bytes to a part, and check it when it is complete.

        Raises:
            ApiError: NOT_FOUND, it was not begun; CONFLICT, the bytes do not follow on what is here, or another sender
                has taken over; DAMAGED, the part is complete and has to come again; NO_SPACE, the disk is full.
            OSError: the connection of the source has broken.
        """
        with self._blamed_on_the_disk():
            manifest = self._known(address)
            part = None if manifest is None else manifest.by_path.get(path)
            if manifest is None or part is None:
                raise ApiError(ErrorCode.NOT_FOUND, f"{address}/{path} was not announced")
            if self.manifest(address) is None:
                self._receive(manifest, part, offset, count, source)

    # -- inside ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _blamed_on_the_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            if is_network_error(failure):
                raise
            raise disk_refusal(failure, str(self.root)) from failure

    def _known(self, address: str) -> Optional[Manifest]:
        return self.manifest(address) or self._read(self._coming(address) / "manifest.json")

    def _read(self, path: Path) -> Optional[Manifest]:
        """None if absent, or half of one: the machine went down."""
        try:
            state = path.stat()
            return _parse(path, (state.st_ino, state.st_size, state.st_mtime_ns))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def _coming(self, address: str) -> Path:
        return self.root / f".{address}.part"

    def _places(self, manifest: Manifest, part: Part) -> Tuple[Path, Path]:
        """(where the bytes of a part arrive, where they are once they are checked)."""
        folder = self._coming(manifest.address)
        return folder / "arriving" / part.path, folder / "checked" / part.path

    def _make_room(self, manifest: Manifest, here_bytes: int) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        missing = manifest.size_bytes - here_bytes
        free = self._free_bytes(self.root)
        if missing + SPARE_BYTES > free:
            room = f"{size_text(free)} free, of which {size_text(SPARE_BYTES)} are kept"
            reason = f"{size_text(missing)} are to come, and the disk of {self.root} has {room}"
            raise ApiError(ErrorCode.NO_SPACE, f"{manifest.name}: {reason}")
        folder = self._coming(manifest.address)
        folder.mkdir(exist_ok=True)
        if self._read(folder / "manifest.json") is None:
            write_file(folder / "manifest.json", json.dumps(manifest.to_json()), mode=0o666)
        for part in manifest.parts:
            if part.size_bytes == 0:
                self._take(manifest, part)
        self._appear(manifest)  # also what the last agent has checked and not got to

    def _drop_unchecked(self, manifest: Manifest) -> None:
        """Remove parts that have all their bytes, and that an earlier agent has not got to check: they come again."""
        arriving = self._coming(manifest.address) / "arriving"
        for path, size in list(_sizes_below(arriving)):
            part = manifest.by_path.get(path)
            if (manifest.address, path) not in self._turns and (part is None or size >= part.size_bytes):
                (arriving / path).unlink()

    def _here(self, manifest: Manifest) -> Dict[str, int]:
        """Folders are listed for it: to ask for each file would take seconds for thousands, at each call."""
        if self.manifest(manifest.address) is not None:
            return {part.path: part.size_bytes for part in manifest.parts}
        folder = self._coming(manifest.address)
        arriving, checked = _sizes_below(folder / "arriving"), _sizes_below(folder / "checked")
        return {**dict.fromkeys(manifest.by_path, 0), **dict(arriving), **dict(checked)}

    def _receive(self, manifest: Manifest, part: Part, offset: int, count: int, source: BinaryIO) -> None:
        arriving, checked = self._places(manifest, part)
        key = (manifest.address, part.path)
        with self._lock:
            size = arriving.stat().st_size if arriving.exists() else 0
            if checked.exists() or self.manifest(manifest.address) is not None:
                size = part.size_bytes
            if offset != size or offset + count > part.size_bytes:
                reason = f"{part.path} has {size} of {part.size_bytes} bytes: send from there"
                raise ApiError(ErrorCode.CONFLICT, reason)
            turn = self._turns[key] = self._turns.get(key, 0) + 1
        arriving.parent.mkdir(parents=True, exist_ok=True)
        with arriving.open("ab", buffering=0) as out:
            while count:
                chunk = source.read(min(_CHUNK_BYTES, count))
                if not chunk:
                    return  # the sender is gone; it asks again from where this ends
                with self._lock:
                    if self._turns[key] != turn:
                        raise ApiError(ErrorCode.CONFLICT, f"another sender has gone on with {part.path}")
                    _write(out, chunk)
                count -= len(chunk)
        if arriving.stat().st_size == part.size_bytes:
            self._check(manifest, part)

    def _check(self, manifest: Manifest, part: Part) -> None:
        arriving, checked = self._places(manifest, part)
        try:
            digest = sha256(arriving)
        except FileNotFoundError:  # another sender of the same bytes was faster
            return
        with self._lock:
            if checked.exists() or self.manifest(manifest.address) is not None:
                return
            if digest != part.sha256:
                arriving.unlink()
                reason = f"{part.path} arrived damaged: its SHA-256 is not the announced one"
                raise ApiError(ErrorCode.DAMAGED, reason)
            self._take(manifest, part)
            self._appear(manifest)

    def _take(self, manifest: Manifest, part: Part) -> None:
        """Put a part in its place."""
        arriving, checked = self._places(manifest, part)
        checked.parent.mkdir(parents=True, exist_ok=True)
        if part.size_bytes == 0:
            checked.touch()
        else:
            arriving.replace(checked)

    def _appear(self, manifest: Manifest) -> None:
        """With the last of the parts, all appear."""
        folder, complete = self._coming(manifest.address), self.root / manifest.address
        # they come in order: while any is missing, the last one is
        if all((folder / "checked" / part.path).exists() for part in reversed(manifest.parts)):
            shutil.rmtree(complete, ignore_errors=True)  # of a machine that went down between the next two lines
            (folder / "checked").replace(complete)
            (folder / "manifest.json").replace(self.root / f"{manifest.address}.json")
            shutil.rmtree(folder)


def _write(out: BinaryIO, chunk: bytes) -> None:
    remaining = memoryview(chunk)
    while remaining:
        remaining = remaining[out.write(remaining) :]


@functools.lru_cache(_MANIFESTS_AT_HAND)
def _parse(path: Path, _state: Tuple[int, ...]) -> Manifest:
    """A manifest on disk, read once for each state of its file."""
    return Manifest.from_json(json.loads(path.read_text()))


def _sizes_below(folder: Path, above: str = "") -> Iterator[Tuple[str, int]]:
    """(path, bytes) of all files below a folder, paths as a manifest has them; none while it is not there."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes_below(Path(entry.path), f"{above}{entry.name}/")
                else:
                    yield above + entry.name, entry.stat().st_size
    except FileNotFoundError:
        return
