"""The user's files on one node: taken in piece by piece, checked, and there as a whole or not at all.

    <root>/<address>/<name>...   whole and checked, never changed again
    <root>/<address>.json        its manifest; it comes last, so what has one is whole
    <root>/.<address>.part/      what is still coming; a transfer that broke off goes on where it stopped

The address is that of the content, so nothing comes twice, and nobody's file replaces another's.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from typing import TYPE_CHECKING, BinaryIO, Callable, Dict, Optional, Tuple

from cloudrl.node.fetch import sha256
from cloudrl.node.manifest import Manifest, Part

if TYPE_CHECKING:
    from pathlib import Path

SPARE_BYTES = 1 << 30
"""Left free on the disk, for whatever else writes there."""
_CHUNK_BYTES = 1 << 20
_ADDRESS = re.compile(r"[0-9a-f]{32}")


class UploadError(Exception):
    """The other side is told why, with this HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Store:
    """The folder with the user's files. Thread-safe; a second sender of a file takes the place of the first.

    Args:
        root: made when the first file comes.
        free_bytes: of the disk of a folder.
    """

    def __init__(self, root: Path, *, free_bytes: Callable[[Path], int] = _free_bytes) -> None:
        self.root = root
        self._free_bytes = free_bytes
        self._lock = threading.Lock()
        self._turns: Dict[Tuple[str, int], int] = {}

    def whole(self, address: str) -> Optional[Manifest]:
        """The manifest of what is here as a whole; None for anything else."""
        return _read_manifest(self.root / f"{address}.json") if _ADDRESS.fullmatch(address) else None

    def begin(self, manifest: Manifest) -> Dict[str, int]:
        """Make room, unless it is here; returns how many bytes of each part are here already.

        Raises:
            UploadError: 507, the disk has no room for it.
        """
        with self._lock:
            if self.whole(manifest.address) is None:
                self._make_room(manifest)
            return self._here(manifest)

    def here(self, address: str) -> Optional[Dict[str, int]]:
        """How many bytes of each part are here; None for what was never begun."""
        manifest = self._known(address)
        return None if manifest is None else self._here(manifest)

    def write(self, address: str, path: str, offset: int, count: int, source: BinaryIO) -> int:
        """Add bytes to a part, and check it when it is complete; returns how many are here now.

        Raises:
            UploadError: 404, nobody began it; 409, the bytes do not follow on what is here, or another sender has
                taken over; 422, the part is complete and damaged, and has to come again.
        """
        manifest = self._known(address)
        try:
            part = manifest.part(path) if manifest is not None else None
        except KeyError:
            part = None
        if manifest is None or part is None:
            raise UploadError(f"{address}/{path} was not announced", 404)
        if self.whole(address) is None:
            self._receive(manifest, part, offset, count, source)
        return self._here(manifest)[path]

    # -- inside ---------------------------------------------------------------------------------------------

    def _known(self, address: str) -> Optional[Manifest]:
        return self.whole(address) or _read_manifest(self._coming(address) / "manifest.json")

    def _coming(self, address: str) -> Path:
        return self.root / f".{address}.part"

    def _place(self, manifest: Manifest, part: Part) -> Tuple[Path, Path]:
        """(where the bytes of a part arrive, where they lie once they are checked)."""
        folder = self._coming(manifest.address)
        return folder / "arriving" / str(manifest.parts.index(part)), folder / "checked" / part.path

    def _make_room(self, manifest: Manifest) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        missing = manifest.size_bytes - sum(self._here(manifest).values())
        free = self._free_bytes(self.root)
        if missing + SPARE_BYTES > free:
            left = f"{size_text(free)} free, of which {size_text(SPARE_BYTES)} are kept"
            reason = f"{size_text(missing)} are to come, and the disk of {self.root} has {left}"
            raise UploadError(f"{manifest.name}: {reason}", 507)
        folder = self._coming(manifest.address)
        (folder / "arriving").mkdir(parents=True, exist_ok=True)
        if _read_manifest(folder / "manifest.json") is None:
            draft = folder / "manifest.json.part"
            draft.write_text(json.dumps(manifest.to_json()))
            draft.replace(folder / "manifest.json")
        for part in manifest.parts:
            if part.size_bytes == 0:
                self._take(manifest, part)

    def _here(self, manifest: Manifest) -> Dict[str, int]:
        if self.whole(manifest.address) is not None:
            return {part.path: part.size_bytes for part in manifest.parts}
        return {part.path: self._size(manifest, part) for part in manifest.parts}

    def _size(self, manifest: Manifest, part: Part) -> int:
        arriving, taken = self._place(manifest, part)
        if taken.exists():
            return part.size_bytes
        try:
            return arriving.stat().st_size
        except FileNotFoundError:
            return 0

    def _receive(self, manifest: Manifest, part: Part, offset: int, count: int, source: BinaryIO) -> None:
        arriving, _ = self._place(manifest, part)
        key = (manifest.address, manifest.parts.index(part))
        with self._lock:
            size = self._size(manifest, part)
            if offset != size or offset + count > part.size_bytes:
                raise UploadError(f"{part.path} has {size} of {part.size_bytes} bytes: send from there", 409)
            turn = self._turns[key] = self._turns.get(key, 0) + 1
        with arriving.open("ab", buffering=0) as out:
            while count:
                chunk = source.read(min(_CHUNK_BYTES, count))
                if not chunk:
                    return  # the sender is gone; it asks again from where this ends
                with self._lock:
                    if self._turns[key] != turn:
                        raise UploadError(f"another sender has gone on with {part.path}", 409)
                    _write(out, chunk, part)
                count -= len(chunk)
        if arriving.stat().st_size == part.size_bytes:
            self._check(manifest, part)

    def _check(self, manifest: Manifest, part: Part) -> None:
        arriving, taken = self._place(manifest, part)
        try:
            digest = sha256(arriving)
        except FileNotFoundError:  # another sender of the same bytes was faster
            return
        with self._lock:
            if taken.exists() or self.whole(manifest.address) is not None:
                return
            if digest != part.sha256:
                arriving.unlink()
                raise UploadError(f"{part.path} arrived damaged: its SHA-256 is not the announced one", 422)
            self._take(manifest, part)

    def _take(self, manifest: Manifest, part: Part) -> None:
        """Put a part in its place; with the last of them, all appear."""
        arriving, taken = self._place(manifest, part)
        taken.parent.mkdir(parents=True, exist_ok=True)
        if part.size_bytes == 0:
            taken.touch()
        else:
            arriving.replace(taken)
        folder, whole = self._coming(manifest.address), self.root / manifest.address
        if all((folder / "checked" / other.path).exists() for other in manifest.parts):
            shutil.rmtree(whole, ignore_errors=True)  # of a machine that went down between the next two lines
            (folder / "checked").replace(whole)
            (folder / "manifest.json").replace(self.root / f"{manifest.address}.json")
            shutil.rmtree(folder)


def _write(out: BinaryIO, chunk: bytes, part: Part) -> None:
    try:
        left = memoryview(chunk)
        while left:
            left = left[out.write(left) :]
    except OSError as failure:
        raise UploadError(f"{part.path} cannot be written: {failure.strerror}", 507) from failure


def _read_manifest(path: Path) -> Optional[Manifest]:
    try:
        return Manifest.from_json(json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # half written: the machine went down
        return None


def size_text(size_bytes: int) -> str:
    """A size for reading."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes / 2**10:.1f} KiB"
