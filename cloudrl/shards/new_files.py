"""Torch files to be written: their members, and from which bytes of which files each is made."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType
from cloudrl.shards.pickled import Storage
from cloudrl.shards.torch_zip import Archive

PICKLE, _DATA = "data.pkl", "data/"
_BEFORE, _BEHIND = (".format_version", ".storage_alignment", "byteorder"), ("version",)
"""What torch puts around the storages. Its sum over all, `.data/serialization_id`, is left out: torch reads files
without (torch 2.13, caffe2/serialize/inline_container.cc)."""
_STORAGE = re.compile(r"data/[0-9]{1,10}")
_UNTYPED = "torch.storage.UntypedStorage"


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a member of a rank's file."""

    rank: int
    member: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Content:
    """A member to be written: `literal`, or runs one after the other, then zeros up to its size."""

    name: str
    size_bytes: int
    runs: tuple[Run, ...] = ()
    literal: bytes | None = None


@dataclass(frozen=True)
class NewFile:
    """A file to be written; `root` is its name without `.pt`."""

    root: str
    contents: Sequence[Content]


class AssignedStorage(Storage):
    """A storage of the new file, not of the one that was read."""

    __slots__ = ()


@dataclass(frozen=True)
class StorageList:
    """The storages of a new file, numbered as they come.

    Attributes:
        archive: The file that is read, of rank `rank`.
    """

    archive: Archive
    rank: int
    _contents: list[Content] = field(default_factory=list)
    _assigned: dict[object, AssignedStorage] = field(default_factory=dict)

    def add(
        self, like: Storage, dtype: DType, size_bytes: int, *, runs: Sequence[Run] = (), literal: bytes | None = None,
        same: object = None,
    ) -> AssignedStorage:  # fmt: skip
        """One storage more.

        Args:
            like: One of the file that is read, of the same class and on the same device.
            dtype: Of its elements.
            size_bytes: Of it.
            runs: What is in it.
            literal: The same as bytes.
            same: What is equal for tensors that share a storage; these get the first of it.
        """
        if same is not None and same in self._assigned:
            return self._assigned[same]
        key = str(len(self._contents))
        self._contents.append(Content(_DATA + key, size_bytes, tuple(runs), literal))
        elements = size_bytes if like.kind == _UNTYPED else size_bytes // dtype.size_bytes
        storage = AssignedStorage(like.kind, key, elements, like.device)
        if same is not None:
            self._assigned[same] = storage
        return storage

    def carry(self, storage: Storage) -> Storage:
        """What stands for a storage of the file that is read: the same bytes, or what `add` has made.

        Raises:
            CheckpointError: The file has no such storage.
        """
        if isinstance(storage, AssignedStorage):
            return storage
        name = _DATA + storage.key
        member = self.archive.members.get(name)
        if member is None:
            raise CheckpointError(f"{self.archive.source.label} lacks storage {storage.key}, which its pickle names")
        run = Run(self.rank, name, 0, member.size_bytes)
        made = self.add(storage, DType.UINT8, member.size_bytes, runs=[run], same=("carried", storage.key))
        return AssignedStorage(storage.kind, made.key, storage.elements, storage.device)

    def file(self, root: str, pickle: bytes) -> NewFile:
        """The file with all storages so far, and what else torch puts in there."""
        before, behind = (_copies(self.archive, self.rank, names) for names in (_BEFORE, _BEHIND))
        return NewFile(root, [Content(PICKLE, len(pickle), literal=pickle), *before, *self._contents, *behind])


def renamed(archives: Mapping[int, Archive], rank: int, root: str) -> NewFile:
    """A file as it is, under another name, which it has inside, too."""
    archive = archives[rank]
    storages = [name for name in archive.members if _STORAGE.fullmatch(name)]
    return NewFile(root, _copies(archive, rank, (PICKLE, *_BEFORE, *storages, *_BEHIND)))


def _copies(archive: Archive, rank: int, names: Sequence[str]) -> list[Content]:
    """Members as they are, those that are there."""
    sizes = {name: archive.members[name].size_bytes for name in names if name in archive.members}
    return [Content(name, size, (Run(rank, name, 0, size),)) for name, size in sizes.items()]
