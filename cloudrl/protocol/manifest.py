"""What a user's file or folder consists of; its address is the SHA-256 of that, so equal content has one place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, Mapping, NamedTuple, Tuple

MAX_FILES = 10_000
MAX_NAME_BYTES = 255  # ext4, xfs: NAME_MAX


class Part(NamedTuple):
    """One file.

    Attributes:
        path: `/`-separated; the name of the whole comes first, so a single file is `mine.parquet` and a file of a
            folder `my-model/config.json`.
        sha256: of the content, in hexadecimal.
    """

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A file, or a folder with everything in it; parts are in the order of their paths."""

    parts: Tuple[Part, ...]

    @property
    def name(self) -> str:
        """The last component of what the user named."""
        return self.parts[0].path.split("/")[0]

    @property
    def size_bytes(self) -> int:
        """All parts together."""
        return sum(part.size_bytes for part in self.parts)

    @cached_property
    def address(self) -> str:
        """The folder below which this is on every node: 32 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.parts).encode()).hexdigest()[:32]

    @cached_property
    def by_path(self) -> Dict[str, Part]:
        """The parts by their paths."""
        return {part.path: part for part in self.parts}

    def to_json(self) -> Dict[str, Any]:
        """JSON-ready form."""
        return {"parts": [list(part) for part in self.parts]}

    @classmethod
    def from_json(cls, value: Any) -> Manifest:
        """Read what `to_json` wrote; paths that could lead out of the folder do not pass.

        Raises:
            ValueError: this is not a manifest.
        """
        rows = value.get("parts") if isinstance(value, Mapping) else None
        if not isinstance(rows, list) or not 0 < len(rows) <= MAX_FILES:
            raise ValueError(f"a manifest names 1 to {MAX_FILES} files")
        parts = tuple(_part(row) for row in rows)
        paths = [part.path for part in parts]
        if paths != sorted(set(paths)) or len({path.split("/")[0] for path in paths}) > 1:
            raise ValueError("the files of a manifest are under one name, each once and in order")
        folders = {"/".join(path.split("/")[:end]) for path in paths for end in range(1, path.count("/") + 1)}
        if folders & set(paths):
            raise ValueError("a file of the manifest is a folder of another")
        return cls(parts)


def _part(row: Any) -> Part:
    if not isinstance(row, list) or len(row) != 3:
        raise ValueError(f"{row!r} is not [path, size, SHA-256]")
    path, size, digest = row
    if not isinstance(path, str) or not all(_is_name(name) for name in path.split("/")):
        raise ValueError(f"{path!r} is not a path below a folder")
    if type(size) is not int or size < 0:
        raise ValueError(f"{size!r} is not a size of a file")
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"{digest!r} is not a SHA-256")
    return Part(path, size, digest)


def _is_name(name: str) -> bool:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False
    return name not in ("", ".", "..") and "\0" not in name and length <= MAX_NAME_BYTES
