"""Overrides as Hydra parses them, and why it refuses one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudrl.protocol.secret_names import is_secret_override
from cloudrl.verl.base_config import first_line

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_PLACEHOLDER = re.compile(r"<\w[^<>]*>")
GRAMMAR = "What Hydra reads: https://hydra.cc/docs/advanced/override_grammar/basic"


@dataclass(frozen=True)
class Problem:
    """Why Hydra refuses an override.

    Attributes:
        text: both sides of it, in a sentence.
        hint: what to write in its place; "" if unknown.
        key: the bare key of an override that cannot be applied, so that there are no values to check; "" otherwise.
    """

    text: str
    hint: str = ""
    key: str = ""


def parse(overrides: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides that Hydra can parse, and why it cannot parse the others."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed, problems = OverridesParser.create(), list[Any](), list[Problem]()
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            problems.append(_unreadable(text, first_line(error)))
    return parsed, problems


def unreadable(overrides: Sequence[str]) -> tuple[Problem, ...]:
    """The overrides that Hydra cannot parse, whatever the configuration is."""
    return tuple(parse(overrides)[1])


def unfilled(text: str) -> str:
    """The first `<path to your model>` of a published script in a text; "" without one."""
    found = _PLACEHOLDER.search(text)
    return found[0] if found else ""


def _unreadable(text: str, error: str) -> Problem:
    """What is wrong with an override that Hydra cannot parse."""
    key, _, value = text.partition("=")
    bare = key.lstrip("+~")
    if is_secret_override(key):
        return Problem(f"{key}: its value is not in Hydra's grammar", GRAMMAR, bare)
    if placeholder := unfilled(value):
        return Problem(f"{text}: {placeholder} has to be filled in", key=bare)
    return Problem(f"{text}: Hydra cannot read it: {error}", GRAMMAR, bare)
