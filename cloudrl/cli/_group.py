"""A group of commands, each built when it is called."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Commands = Mapping[str, typer.Typer | Callable[..., None]]


class LazyGroup(TyperGroup):
    """Typer reads every option of every command before it prints one line of help; this one waits.

    A subclass, made by `lazy_group`, holds the functions and the nouns' own apps. Reading the options of all
    commands was a third of the time of `cloudrl --help`.
    """

    waiting: ClassVar[Commands] = {}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the name is Typer's
        """The names, in the order in which they were given."""
        return list(self.waiting)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Build the command of a name, once; None for an unknown one."""
        if cmd_name in self.waiting and cmd_name not in self.commands:
            self.commands[cmd_name] = _built(cmd_name, self.waiting[cmd_name])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As Typer does, which looks for the nearest name among those that are built."""
        if args and args[0] not in self.waiting:
            for name in self.waiting:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as above
        """The list in the help: each with the first sentence of its text."""
        limit = formatter.width - 6 - max(map(len, self.waiting))
        rows = [(name, _short(command, limit)) for name, command in self.waiting.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def lazy_group(commands: Commands) -> type[LazyGroup]:
    """The class of a group of these commands, for `typer.Typer(cls=...)`."""
    return type("Commands", (LazyGroup,), {"waiting": commands})


def _built(name: str, command: typer.Typer | Callable[..., None]) -> Any:
    parent = typer.Typer(add_completion=False, rich_markup_mode=None, callback=lambda: None)
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name)
    else:
        parent.command(name)(command)
    group: Any = typer.main.get_command(parent)
    return group.commands[name]


def _short(command: typer.Typer | Callable[..., None], limit: int) -> str:
    text = command.info.help if isinstance(command, typer.Typer) else inspect.getdoc(command)
    return TyperCommand(name=None, help=text).get_short_help_str(limit)
