"""Values as error messages quote them: short, printable, and without secrets."""

import re
from collections.abc import Mapping
from itertools import islice

from cloudrl.protocol.secret_names import MASK, is_secret, mask_by_form

_LONGEST = 200
_DEEPEST, _MOST_ITEMS = 4, 20
_NAMED = re.compile(r"""([A-Za-z_][\w.-]*)(["']?\s*[=:]\s*["']?|\s+)(?=\S)""")
_IDENTIFIER = re.compile(r"^[A-Z0-9_.-]+$|[._-]")
"""A name rather than a word of a sentence: HF_TOKEN, trainer.api_key."""
_KINDS = {dict: "a mapping", list: "a list", tuple: "a list", str: "text", bool: "true or false", type(None): "nothing"}


def quoted(value: object) -> str:
    """The value in Python's spelling, at most 200 characters of it; what follows the name of a secret is `***`."""
    if isinstance(value, str) and not is_text(value):
        return "text with a lone surrogate"
    try:
        text = repr(_masked(value, _DEEPEST))
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def kind_of(value: object) -> str:
    """What kind of value it is, where the value itself may be a secret: "a list"."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kind_name = next((name for kind, name in _KINDS.items() if isinstance(value, kind)), type(value).__name__)
    return "a number" if is_number else kind_name


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def masked(text: str) -> str:
    """The same with `***` in place of what follows the name of a secret, and of tokens known by their form."""
    for match in _NAMED.finditer(text):
        names, is_word = re.split(r"[.-]", match[1]), match[2].isspace() and not _IDENTIFIER.search(match[1])
        if not is_word and any(map(is_secret, names)):
            text = text[: match.end()] + MASK
            break
    return mask_by_form(text)


def _masked(value: object, depth: int) -> object:
    if isinstance(value, str):
        return masked(value) if is_text(value) else "text with a lone surrogate"
    if isinstance(value, (Mapping, list, tuple)) and depth == 0:
        return ...
    if isinstance(value, Mapping):
        return dict(_masked_item(*pair, depth) for pair in islice(value.items(), _MOST_ITEMS))
    if isinstance(value, (list, tuple)):
        items = [_masked(item, depth - 1) for item in value[:_MOST_ITEMS]]
        return tuple(items) if isinstance(value, tuple) else items
    return value if value is None or isinstance(value, (bool, int, float)) else _Unquoted(value)


def _masked_item(key: object, value: object, depth: int) -> tuple[object, object]:
    shown = _masked(key, 1)
    return shown, MASK if is_secret(str(key)) or shown != key else _masked(value, depth - 1)


class _Unquoted:
    """What is not a value of YAML; it may show anything."""

    def __init__(self, value: object) -> None:
        self._kind = type(value).__name__

    def __repr__(self) -> str:
        return f"a {self._kind}"
