"""Packages that the image of a node has, and a laptop may not. Standard library only."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from cloudrl.errors import InputError


def package(name: str) -> Any:
    """Import a module of `pyarrow` or `datasets`.

    Raises:
        InputError: It is not installed; the hint is the command that does it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        raise InputError(
            f"preparing data needs {top}, which {sys.executable} does not have",
            hint=f"{sys.executable} -m pip install {top}",
        ) from error
