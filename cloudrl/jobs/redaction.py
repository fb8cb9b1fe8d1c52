"""What may be shown of commands and of nested data: the values of secrets as `***`.

In a command a secret is known by its name: an option (`--api-key abc`, `--api-key=abc`), an override
(`x.api_key=abc`), a variable (`HF_TOKEN=abc`), or a key within a word (`{WANDB_API_KEY: abc}`,
`{"password": "abc"}`). Where its value ends within a word only the program that reads it knows, so the rest of the
word goes with it.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cloudrl.protocol.secret_names import MASK, is_secret, is_secret_override, mask_by_form

_HEADER = re.compile(r"(authorization\s*[=:]\s*(?:[a-z]+\s+)?)[^\s\"']+", re.IGNORECASE)
_NAMED = re.compile(r"""(?<![\w.-])(-{0,2})([\w.][\w.-]*)([\\"']*\s*[=:]\s*|\s+(?!--))(?=\S)""")
_OPTION = re.compile(r"--?([\w.][\w.-]*)")
_LAST_NAME = re.compile(r"[\w.-]+\Z")
_LONGEST_NAME = 200
_TAKE_VARIABLES = ("--env", "-e", "--set")


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of nested data, for showing: values under secret names, and these texts anywhere, as `***`."""
    longest_first = sorted({secret for secret in secrets if len(secret) >= 6}, key=len, reverse=True)
    return _mask(value, longest_first)


def secret_values(env: Mapping[str, str | None]) -> tuple[str, ...]:
    """The values of variables that hold secrets."""
    return tuple(value for name, value in env.items() if value and is_secret(name))


def redact_command(entrypoint: str) -> str:
    """The entry point of any job, with secrets masked; it is the same to a shell unless it has some."""
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return redact_text(entrypoint)
    shown = redact_words(words)
    return entrypoint if shown == words else shlex.join(shown)


def redact_words(words: Sequence[str]) -> list[str]:
    """The arguments of a command, or the words of a shell's text."""
    return [_redact(word, before) for before, word in zip(("", *words), words, strict=False)]


def redact_text(text: str) -> str:
    """Text that is not a command to a shell, such as one with an open quotation; what follows a secret is left out."""
    return _redact(text, "")


def _mask(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return dict(_mask_item(key, item, secrets) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_mask(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, MASK)
    # where more words come first, it is a command, which was masked as one
    named = _NAMED.match(value, len(value) - len(value.lstrip("+")))
    if named and not named[3].isspace() and _is_secret(named[2], variables=False):
        value = value if value.startswith(MASK, named.end()) else f"{value[: named.end()]}{MASK}"
    return mask_by_form(_HEADER.sub(rf"\g<1>{MASK}", value))


def _redact(word: str, before: str) -> str:
    if word and _is_announced(before) and not word.startswith("--"):
        return MASK
    takes_variables = before in _TAKE_VARIABLES or word.startswith(("--env=", "--set=", "-e"))
    return str(redact(_without_named(word, variables=takes_variables)))


def _mask_item(key: Any, item: Any, secrets: list[str]) -> tuple[Any, Any]:
    shown = _mask(key, secrets)
    hides = _hides(key) or shown != key
    return shown, MASK if hides and item and item is not True else _mask(item, secrets)


def _hides(key: object) -> bool:
    return is_secret(str(key).replace("-", "_"))


def _without_named(word: str, *, variables: bool) -> str:
    """The word up to where the value of a secret begins."""
    for match in _NAMED.finditer(word):
        dashes, name, between = match.groups()
        if between.isspace() and not dashes:  # two words of a sentence
            continue
        joined = name[1:] if dashes == "-" else ""  # -eNAME=abc
        are_variables = variables or "env_vars" in word[: match.start()]
        if any(_is_secret(spelling, variables=are_variables) for spelling in (name, joined)):
            return f"{word[: match.end()]}{MASK}"
    return word


def _is_announced(before: str) -> bool:
    """Whether the word before is `--name` or ends in `name:`, and what comes is its value."""
    option = _OPTION.fullmatch(before)
    if option is None and before.endswith(":"):
        option = _LAST_NAME.search(before[-_LONGEST_NAME:-1].rstrip("\\\"' "))
    return option is not None and _is_secret(option[0].lstrip("-"), variables=False)


def _is_secret(name: str, *, variables: bool) -> bool:
    """By the rule for overrides, or by the wider one where a name is a variable's: not verl's data.prompt_key."""
    key = name.replace("-", "_")
    last = key.rpartition(".")[2]
    return is_secret_override(key) or ((variables or last.isupper()) and is_secret(last))
