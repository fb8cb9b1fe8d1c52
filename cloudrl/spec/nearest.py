"""The nearest right word for a wrong one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that is most like `word`, letter case aside; None when nothing is like it."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean 'gpu'?`, or an empty string when nothing is like `word`."""
    found = nearest(word, choices)
    return f"; did you mean {found!r}?" if found else ""
