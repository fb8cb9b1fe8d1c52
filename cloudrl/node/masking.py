"""Secrets in what is kept of logs, as `***`: the values that this node knows, and what looks like one."""

import json
import re
from typing import Any, Iterable, Iterator, Mapping, Tuple
from urllib.parse import quote

from cloudrl.protocol.secret_names import BY_FORM, FIRST, is_secret, names_a_file
from cloudrl.protocol.tokens import Tokens

MASK = b"***"
_SHORTEST = 6
"""Shorter values would also be parts of words."""
_SHORTEST_NUMBER = 8
"""Of digits alone; PPO_MAX_TOKEN_LEN_PER_GPU=131072 is not a secret, whatever its name says."""
_COLOUR = rb"(?:\x1b|\\(?:u00|x)1b)\[[0-9;]{0,16}m"
_NAMED = re.compile(
    rb"([A-Z]" + FIRST + rb"(?<!\..)[A-Z0-9_]{2,80})"
    rb"""(?:""" + _COLOUR + rb"""|["'\\\]]){0,6}\s{0,3}[=:]\s{0,3}(?:""" + _COLOUR + rb"""|["'\\]){0,6}"""
    rb"""([^\s"'\\,;}&\x1b]{6,})"""
)  # fmt: skip
"""`HF_TOKEN=abcdef`, `'HF_TOKEN': 'abcdef'`: names of variables, so that verl's `pad_token: ...` stays."""
_HEADER = re.compile(
    rb"""(?i)(authorization["'\\]{0,4}\s{0,3}[=:]\s{0,3}["'\\]{0,4}(?:bearer|basic|token)\s{1,3})[^\s"'\\,;}]{6,}"""
)
_URL_LOGIN = re.compile(rb"(://[^/\s:@]{0,100}:)[^/\s]{1,500}@")


class Masker:
    """Masks texts.

    Args:
        values: secrets; each line of one that has several is a secret of its own.
    """

    def __init__(self, values: Iterable[str]) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}
        forms = {form.encode() for line in lines if _is_masked(line) for form in _forms(line)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None

    def mask(self, text: bytes) -> bytes:
        """Whole lines, less the secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _HEADER.sub(rb"\1***", b"".join(_without_named(text)))
        return _URL_LOGIN.sub(rb"\1***@", BY_FORM.sub(MASK, text))

    def mask_all(self, value: Any) -> Any:
        """The same with all texts in it masked: before they are JSON, where the end of a line is one with a token."""
        if isinstance(value, str):
            return self.mask(value.encode(errors="replace")).decode(errors="replace")
        if isinstance(value, dict):
            return {key: self._of_name(str(key), item) for key, item in value.items()}
        return tuple(map(self.mask_all, value)) if isinstance(value, (list, tuple)) else value

    def _of_name(self, name: str, value: Any) -> Any:
        is_text = isinstance(value, str) and name.isupper()
        return MASK.decode() if is_text and is_secret(name) and not names_a_file(name) else self.mask_all(value)


def _is_masked(line: str) -> bool:
    return len(line) >= (_SHORTEST_NUMBER if line.isdigit() else _SHORTEST)


def _forms(line: str) -> Tuple[str, ...]:
    """How a secret is written: as it is, in JSON and in a URL."""
    return line, json.dumps(line)[1:-1], quote(line, safe="")


def _without_named(text: bytes) -> Iterator[bytes]:
    """Parts of a text, less the values of variables that hold secrets; a name that holds none may stand before it."""
    copied = at = 0
    while True:
        match = _NAMED.search(text, at)
        if match is None:
            yield text[copied:]
            return
        name, at = match[1].decode(), match.end(1)
        if is_secret(name) and not names_a_file(name):
            yield text[copied : match.start(2)]
            yield MASK
            copied = at = match.end()


def secrets_of(env: Mapping[str, str]) -> Tuple[str, ...]:
    """The values of variables that hold secrets."""
    return tuple(value for name, value in env.items() if is_secret(name) and not names_a_file(name))


def node_secrets(tokens: Tokens, env: Mapping[str, str], of_jobs: Iterable[str]) -> Tuple[str, ...]:
    """All that is masked wherever something of a node is kept or shown."""
    return tokens.agent, tokens.ray, *secrets_of(env), *of_jobs
