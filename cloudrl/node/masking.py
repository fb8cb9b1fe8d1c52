"""Secrets in what is kept of logs, as `***`: the values that this node knows, and what looks like one."""

import json
import re
from typing import Iterable, Mapping, Tuple

from cloudrl.protocol.secret_names import is_secret, names_a_file

MASK = b"***"
_SHORTEST = 6
"""Shorter values would also be parts of words."""
_NAMED = re.compile(
    rb"""(?<![\w.])([A-Z][A-Z0-9_]{2,80})(["'\\]{0,4}\s{0,3}[=:]\s{0,3}["'\\]{0,4})([^\s"'\\,;}&]{6,})"""
)
"""`HF_TOKEN=abcdef`, `'HF_TOKEN': 'abcdef'`: names of variables, so that verl's `pad_token: ...` stays."""
_BY_FORM = re.compile(rb"\b(?:hf_|gh[a-z]_|sk-)[A-Za-z0-9_-]{16,}")
_URL_LOGIN = re.compile(rb"(://[^/\s:@]{0,100}:)[^/\s@]{1,500}@")


class Masker:
    """Masks texts.

    Args:
        values: secrets; each line of one that has several is a secret of its own.
    """

    def __init__(self, values: Iterable[str]) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        forms = {form.encode() for line in lines for form in (line, json.dumps(line)[1:-1]) if len(line) >= _SHORTEST}
        known = sorted(forms, key=len, reverse=True)
        self._known = re.compile(b"|".join(map(re.escape, known))) if known else None

    def mask(self, text: bytes) -> bytes:
        """Whole lines, less the secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return _URL_LOGIN.sub(rb"\1***@", _BY_FORM.sub(MASK, _NAMED.sub(_without_value, text)))


def _without_value(found: "re.Match[bytes]") -> bytes:
    name = found[1].decode()
    return found[1] + found[2] + MASK if is_secret(name) and not names_a_file(name) else found[0]


def secrets_of(env: Mapping[str, str]) -> Tuple[str, ...]:
    """The values of variables that hold secrets."""
    return tuple(value for name, value in env.items() if is_secret(name) and not names_a_file(name))
