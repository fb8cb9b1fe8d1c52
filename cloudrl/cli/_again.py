"""A command as it was typed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def typed_again(words: Sequence[str]) -> str:
    """A command as it was typed, for a hint: without the values of secrets, which a screen and a log would keep."""
    from cloudrl.jobs.redaction import redact_words

    shown = [
        word if _is_a_name(before, word) else redacted
        for before, word, redacted in zip(("", *words), words, redact_words(words), strict=False)
    ]
    return f"cloudrl {shlex.join(shown)}"


def _is_a_name(before: str, word: str) -> bool:
    """Whether a word holds names of dstack's secrets, as our own options take them, and no value."""
    return before == "--secret" or word.startswith(("--secret=", "secrets="))
