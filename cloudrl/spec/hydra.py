r"""Hydra overrides as text: `trainer.nnodes=2`, `+a.b=[1,'x y']`, `~a.b`; written, and read back as far as we need it.

Source of the rules: Hydra 1.3, grammar/OverrideLexer.g4 and OverrideParser.g4. A text that Hydra would read
as a number, a boolean, null, a list or several values is quoted, so that a Python string stays a string.
`${...}` inside a string is left to OmegaConf, which resolves it within quotes too; `\${` stands for itself.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.spec.quoting import quoted

_ID = r"[A-Za-z_][A-Za-z0-9_-]*"
_WORD = r"[A-Za-z_$][A-Za-z0-9_$-]*"
_STEP = rf"(?:{_WORD}|0|[1-9](?:_?[0-9])*)"
_PACKAGE = rf"(?:{_STEP}(?:\.{_STEP})+|{_WORD})"
_KEY = re.compile(rf"(\+\+?|~)?((?:{_ID}(?:/{_ID})+|{_PACKAGE})(?:@(?:{_PACKAGE})?)?)")

_NUMBER = re.compile(r"[+-]?(?:(?:[0-9_]*\.?[0-9_]*)(?:[eE][+-]?[0-9_]+)?|inf|nan)", re.IGNORECASE)
_WORDS = frozenset({"true", "false", "null"})
_BARE = re.compile(r"[A-Za-z0-9_/.$%*@?|+-]+")
_BARE_IN_KEY = re.compile(r"[A-Za-z0-9_/.$%*@?|+()\[\]{}:=, \t\\-]+")
_ESCAPED_IN_KEY = re.compile(r"([\\()\[\]{}:=, \t])")
_QUOTED = re.compile(r"""(['"])(.*)\1""", re.DOTALL)
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^,'"\[\]{}]+?)\s*(,|\Z)""", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


class HydraText(str):
    """Text that already is a Hydra value, such as what a user typed after the `=`; never quoted again."""

    __slots__ = ()


def hydra_text(value: Any) -> HydraText:
    """Write a Python value so that Hydra reads it back as that value.

    Args:
        value: None, a bool, a number, a string, a list or tuple, a mapping, or `HydraText`, at any depth.

    Raises:
        SpecError: Hydra has no way to write it: another type, or a mapping key with quotes or accents.
    """
    if isinstance(value, HydraText):
        return value
    if value is None:
        return HydraText("null")
    if isinstance(value, (bool, int, float)):
        return HydraText(repr(value))
    if isinstance(value, str):
        return HydraText(_string(value))
    if isinstance(value, Mapping):
        return HydraText("{" + ",".join(f"{_dict_key(key)}:{hydra_text(item)}" for key, item in value.items()) + "}")
    if isinstance(value, (list, tuple)):
        return HydraText("[" + ",".join(hydra_text(item) for item in value) + "]")
    raise SpecError(f"a value of type {type(value).__name__} cannot be written as a Hydra value")


def parse_override(text: str) -> tuple[str, HydraText]:
    """Split `key=value` as typed on a command line; `~key` alone has an empty value.

    Raises:
        SpecError: There is no `=`, or what stands before it is not a key.
    """
    key, equals, value = text.partition("=")
    if not equals and not text.startswith("~"):
        raise SpecError(f"{quoted(text)} is not key=value", hint="For example: trainer.total_epochs=15")
    return override_key(key), HydraText(value)


def parse_typed(words: Sequence[str]) -> dict[str, HydraText]:
    """The overrides of a command line, word by word.

    Raises:
        SpecError: A word is not one, as when there are blanks around the `=`.
    """
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        if word == "=":
            raise SpecError(
                f"{quoted(before)} = ...: an override has no blanks around =", hint=shlex.quote(f"{before}={after}")
            )
    return dict(map(parse_override, words))


def override_key(key: object) -> str:
    """Check an override's key: dotted path or group, after `+`, `++` or `~` if any.

    Raises:
        SpecError: Hydra would not accept the key.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise SpecError(f"{quoted(key)} is not the key of an override", hint="For example: trainer.total_epochs=15")
    return key


def split_key(key: str) -> tuple[str, str]:
    """`('++', 'a.b')` for `++a.b`."""
    bare = key.lstrip("+~")
    return key[: len(key) - len(bare)], bare


def override_argument(key: str, value: str) -> str:
    """One argument for a Hydra application: `key=value`, or `~key` for a deletion without a value."""
    return key if key.startswith("~") and not value else f"{key}={value}"


def parse_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Bare key -> value without its quotes; deletions (`~key`) are left out."""
    split = ((*split_key(key), value) for key, value in overrides.items())
    return {key: unquoted(value) for prefix, key, value in split if not prefix.startswith("~")}


def words_with_values(words: Iterable[str]) -> dict[str, str]:
    """Key -> value as it stands, of the overrides among the words of a command; of one given twice the last."""
    return dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))


def items(value: str) -> tuple[str, ...]:
    """The texts of a flat Hydra list, `[./a.parquet,'b c']`, or the one text that it is."""
    text = value.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return (unquoted(text),)
    parts, position, inside = [], 0, text[1:-1]
    while position < len(inside):
        match = _ITEM.match(inside, position)
        if match is None:  # nested, or no list after all: nothing that is a path
            return ()
        parts.append(unquoted(match[1]))
        position = match.end()
    return tuple(parts)


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


def _string(value: str) -> str:
    if "\0" in value:
        raise SpecError("the text holds a NUL character")
    if _BARE.fullmatch(value) and value.lower() not in _WORDS and not _NUMBER.fullmatch(value):
        return value
    quote = '"' if "'" in value and '"' not in value else "'"
    # Backslashes count only before a quote; there Hydra reads each pair as one.
    escaped = re.sub(rf"(\\*){quote}", lambda match: match[1] * 2 + "\\" + quote, value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"{quote}{escaped}{escaped[len(escaped) - trailing :]}{quote}"


def _dict_key(key: object) -> str:
    if key is None or isinstance(key, (bool, int, float)):
        return str(hydra_text(key))
    if not isinstance(key, str) or not _BARE_IN_KEY.fullmatch(key) or key.lower() in _WORDS or _NUMBER.fullmatch(key):
        raise SpecError(f"{quoted(key)} cannot be the key of a mapping in a Hydra override")
    return _ESCAPED_IN_KEY.sub(r"\\\1", key)
