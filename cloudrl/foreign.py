"""What others have written, read within bounds: answers of servers, and files that other programs may change.

A server may send for ever, a byte at a time, or JSON that takes gigabytes once it is parsed. Whatever comes is either a
value of the expected form or one exception that says what is wrong with it, and never quotes it.

Standard library only: it travels with the node agent and with the retriever.
"""

import contextlib
import http.client
import io
import json
import re
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Type, TypeVar, Union

from cloudrl.units import limit_text

T = TypeVar("T")

LIMIT_BYTES = 32 << 20
"""Of one answer, unless its reader knows better: Ray's 1,000 rows of state have a few KB each."""
LISTING_BYTES = 256 << 20
"""Of the list of all files of a large run: 80 MB were seen with 256 nodes on one volume."""
STATE_BYTES = 1 << 20
"""Of a file in which cloudrl keeps what it knows of a cluster or an index."""
MAX_DEPTH = 64
_MAX_VALUES = 4_000_000
_MAX_DIGITS = 20
"""As many as 2**64 has."""
_MAX_FLOAT = 1e30
_YEAR_10000 = 253_370_764_800
"""A year less, whatever the time zone."""
_PIECE_BYTES = 64 << 10
_SLOWEST_BYTES_PER_S = 16 << 10
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Those that stand for no byte of a file's name (PEP 383)."""
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Malformed(ValueError):
    """What came is too large or of another form; the message goes on with `it`, and quotes nothing."""


NOT_AS_EXPECTED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What code raises that takes apart a value of another form than it expects; `Malformed` is one of them."""


def read_all(stream: Any, limit_bytes: Optional[int] = None) -> bytes:
    """Read a stream to its end, in pieces.

    Args:
        stream: Anything with `read1`, such as an HTTP answer or a file.
        limit_bytes: The most that it may hold; `LIMIT_BYTES` for None.

    Raises:
        Malformed: It holds more. No more than a piece beyond the limit has been read.
    """
    limit_bytes, content = LIMIT_BYTES if limit_bytes is None else limit_bytes, bytearray()
    while piece := stream.read1(min(_PIECE_BYTES, limit_bytes + 1 - len(content))):
        content += piece
        if len(content) > limit_bytes:
            raise Malformed(f"it has more than {limit_text(limit_bytes)}")
    return bytes(content)


def read_file(path: Path, limit_bytes: int = STATE_BYTES) -> bytes:
    """Read a file that should be small.

    Raises:
        Malformed: It is larger.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return read_all(file, limit_bytes)


def parse_json(data: Union[bytes, str]) -> Any:
    """Parse JSON of somebody else.

    Lone surrogates become U+FFFD, but for those by which Python names files whose names are not UTF-8.

    Raises:
        Malformed: It is not JSON, is nested too deeply, or holds too many values or a number that is too large.
    """
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    if sum(map(text.count, ",[{")) > _MAX_VALUES:
        raise Malformed(_TOO_MANY)
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except RecursionError:
        raise Malformed(_TOO_DEEP) from None
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(f"it is not JSON ({error})") from None
    check_depth(value)
    if _ESCAPED_SURROGATE.search(text) or _SURROGATE.search(text):
        return _without_surrogates(value)
    return value


def parse_object(data: Union[bytes, str]) -> Dict[str, Any]:
    """Parse JSON that should be an object.

    Raises:
        Malformed: It is no such JSON.
    """
    return as_object(parse_json(data))


def check_depth(value: Any) -> None:
    """Refuse a value that is nested more than `MAX_DEPTH` deep or has too many parts, before a function walks it.

    Raises:
        Malformed: It is.
    """
    level, count = [value] if isinstance(value, (dict, list)) else [], 0
    for _ in range(MAX_DEPTH):
        count += sum(map(len, level))
        if count > _MAX_VALUES:  # a few lines of YAML can stand for billions
            raise Malformed(_TOO_MANY)
        level = [inner for container in level for inner in _contained(container) if isinstance(inner, (dict, list))]
        if not level:
            return
    raise Malformed(_TOO_DEEP)


_TOO_MANY = f"it holds more than {_MAX_VALUES:,} values"
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def as_object(value: Any, name: str = "it") -> Dict[str, Any]:
    """The value, which has to be an object of JSON; `name` is what messages call it."""
    return _checked(value, dict, name)


def as_list(value: Any, name: str = "it") -> List[Any]:
    """The value, which has to be a list."""
    return _checked(value, list, name)


def text_of(row: Mapping[str, Any], key: str) -> str:
    """A text of an object; empty for null and where it is missing.

    Raises:
        Malformed: It is something else.
    """
    value = row.get(key)
    return "" if value is None else _checked(value, str, key)


def number_of(row: Mapping[str, Any], key: str) -> Optional[float]:
    """A number of an object; None for null and where it is missing.

    Raises:
        Malformed: It is something else.
    """
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
        raise Malformed(f"{key} is {_kind(value)}, not a number")
    return value


def checked_time(seconds: float) -> float:
    """Seconds since the epoch that a calendar has.

    Raises:
        Malformed: They are of no year up to 9999.
    """
    if not 0 <= seconds < _YEAR_10000:
        raise Malformed("it holds a time of no year up to 9999")
    return seconds


def whole_number(text: Optional[str]) -> Optional[int]:
    """The number in a header. None for other text, and for a number too large to be a size."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS
    return int(text) if text is not None and is_number else None


class Patience:
    """How long one waits for the bytes of an answer, in all: what dribbles in uses it up, what flows renews it.

    Args:
        most_s: The seconds without any byte after which it ends; also the most that it grows to again.
        clock: Seconds that never run backwards.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s = self._left_s = most_s
        self._clock = clock

    def receive(self, receive: Callable[[float], T], size_of: Callable[[T], int]) -> T:
        """Wait for the next bytes.

        Args:
            receive: Waits no longer than so many seconds, and returns what has come.
            size_of: The number of bytes in that.

        Raises:
            TimeoutError: There is no patience left. `receive` may raise errors of its own.
        """
        if self._left_s <= 0:
            raise TimeoutError("timed out: the answer comes too slowly")
        began = self._clock()
        received = receive(self._left_s)
        waited_s = self._clock() - began
        self._left_s = min(self._most_s, self._left_s - waited_s + size_of(received) / _SLOWEST_BYTES_PER_S)
        return received


class PatientResponse(http.client.HTTPResponse):
    """An answer that ends with `TimeoutError` when its bytes, those of its head included, only dribble in.

    The patience is the timeout that the socket has when the answer begins. A socket without one may take for ever.
    """

    buffering = -1

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        timeout_s = sock.gettimeout()
        if timeout_s is not None or not self.buffering:
            self.fp.close()
            raw: Any = sock.makefile("rb", 0)
            patient = raw if timeout_s is None else _PatientReader(sock, raw, timeout_s)
            reader: Any = io.BufferedReader(patient) if self.buffering else patient
            self.fp = reader


class _PatientReader(io.RawIOBase):
    """The bytes of a socket."""

    def __init__(self, sock: Any, raw: Any, timeout_s: float) -> None:
        self._socket, self._raw, self._patience = sock, raw, Patience(timeout_s)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._patience.receive(lambda left_s: self._receive(buffer, left_s), int)

    def read1(self, size: int = -1) -> bytes:
        """What comes first, as a buffered reader has it."""
        return self.read(size if size >= 0 else io.DEFAULT_BUFFER_SIZE) or b""

    def _receive(self, buffer: Any, left_s: float) -> int:
        usual_s = self._socket.gettimeout()
        is_shorter = usual_s is None or left_s < usual_s
        try:
            if is_shorter:
                self._socket.settimeout(left_s)
            count: int = self._raw.readinto(buffer)
        finally:
            if is_shorter:
                with contextlib.suppress(OSError):
                    self._socket.settimeout(usual_s)
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise Malformed(f"it holds a number of {len(text):,} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not abs(value) < _MAX_FLOAT:
        raise Malformed("it holds a number that is too large")
    return value


def _constant(name: str) -> float:
    raise Malformed(f"it holds {name}, which is not JSON")


def _contained(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()


def _without_surrogates(value: Any) -> Any:
    """The same value; its depth was checked."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def _checked(value: Any, kind: Type[T], name: str) -> T:
    if not isinstance(value, kind):
        raise Malformed(f"{name} is {_kind(value)}, not {_KINDS[kind]}")
    return value


_KINDS: Dict[type, str] = {
    dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number",
    type(None): "null",
}  # fmt: skip


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)
