"""Sizes, durations and money as text for a person, in one form everywhere."""

_BYTES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_OPTION_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def size_text(size_bytes: int) -> str:
    """A size in the unit that fits it: `12.4 GB`, `250 MB`, `3.1 kB`, `17 B`."""
    for unit, name in _BYTES:
        if size_bytes >= unit:
            value = size_bytes / unit
            return f"{value:.1f} {name}" if value < 100 else f"{value:.0f} {name}"
    return f"{size_bytes} B"


def sizes_text(one: int, other: int) -> str:
    """Two sizes for comparison: `13.0 of 26.0 MB`, in bytes if they would read alike."""
    first, second = size_text(one), size_text(other)
    if first == second:
        return f"{one} of {other} bytes"
    (number, unit), (_, other_unit) = _parts(first), _parts(second)
    return f"{number} of {second}" if unit == other_unit else f"{first} of {second}"


def limit_text(limit_bytes: int) -> str:
    """A limit as the docs name it: `100 MiB`, `64 KiB`."""
    for bits, name in ((20, "MiB"), (10, "KiB")):
        if limit_bytes >= 1 << bits and not limit_bytes % (1 << bits):
            return f"{limit_bytes >> bits} {name}"
    return size_text(limit_bytes)


def duration_text(seconds: float) -> str:
    """A duration: `33 s`, `5 min 20 s`, `2 h 05 min`, `3 d 04 h`."""
    whole = max(0, round(seconds))
    minutes, rest_s = divmod(whole, 60)
    hours, rest_min = divmod(minutes, 60)
    days, rest_h = divmod(hours, 24)
    if days:
        return f"{days} d {rest_h:02} h"
    if hours:
        return f"{hours} h {rest_min:02} min"
    return f"{minutes} min {rest_s:02} s" if minutes else f"{rest_s} s"


def duration_option(seconds: float) -> str:
    """A duration as options take it, in the largest unit that fits: `30m`."""
    for size, unit in _OPTION_UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def dollars_text(dollars: float) -> str:
    """US dollars: `$1,234.50`."""
    return f"${dollars:,.2f}"


def _parts(text: str) -> tuple[str, str]:
    number, _, unit = text.partition(" ")
    return number, unit
