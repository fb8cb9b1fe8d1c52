"""A folder as a package for Ray: what goes in, how large it is, and the same bytes for the same files.

What Ray's client does by default (Ray 2.60, _private/runtime_env/packaging.py) holds here too: `.gitignore`
and `.rayignore` count in every folder, `excludes` are patterns of the same kind, links are followed. But
more folders are left out, a circle of links ends, the size is known before anything is read, and the zip is
compressed.
"""

import hashlib
import io
import json
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cloudrl.errors import InputError
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES
from cloudrl.units import limit_text, size_text

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

EXCLUDED_FOLDERS = (
    ".git",
    ".venv",
    "venv",
    "__pycache__",
    "node_modules",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".ipynb_checkpoints",
    "wandb",
)
"""Folders left out unless `excludes` brings one back with `!wandb`; the first four are Ray's own defaults
(Ray 2.60, ray_constants.py: RAY_RUNTIME_ENV_DEFAULT_EXCLUDES)."""
_IGNORE_FILES = (".gitignore", ".rayignore")
_SHOWN_FILES = 10
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first day that a zip file knows
_Rules: TypeAlias = "tuple[str, GitIgnoreSpec]"
"""A folder, as "" or with a `/` at its end, and the patterns that hold below it."""


@dataclass(frozen=True)
class Entry:
    """A file, or an empty folder, of a package."""

    name: str
    """Path below the folder, with `/`; a folder's ends with one."""
    path: Path
    size_bytes: int
    mode: int

    @property
    def is_folder(self) -> bool:
        """Whether it is an empty folder."""
        return self.name.endswith("/")

    @property
    def is_executable(self) -> bool:
        """All that counts of its mode, as in git: the umask of who submits should not."""
        return bool(self.mode & 0o100)


@dataclass(frozen=True)
class PackagePlan:
    """The zip file that is going to be made of a folder, and of files that are added to it."""

    entries: tuple[Entry, ...]
    digests: tuple[str, ...] = field(repr=False)
    """SHA-256 of each."""
    excluded: tuple[str, ...] = ()
    """Those of `EXCLUDED_FOLDERS` that are in the folder itself."""

    @property
    def name(self) -> str:
        """After its content, so that the same is uploaded once; Ray collects packages by the prefix."""
        rows = [
            [entry.name, entry.is_executable, digest] for entry, digest in zip(self.entries, self.digests, strict=True)
        ]
        text = json.dumps(rows).encode("utf-8", "surrogatepass")
        return f"_ray_pkg_{hashlib.sha256(text).hexdigest()[:32]}.zip"

    @property
    def uri(self) -> str:
        """What `working_dir` says in the request."""
        return f"gcs://{self.name}"

    @property
    def size_bytes(self) -> int:
        """All files together, before they are compressed."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def files(self) -> int:
        """How many files there are; an empty folder does not count."""
        return sum(not entry.is_folder for entry in self.entries)


def too_large(what: str, entries: Sequence[Entry]) -> InputError:
    """The error for what does not fit into a package, with the largest files of it."""
    largest = sorted(entries, key=lambda entry: (-entry.size_bytes, entry.name))[:_SHOWN_FILES]
    rows = "\n".join(f"  {size_text(entry.size_bytes):>10}  {entry.name}" for entry in largest)
    return InputError(
        f"{what} has {size_text(sum(entry.size_bytes for entry in entries))} in {len(entries)} files, "
        f"and Ray takes at most {limit_text(PACKAGE_LIMIT_BYTES)}. The largest:\n{rows}",
        hint="Name what the job does not need in .rayignore, or under excludes in a --runtime-env file",
    )


def scan(folder: Path, excludes: Sequence[str] = (), *, what: str | None = None) -> tuple[Entry, ...]:
    """Find what would go along, without reading any file.

    Args:
        folder: What is sent.
        excludes: Patterns as in `.gitignore`, relative to the folder.
        what: How a message calls it; None is `--working-dir` and its path.

    Raises:
        InputError: It is not a folder, or cannot be listed.
    """
    from pathspec import GitIgnoreSpec

    label = what or f"--working-dir {folder}"
    if not folder.is_dir():
        raise InputError(f"{label} {'is not a folder' if folder.exists() else 'does not exist'}")
    rules: list[_Rules] = [("", GitIgnoreSpec.from_lines([*EXCLUDED_FOLDERS, *excludes]))]
    try:
        return tuple(_walk(folder, "", rules, frozenset()))
    except OSError as failure:
        raise InputError(f"{label}: {failure.filename}: {failure.strerror}") from failure


def _walk(folder: Path, base: str, rules: list[_Rules], above: frozenset[tuple[int, int]]) -> Iterator[Entry]:
    """Entries below `folder`, in an order that depends on nothing but names."""
    here = folder.stat()
    identity = (here.st_dev, here.st_ino)
    if identity in above:  # a link to a folder that it is in
        return
    rules = [*rules, *_ignore_files(folder, base)]

    def is_excluded(name: str) -> bool:
        return any(patterns.match_file(name.removeprefix(place)) for place, patterns in rules)

    empty = True
    for child in sorted(os.scandir(folder), key=lambda entry: entry.name):
        empty = False
        name = base + child.name
        if os.path.isdir(child.path):  # noqa: PTH112 - False, not an error, for a link that leads nowhere
            if not is_excluded(f"{name}/"):
                yield from _walk(Path(child.path), f"{name}/", rules, above | {identity})
        elif os.path.isfile(child.path) and not is_excluded(name):  # noqa: PTH113
            info = child.stat()
            yield Entry(name, Path(child.path), info.st_size, info.st_mode)
    if empty and base:
        yield Entry(base, folder, 0, here.st_mode)


def _ignore_files(folder: Path, base: str) -> Iterator[_Rules]:
    from pathspec import GitIgnoreSpec

    for name in _IGNORE_FILES:
        path = folder / name
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            yield base, GitIgnoreSpec.from_lines(lines)


def zip_package(plan: PackagePlan) -> bytes:
    """Make the zip file: the same bytes for the same files.

    Raises:
        InputError: A file cannot be read, is not what it was when it was planned, or all of it is too large.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, digest in zip(plan.entries, plan.digests, strict=True):
            info = zipfile.ZipInfo(entry.name, _EPOCH)
            kind = stat.S_IFDIR if entry.is_folder else stat.S_IFREG
            info.external_attr = (kind | (0o755 if entry.is_folder or entry.is_executable else 0o644)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            try:
                content = b"" if entry.is_folder else entry.path.read_bytes()
                archive.writestr(info, content)
            except (OSError, UnicodeEncodeError) as failure:
                raise InputError(f"{entry.path} cannot be packed: {failure}") from failure
            if not entry.is_folder and hashlib.sha256(content).hexdigest() != digest:
                raise InputError(
                    f"{entry.path} has changed since it was looked at",
                    hint="Submit again\nA file that a program writes to, such as a log: name it in .rayignore",
                )
    if packed.tell() > PACKAGE_LIMIT_BYTES:
        raise too_large("the job's package", plan.entries)
    return packed.getvalue()
