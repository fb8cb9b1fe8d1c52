"""Opens a mirror by its address."""

from __future__ import annotations

import http.client
from functools import partial
from pathlib import Path
from typing import BinaryIO, Dict, Iterable, Mapping, Optional, Protocol

from cloudrl.child_process import Child, self_command
from cloudrl.errors import CloudrlError
from cloudrl.node.mirror_arrow import ArrowStore
from cloudrl.node.mirror_folder import FolderStore, Pace
from cloudrl.node.mirror_s3 import S3Store
from cloudrl.node.s3_calls import S3Calls, place_of
from cloudrl.protocol.failures import ApiError
from cloudrl.protocol.mirrors import parse_mirror

FAILURES = (CloudrlError, ApiError, OSError, ValueError, http.client.HTTPException)
"""Of a mirror that does not answer, or not as it should."""


class Store(Protocol):
    """Files by their keys; see `FolderStore`, whose methods these are."""

    def begin(self) -> None:
        """Make sure that it may be written."""

    def put(self, key: str, content: bytes) -> None:
        """Write a small file."""

    def get(self, key: str, limit_bytes: int) -> Optional[bytes]:
        """A small file; None if absent."""

    def names(self, prefix: str) -> Dict[str, int]:
        """Key -> bytes of the files in a folder."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files."""

    def open(self, key: str) -> BinaryIO:
        """Open a file for reading."""

    def upload(self, key: str, source: BinaryIO, size_bytes: int, crc32: int, pace: Pace) -> None:
        """Have a file there, whole and compared."""

    def warning(self, of_node: Iterable[Path]) -> str:
        """What may make it go with the machine."""


def open_store(mirror: str, environment: Mapping[str, str], log: Path = Path("mirror.log")) -> Store:
    """The store at an address.

    Args:
        mirror: its address.
        environment: has the keys of S3, and what Google's library looks for.
        log: of the children that it needs.

    Raises:
        InputError: the address is not that of a mirror, or keys are missing.
    """
    place = parse_mirror(mirror)
    if place.scheme:
        command = partial(self_command, "mirror", mirror)

        def start(descriptor: int) -> Child:
            return Child(command(str(descriptor)), log=log, env=environment, pass_fds=(descriptor,), bound=False)

        return ArrowStore(start)
    return S3Store(place, S3Calls(place_of(place, environment))) if place.bucket else FolderStore(Path(place.prefix))
