"""~/.ssh/authorized_keys of the host: a client reaches a container by a jump through its host.

Source: dstack, runner/internal/shim/authorized_keys.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def with_keys(text: str, keys: Iterable[str]) -> str:
    """The file with `keys` at its end; a key that two tasks bring is there twice."""
    return "".join(f"{line}\n" for line in [*text.splitlines(), *(key.strip() for key in keys)])


def without_keys(text: str, keys: Iterable[str]) -> str:
    """The file without any line that holds one of `keys`, whoever else may have brought it."""
    gone = {_blob(key) for key in keys}
    return "".join(f"{line}\n" for line in text.splitlines() if _blob(line) not in gone)


def add(path: Path, keys: list[str]) -> None:
    """Add keys to the file, which must exist."""
    path.write_text(with_keys(path.read_text(), keys))


def remove(path: Path, keys: list[str]) -> None:
    """Take keys out of the file."""
    path.write_text(without_keys(path.read_text(), keys))


def _blob(line: str) -> str:
    words = line.split()
    return words[1] if len(words) > 1 else line
