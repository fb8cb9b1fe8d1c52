"""Which bytes a request asks for: the header `Range`, and lists of short ranges."""

import re
from typing import Any, List, NamedTuple, Optional, Tuple

from cloudrl.protocol.limits import MAX_RANGES, MAX_RANGES_BYTES


class Span(NamedTuple):
    """Bytes of a file of `size` bytes. `asked` is False when the request wanted all of it."""

    first: int
    length: int
    size: int
    asked: bool


def parse_range(text: Optional[str], size: int) -> Span:
    """Read a header such as `bytes=0-99`, `bytes=100-` or `bytes=-5`; None is the whole file.

    Raises:
        ValueError: it is malformed, or outside the file.
    """
    if text is None:
        return Span(0, size, size, asked=False)
    match = re.fullmatch(r"bytes=([0-9]{0,19})-([0-9]{0,19})", text.strip())
    start, end = (number(part) for part in match.groups()) if match else (None, None)
    if start is None:  # `bytes=-5`: the last five
        first, last = max(0, size - (end or 0)), size - 1
    else:
        first, last = start, min(size - 1 if end is None else end, size - 1)
    if first > last:
        raise ValueError(f"the file has {size} bytes; ask for `bytes=first-last` inside it")
    return Span(first, last - first + 1, size, asked=True)


def parse_ranges(value: Any) -> List[Tuple[int, int]]:
    """Read `{"ranges": [[offset, length], ...]}`.

    Raises:
        KeyError, TypeError, ValueError: it is not that, or too much.
    """
    ranges = [(offset, length) for offset, length in value["ranges"]]
    if not all(type(part) is int and 0 <= part < 1 << 62 for pair in ranges for part in pair):
        raise ValueError("a range is [offset, length], two numbers of bytes")
    if len(ranges) > MAX_RANGES or sum(length for _, length in ranges) > MAX_RANGES_BYTES:
        raise ValueError(f"at most {MAX_RANGES} ranges of {MAX_RANGES_BYTES >> 20} MiB together")
    return ranges


def number(text: str) -> Optional[int]:
    """A number of bytes, None for anything else. Few digits: int() refuses thousands, and takes other scripts'."""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else None
