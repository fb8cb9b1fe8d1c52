"""Overrides as Hydra text, read back as far as planning a job needs it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cloudrl.spec.hydra import split_key

_QUOTED = re.compile(r"""(['"])(.*)\1""", re.DOTALL)
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^,'"\[\]{}]+?)\s*(,|\Z)""", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def parse_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Bare key -> value without its quotes; deletions (`~key`) are left out."""
    split = ((*split_key(key), value) for key, value in overrides.items())
    return {key: unquoted(value) for prefix, key, value in split if not prefix.startswith("~")}


def items(value: str) -> tuple[str, ...]:
    """The texts of a flat Hydra list, `[./a.parquet,'b c']`, or the one text that it is."""
    text = value.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return (unquoted(text),)
    found, position, inside = [], 0, text[1:-1]
    while position < len(inside):
        match = _ITEM.match(inside, position)
        if match is None:  # nested, or no list after all: nothing that is a path
            return ()
        found.append(unquoted(match[1]))
        position = match.end()
    return tuple(found)


def one_or_many(texts: Sequence[str]) -> str | list[str]:
    """What verl reads a single file and several from: a text, or a list."""
    return texts[0] if len(texts) == 1 else list(texts)


def unquoted(value: str) -> str:
    """A quoted Hydra text as the string that it stands for; any other text as it is.

    Backslashes count only before a quote, where each pair of them stands for one (Hydra 1.3, grammar).
    """
    match = _QUOTED.fullmatch(value.strip())
    if match is None:
        return value.strip()
    quote = match[1]
    return re.sub(rf"(\\+)({quote}|\Z)", lambda found: found[1][: len(found[1]) // 2] + found[2], match[2])


def integer(value: str | None) -> int | None:
    """The whole number that a Hydra text is, or None for anything else such as `${...}`."""
    return int(value) if value is not None and _INTEGER.fullmatch(value) else None
