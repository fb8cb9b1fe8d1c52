"""What stays of a pickle that is read: which objects are asked for again, and what a record leaves when it is whole."""

import re
from dataclasses import dataclass, field
from typing import Any

_MOST = 1 << 23
_ALL = b"\1" * 256
_SMALL_BYTES = 2048  # of the item of one tensor: searching takes longer than it saves
_YOUNG_BYTES = 64
_SCANNED_BYTES = 1 << 20
_LONG_GET = re.compile(rb"j(?=(...)\0)", re.DOTALL)  # of a number below 2^24


def asked_for(data: bytes) -> bytearray:
    """For each object, by its number, 1 if it may be asked for, else 0; those beyond its end may be.

    A pickler numbers nearly every object that it writes, in case it comes again (BINPUT, MEMOIZE), and few do. They are
    found by what looks like an opcode that asks for one, so a few are thought to be that are not. The short form of
    BINGET asks for the first 256 alone. In protocol 2, each object after these takes six bytes at least.
    """
    if len(data) < _SMALL_BYTES:
        return bytearray(_ALL)
    found = bytearray(min(256 + len(data) // 6, _MOST))
    found[:256] = _ALL
    for start in range(0, len(data), _SCANNED_BYTES):
        for each in set(_LONG_GET.findall(data, start, start + _SCANNED_BYTES + 4)):
            index = int.from_bytes(each, "little")
            if index < len(found):
                found[index] = 1
    return found


@dataclass(slots=True)
class _Open:
    depth: int
    free: int
    kept: int
    lasting: int
    young: set[int] = field(default_factory=set)


class OpenRecords:
    """Records of which something smaller will be made, from their name on the stack until they are whole.

    Then what they were made of is gone, unless a part of it is remembered, or was put into what is older.
    """

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._lasting = 0

    def begin(self, depth: int, free: int, kept: int) -> None:
        """A name was pushed.

        Args:
            depth: Of the stack with it.
            free: Bytes of memory before.
            kept: How many objects were remembered until now.
        """
        while self._open and self._open[-1].depth >= depth:
            self._open.pop()
        self._open.append(_Open(depth, free, kept, self._lasting))

    def created(self, value: Any) -> int:
        """Something was made that can be changed. Returns: the bytes that it takes to know that."""
        if not self._open:
            return 0
        self._open[-1].young.add(id(value))
        return _YOUNG_BYTES

    def changed(self, value: Any) -> None:
        """Something was put into it."""
        if self._open and id(value) not in self._open[-1].young:
            self._lasting += 1

    def end(self, depth: int, kept: int) -> int | None:
        """The record at this depth is whole: how many bytes are free again; None if unknown."""
        while self._open and self._open[-1].depth > depth:
            self._open.pop()
        if not self._open or self._open[-1].depth != depth:
            return None
        record = self._open.pop()
        return record.free if (record.kept, record.lasting) == (kept, self._lasting) else None
