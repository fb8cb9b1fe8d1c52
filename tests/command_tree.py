"""The commands and options of the command line, as Typer has built them."""

from collections.abc import Iterator
from typing import Any

import typer

from cloudrl.cli.main import app


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be typed."""
    group = group or typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def options(command: Any) -> dict[str, Any]:
    """Name -> option."""
    return {name: each for each in command.params for name in each.opts if name.startswith("--")}
