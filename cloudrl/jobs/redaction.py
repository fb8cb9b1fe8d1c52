"""The words of a command as they may be shown: the values of secrets as `***`.

A secret is known by its name: an option (`--api-key abc`, `--api-key=abc`), an override (`x.api_key=abc`), a variable
(`HF_TOKEN=abc`), or a key within a word (`{WANDB_API_KEY: abc}`, `{"password": "abc"}`). Where its value ends within a
word only the program that reads it knows, so the rest of the word goes with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cloudrl.jobs.environment import MASK, is_secret_override, redact
from cloudrl.spec.names import is_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = re.compile(r"""(?<![\w.-])(-{0,2})([\w.][\w.-]*)([\\"']*\s*[=:]\s*|\s+(?!--))(?=\S)""")
_OPTION = re.compile(r"--?([\w.][\w.-]*)")
_LAST_NAME = re.compile(r"[\w.-]+\Z")
_LONGEST_NAME = 200
_TAKE_VARIABLES = ("--env", "-e", "--set")


def redact_words(words: Sequence[str]) -> list[str]:
    """The arguments of a command, or the words of a shell's text."""
    return [_redact(word, before) for before, word in zip(("", *words), words, strict=False)]


def redact_text(text: str) -> str:
    """Text that is no command to a shell, such as one with an open quotation; what follows a secret is left out."""
    return _redact(text, "")


def _redact(word: str, before: str) -> str:
    if word and _is_announced(before) and not word.startswith("--"):
        return MASK
    for found in _NAMED.finditer(word):
        dashes, name, between = found.groups()
        if between.isspace() and not dashes:  # two words of a sentence
            continue
        joined = name[1:] if dashes == "-" else ""  # -eNAME=abc
        variables = (
            before in _TAKE_VARIABLES
            or word.startswith(("--env=", "--set=", "-e"))
            or "env_vars" in word[: found.start()]
        )
        if any(_is_secret(each, variables=variables) for each in (name, joined)):
            return f"{redact(word[: found.end()])}{MASK}"
    return str(redact(word))


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
