"""Writes a pickle of what `read_pickle` has read, with the opcodes of protocol 2, as `torch.save` writes them.

What is one object in memory is one object in the pickle. Opcodes: CPython 3.11, Lib/pickle.py.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.pickled import OTHER_KEY, Name, PickledDict, PickledObject, Storage

_BATCH = 1000
"""Items of a list or a dict between two marks, as CPython writes them."""
_TUPLES = {1: b"\x85", 2: b"\x86", 3: b"\x87"}


def write_pickle(value: Any, stored: Callable[[Storage], Storage], label: str) -> bytes:
    """Pickle a value.

    Args:
        value: Plain data, `Name`, `PickledObject`, `PickledDict` and `Storage`.
        stored: What is written in place of a storage, whose key is another in the new file.
        label: Of the file that it was read from, for messages.

    Raises:
        CheckpointError: The reading has left out something of it, or it is nested too deeply.
    """
    try:
        return _Writer(stored).dump(value)
    except (_Unwritable, RecursionError, TypeError, ValueError, OverflowError, struct.error) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CheckpointError(f"the pickle of {label} cannot be written again: {why}") from error


class _Unwritable(Exception):
    pass


class _Writer:
    def __init__(self, stored: Callable[[Storage], Storage]) -> None:
        self._stored = stored
        self._out = bytearray(b"\x80\x02")
        self._memo: dict[Any, int] = {}

    def dump(self, value: Any) -> bytes:
        self._save(value)
        return bytes(self._out + b".")

    def _save(self, value: Any) -> None:
        key = value if isinstance(value, str | Name) else id(value)
        if (index := self._memo.get(key)) is not None:
            self._out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
            return
        if isinstance(value, PickledObject):
            self._record(value)
        elif isinstance(value, dict):
            self._dict(value)
        elif isinstance(value, list):
            self._list(value)
        elif isinstance(value, tuple) and value:
            self._tuple(value)
        elif isinstance(value, Storage):
            self._storage(self._stored(value))
        elif isinstance(value, Name):
            module, _, name = value.text.rpartition(".")
            self._out += f"c{module}\n{name}\n".encode()
            self._remember(value)
        elif isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
            self._out += b"X" + struct.pack("<I", len(data)) + data
            self._remember(value)
        else:
            self._out += _plain(value)

    def _remember(self, key: Any) -> None:
        """Put what was just written into the memo; one index for each key, counted up."""
        index = self._memo[key] = len(self._memo)
        self._out += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)

    def _record(self, record: PickledObject) -> None:
        self._save(Name(record.name))
        self._save(record.args)
        self._out += b"\x81" if record.is_new else b"R"
        self._remember(id(record))
        if record.state is not None:
            self._save(record.state)
            self._out += b"b"

    def _dict(self, value: dict[Any, Any]) -> None:
        if OTHER_KEY in value:
            raise _Unwritable("a dict has keys that are tuples or the like")
        if isinstance(value, PickledDict):
            self._save(Name(value.name))
            self._save(value.args)
            self._out += b"R"
        else:
            self._out += b"}"
        self._remember(id(value))
        self._batches((part for pair in value.items() for part in pair), 2 * _BATCH, b"u")
        if isinstance(value, PickledDict) and value.state is not None:
            self._save(value.state)
            self._out += b"b"

    def _list(self, value: list[Any]) -> None:
        self._out += b"]"
        self._remember(id(value))
        self._batches(value, _BATCH, b"e")

    def _batches(self, values: Iterable[Any], size: int, end: bytes) -> None:
        """Items between a mark and an opcode that puts them into the container before the mark."""
        count = 0
        for value in values:
            if count % size == 0:
                self._out += (end if count else b"") + b"("
            self._save(value)
            count += 1
        self._out += end if count else b""

    def _tuple(self, value: tuple[Any, ...]) -> None:
        self._out += b"" if len(value) in _TUPLES else b"("
        for item in value:
            self._save(item)
        self._out += _TUPLES.get(len(value), b"t")
        self._remember(id(value))

    def _storage(self, storage: Storage) -> None:
        self._out += b"("
        for part in ("storage", Name(storage.kind), storage.key, storage.device, storage.elements):
            self._save(part)
        self._out += b"tQ"


def _plain(value: Any) -> bytes:
    """What is never remembered."""
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if value == ():
        return b")"
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if not isinstance(value, int):
        raise _Unwritable(f"it has a {type(value).__name__}")
    if 0 <= value < 1 << 16:
        return b"K" + bytes([value]) if value < 1 << 8 else b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data
