"""Data sets by name, as parquet files in verl's columns. Standard library only at import time."""

from __future__ import annotations

import importlib
from difflib import get_close_matches

from cloudrl.errors import InputError

_MODULES = {
    "addition": "cloudrl.data.addition",
    "gsm8k": "cloudrl.data.gsm8k",
}


def names() -> list[str]:
    """The names of the known data sets, sorted."""
    return sorted(_MODULES)


def check(name: str) -> None:
    """Refuse a name that is none, before anything is started for it.

    Raises:
        InputError: For an unknown name.
    """
    if name not in _MODULES:
        near = get_close_matches(name, names(), n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known data sets: {', '.join(names())}"
        raise InputError(f"there is no data set {name!r}", hint=hint)


def prepare(name: str, folder: str) -> dict[str, str]:
    """Write a data set's train.parquet and test.parquet into a folder, which is made if need be.

    The files appear whole or not at all, and a second call writes the same bytes again.

    Args:
        name: One of `names()`.
        folder: Where to write.

    Returns:
        The absolute paths by split: `train` and `test`.

    Raises:
        InputError: For an unknown name.
    """
    check(name)
    prepared: dict[str, str] = importlib.import_module(_MODULES[name]).prepare(folder)
    return prepared
