"""Reading a pickle without running anything: a machine whose only results are plain data and inert records.

It imports nothing and calls nothing. Where a pickle names a class or a function, there is a `Name`; where it would
call one, there is a `PickledObject` of the name and the arguments. A name not in the allow-list ends the reading.
Only the opcodes of protocol 2 exist, which `torch.save` uses (torch 2.13, torch/serialization.py,
DEFAULT_PROTOCOL), and those of protocol 4 that are in `.metadata` of torch's distributed format. A byte of a pickle may
make an object of 64 bytes, so the memory that it takes is added up and limited.

A pickler remembers nearly every object that it writes, in case it comes again. Here only those are remembered that are
asked for later, and a caller may make something small of each record as soon as it is whole: what a pickle takes while
it is read is then what remains of it.
"""

import io
import struct
import sys
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from cloudrl.errors import CheckpointError
from cloudrl.shards.pickle_memo import OpenRecords, asked_for
from cloudrl.shards.pickled import OTHER_KEY, Name, PickledDict, PickledObject, Storage

_INT32, _UINT32, _UINT16, _UINT8, _FLOAT64 = map(struct.Struct, ("<i", "<I", "<H", "<B", ">d"))
_MARK = object()
MAX_BYTES = 144 << 20
"""Of what a pickle becomes."""
_PLACE_BYTES = 8
"""Of an opcode: a place on the stack or in a container."""
_KEPT_BYTES, _BEGUN_BYTES = 100, 400
"""Of what is remembered, and of a record that may become something smaller, besides."""
_PAIR_BYTES = 64
"""Of a key and its value in a dict, besides."""
_MAX_NAMES, _MAX_NAME_BYTES = 1000, 1000
_DICTS = frozenset({"collections.OrderedDict", "collections.defaultdict", "collections.Counter"})


class Held(Protocol):
    """What a record became."""

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, with what nothing else shares."""


class Key:
    """What a record became, where that is a key of a dict: what counts is which it is."""

    __slots__ = ()


_KEYS = (str, int, float, bool, type(None), PickledObject, Key)
"""Quick to hash; of an object it is the identity."""
Makers = Mapping[str, Callable[[PickledObject], Held | PickledObject]]
"""By the name of a record: what becomes of it when it is whole; or itself, if it is not as it should be."""


class _Begun(Name):
    """The name of a record of which something else will be made."""

    __slots__ = ()


class _Malformed(Exception):
    pass


class _Reached(Exception):
    """What is wanted has been read."""


def read_pickle(
    data: bytes,
    allowed: Callable[[str], bool],
    label: str,
    *,
    max_bytes: int = MAX_BYTES,
    protocols: Collection[int] = (2,),
    until: str | None = None,
    makers: Makers = MappingProxyType({}),
) -> Any:
    """Read a pickle.

    Args:
        data: The whole of it.
        allowed: Whether a dotted name may stand in it.
        label: Of the file, for messages.
        max_bytes: One that becomes larger is refused.
        protocols: Those that it may have.
        until: The reading ends at this key of protocol 4; the result is the dict to which it would belong.
        makers: What becomes of records. The memory that they took is free again.

    Raises:
        CheckpointError: It names what is not allowed, is too long, or is not a pickle of these protocols.
    """
    try:
        return _Machine(data, allowed, label, until, makers).run(max_bytes, protocols)
    except (
        _Malformed, IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error, RecursionError,
    ) as error:  # fmt: skip
        why = "it is cut off" if isinstance(error, struct.error) else error or type(error).__name__
        raise CheckpointError(f"the pickle of {label} is not what torch writes: {why}") from error


class _Machine:
    """What the opcodes do, whose codes are those of CPython's pickle.py."""

    def __init__(
        self, data: bytes, allowed: Callable[[str], bool], label: str, until: str | None, makers: Makers
    ) -> None:
        self._allowed, self._label, self._until, self._makers = allowed, label, until, makers
        self._pickle = io.BytesIO(data)
        self.read = self._pickle.read
        self._stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._asked_for = asked_for(data)
        self._names: dict[bytes, Name] = {}
        self._besides = len(self._asked_for)  # bytes that the stack and its values do not show
        self._held = 0  # bytes of what a record has just become
        self._open = OpenRecords()

    def run(self, max_bytes: int, protocols: Collection[int]) -> Any:
        start = self.read(2)
        if start[:1] != b"\x80" or start[1:] not in {bytes([protocol]) for protocol in protocols}:
            wanted = " or ".join(map(str, protocols))
            raise _Malformed(f"it begins with {start!r}, not with protocol {wanted}")
        is_old = start[1] < 4
        values, operations = (_VALUES, _OPERATIONS) if is_old else (_VALUES_4, _OPERATIONS_4)
        try:
            return self._run(max_bytes, values, operations, _PUTS if is_old else _PUTS_4)
        except _Reached:
            pairs = self.since_mark()
            self._stack.append({})
            self.update(pairs[: len(pairs) & -2])
            return self._stack.pop()

    def _run(  # noqa: C901  a call more for each opcode would take a third longer
        self, max_bytes: int, values: "_Opcodes", operations: "_Opcodes", puts: Collection[bytes]
    ) -> Any:
        read, stack, memo, wanted = self.read, self._stack, self.memo, self._asked_for
        room, most = max_bytes, len(wanted)
        count = kept = 0  # of what might be asked for, and of what is remembered
        while (room := room - _PLACE_BYTES) >= self._besides:
            code = read(1)
            if code in puts:  # every third opcode; indices count up
                index = count if code == b"\x94" else self._index(code)
                if index >= count:
                    count = _next(index, count)
                if index >= most or wanted[index]:
                    memo[index] = stack[-1]
                    kept += 1
                    room -= _KEPT_BYTES if index > 255 else 0
            elif code == b".":  # STOP
                return stack.pop()
            elif (value := values.get(code)) is not None:
                made = value(self)
                stack.append(made)
                if code not in _SHARED:
                    room -= sys.getsizeof(made)
                    if self._held:
                        self._end(room, kept)
                elif made.__class__ is _Begun:
                    self._open.begin(len(stack), room - self._besides, kept)
                    self._besides += _BEGUN_BYTES
            elif (operation := operations.get(code)) is not None:
                operation(self)
                if self._held:
                    self._end(room, kept)
            else:
                raise _Malformed(f"opcode {code!r} before byte {self._pickle.tell()}" if code else "it is cut off")
        raise _Malformed(f"it would take more than {max_bytes} bytes of memory")

    def _index(self, code: bytes) -> int:
        index: int = (_UINT8.unpack(self.read(1)) if code == b"q" else _UINT32.unpack(self.read(4)))[0]
        return index

    def _end(self, room: int, kept: int) -> None:
        """What the record on top was made of is free again."""
        held, self._held = self._held, 0
        free = self._open.end(len(self._stack), kept)
        if free is not None:
            self._besides = room - free + held

    def text(self) -> str:
        return self._bytes(_UINT32.unpack(self.read(4))[0]).decode("utf-8", "surrogatepass")

    def short_text(self) -> str:
        text = self._bytes(_UINT8.unpack(self.read(1))[0]).decode("utf-8", "surrogatepass")
        if text == self._until:
            raise _Reached
        return text

    def long(self) -> int:
        return int.from_bytes(self._bytes(_UINT8.unpack(self.read(1))[0]), "little", signed=True)

    def _bytes(self, count: int) -> bytes:
        data = self.read(count)
        if len(data) < count:
            raise _Malformed("it is cut off")
        return data

    def _line(self) -> bytes:
        line = self._pickle.readline(_MAX_NAME_BYTES)
        if line[-1:] != b"\n":
            raise _Malformed("it is cut off")
        return line[:-1]

    def since_mark(self) -> list[Any]:
        stack = self._stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                values = stack[at + 1 :]
                del stack[at:]
                return values
        raise _Malformed("a mark is missing")

    def last(self, count: int) -> list[Any]:
        values = self._stack[-count:]
        if len(values) < count:
            raise _Malformed("its stack is empty")
        del self._stack[-count:]
        return values

    # containers
    def extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, PickledObject):  # what a record holds besides its state is never asked for
            _expect(target, list).extend(values)
            self._open.changed(target)

    def update(self, pairs: list[Any]) -> None:
        target = _expect(self._stack[-1], dict)
        self._open.changed(target)
        self._besides += len(pairs) // 2 * _PAIR_BYTES
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # What has a tuple as key is never asked for, and hashing nested tuples may take for ever.
            target[key if isinstance(key, _KEYS) else OTHER_KEY] = value

    # names and records
    def name(self) -> Name:
        return self._named(self._line() + b"." + self._line())

    def stack_name(self) -> Name:
        module, name = (_expect(each, str).encode("utf-8", "surrogatepass") for each in self.last(2))
        return self._named(module + b"." + name)

    def _named(self, line: bytes) -> Name:
        name = self._names.get(line)
        if name is None:
            if len(self._names) >= _MAX_NAMES or len(line) > _MAX_NAME_BYTES:
                raise _Malformed(f"it has more than {_MAX_NAMES} names, or a longer one")
            text = line.decode("ascii", "replace").replace("__builtin__.", "builtins.", 1)
            if not self._allowed(text):
                raise CheckpointError(
                    f"{self._label} was refused: its pickle names {text}, and no checkpoint needs that",
                    hint="Loading it with torch.load could run somebody's code. Take a copy that you trust.",
                )
            name = self._names[line] = (_Begun if text in self._makers else Name)(text)
        return name

    def reduce(self, *, is_new: bool = False) -> Any:
        args = _expect(self._stack.pop(), tuple)
        name = _expect(self._stack.pop(), Name).text
        made: Any = PickledDict(name, args) if name in _DICTS else PickledObject(name, args, is_new=is_new)
        self._besides += self._open.created(made)
        return self._make(made) if args and name in self._makers else made

    def container(self, kind: type[list[Any]] | type[dict[Any, Any]]) -> Any:
        made = kind()
        self._besides += self._open.created(made)
        return made

    def _make(self, record: PickledObject) -> Any:
        """What becomes of a record that is whole."""
        made = self._makers[record.name](record)
        if not isinstance(made, PickledObject):
            self._held = made.held_bytes
        return made

    def build(self) -> None:
        state, record = self._stack.pop(), self._stack[-1]
        if isinstance(record, PickledObject):
            record.state = state
            self._open.changed(record)
            if record.name in self._makers:
                self._stack[-1] = self._make(record)
        elif isinstance(record, PickledDict):  # attributes, as `_metadata` of a state dict
            record.state = state
            self._open.changed(record)
        else:
            _expect(record, dict)

    def storage(self) -> Storage:
        tag, kind, key, device, elements = _expect(self._stack.pop(), tuple)
        if tag != "storage":
            raise _Malformed(f"a persistent id of kind {tag[:40] if isinstance(tag, str) else type(tag).__name__!r}")
        text, count = _expect(kind, Name).text, _expect(elements, int)
        return Storage(text, str(_expect(key, str)), count, sys.intern(_expect(device, str)))


def _next(index: int, count: int) -> int:
    if index > count:
        raise _Malformed(f"it remembers {index} after {count}")
    return count + 1


def _expect(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise _Malformed(f"{type(value).__name__} where {kind.__name__} belongs")
    return value


_Opcodes = Mapping[bytes, Callable[[_Machine], Any]]
_VALUES: _Opcodes = {  # what is pushed
    b"(": lambda _: _MARK,
    b"N": lambda _: None,
    b"\x88": lambda _: True,
    b"\x89": lambda _: False,
    b"J": lambda machine: _INT32.unpack(machine.read(4))[0],
    b"K": lambda machine: _UINT8.unpack(machine.read(1))[0],
    b"M": lambda machine: _UINT16.unpack(machine.read(2))[0],
    b"G": lambda machine: _FLOAT64.unpack(machine.read(8))[0],
    b"\x8a": _Machine.long,
    b"X": _Machine.text,
    b"}": lambda machine: machine.container(dict),
    b"]": lambda machine: machine.container(list),
    b")": lambda _: (),
    b"t": lambda machine: tuple(machine.since_mark()),
    b"\x85": lambda machine: tuple(machine.last(1)),
    b"\x86": lambda machine: tuple(machine.last(2)),
    b"\x87": lambda machine: tuple(machine.last(3)),
    b"h": lambda machine: machine.memo[_UINT8.unpack(machine.read(1))[0]],
    b"j": lambda machine: machine.memo[_UINT32.unpack(machine.read(4))[0]],
    b"c": _Machine.name,
    b"R": _Machine.reduce,
    b"\x81": lambda machine: machine.reduce(is_new=True),  # NEWOBJ: the same two values
    b"Q": _Machine.storage,
}
_PUTS = frozenset({b"q", b"r"})
_PUTS_4 = _PUTS | {b"\x94"}
_SHARED = frozenset({b"(", b"N", b"\x88", b"\x89", b"K", b")", b"h", b"j", b"c", b"\x93"})
"""Of these opcodes, those that make nothing new."""
_OPERATIONS: _Opcodes = {  # what changes values or the memo
    b"0": lambda machine: machine.last(1),
    b"1": _Machine.since_mark,
    b"a": lambda machine: machine.extend(machine.last(1)),
    b"e": lambda machine: machine.extend(machine.since_mark()),
    b"s": lambda machine: machine.update(machine.last(2)),
    b"u": lambda machine: machine.update(machine.since_mark()),
    b"b": _Machine.build,
}
_VALUES_4: _Opcodes = {**_VALUES, b"\x8c": _Machine.short_text, b"\x93": _Machine.stack_name}
_OPERATIONS_4: _Opcodes = {
    **_OPERATIONS,
    b"\x95": lambda machine: machine.read(8),  # FRAME
}
