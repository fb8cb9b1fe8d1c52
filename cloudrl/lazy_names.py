"""Names of a package that are imported from their modules when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    The package imports the same names under TYPE_CHECKING, for type checkers; a test holds both to each other.

    Args:
        package: its `__name__`.
        homes: module -> the names that it has, in the order in which they are looked for.

    Returns:
        A function that raises AttributeError for any other name.
    """
    places = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
