"""The commands in the groups and lines of the help. A command's module is imported when the command is typed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from cloudrl.cli import _output
from cloudrl.cli._usage import explained, unknown_command
from cloudrl.errors import InputError


class Entry(NamedTuple):
    """One command or noun.

    Attributes:
        place: its function or Typer app in `cloudrl.cli`, as MODULE:NAME.
        line: what it is for. With the longest name it fits into 80 columns.
    """

    place: str
    line: str


GROUPS: dict[str, dict[str, Entry]] = {
    "Train": {
        "demo": Entry("demo:demo", "Train a tiny model on this machine, without a GPU."),
        "check": Entry("check:check", "Check a job and its cluster. Starts nothing, costs nothing."),
        "run": Entry("run:run", "Start a cluster, train, fetch the model, stop the cluster."),
        "submit": Entry("submit:submit", "Submit a job to a cluster that is up, and follow it."),
        "recipes": Entry("recipes:app", "List and show recipes."),
        "import": Entry("import_script:import_script", "Turn a training script into a recipe and a cluster file."),
        "slurm": Entry("slurm:app", "Write a job script for Slurm."),
    },
    "See": {
        "watch": Entry("watch:watch", "Show a job live: curves, step times, nodes, cost, warnings."),
        "report": Entry("report:report", "Make a page of one run, or of several to compare."),
        "jobs": Entry("jobs:app", "List jobs, show their logs, stop them."),
        "logs": Entry("logs:logs", "Print the logs of all nodes, also after the cluster is down."),
        "why": Entry("why:why", "Show why a job failed, and what to do about it."),
        "debug": Entry("debug:debug", "Debug tasks that wait at a breakpoint, on any node."),
    },
    "Checkpoints": {
        "checkpoints": Entry("checkpoints:app", "List, verify, merge, reshard and publish checkpoints."),
    },
    "Clusters": {
        "up": Entry("up:up", "Start a cluster and wait until it is READY."),
        "status": Entry("cluster:status", "Show all clusters, or the nodes of one."),
        "down": Entry("cluster:down", "Stop a cluster and everything that runs on it."),
        "attach": Entry("cluster:attach", "Forward a cluster's dashboard to this machine."),
        "detach": Entry("cluster:detach", "Close that tunnel. The cluster keeps running."),
        "env": Entry("cluster:env", "Print what a plain `ray job submit` needs."),
        "task": Entry("task:app", "Write a cluster as a file for `dstack apply`."),
        "fleet": Entry("fleet:app", "Manage dstack fleets: the machines for clusters."),
        "volume": Entry("volume:app", "Manage dstack network volumes: disks that outlive machines."),
    },
    "Data": {
        "data": Entry("data:app", "List data sets, and prepare them on this machine."),
        "reward": Entry("reward:app", "Try a reward function on this machine, as verl would call it."),
        "retriever": Entry("retriever:app", "Build, serve and ask a search engine for agents that search."),
    },
    "More": {
        "verl": Entry("verl:app", "List the releases of verl that `check` knows, and add one."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def load(name: str) -> typer.Typer | Callable[..., Any]:
    """A command's function, or the Typer app of a noun."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    found: typer.Typer | Callable[..., Any] = getattr(import_module(f"cloudrl.cli.{module}"), attribute)
    return found


class CommandGroup(TyperGroup):
    """All commands: builds one when it is asked for, and shows them in their groups without building any."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Built()

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """As Typer does, with errors of ours for what was typed wrong."""
        with explained(self):
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """As Typer does, with errors of ours for what was typed wrong."""
        with explained(self):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word; of a recipe, what to type."""
        if _is_unknown(ctx, args, COMMANDS):
            from cloudrl import recipes

            if args[0] in recipes.names():
                verb, rest = ([args[1]], args[2:]) if args[1:2] and args[1] in COMMANDS else (["submit"], args[1:])
                meant = _output.command([*verb, args[0], *rest])
                raise InputError(f"{args[0]!r} is a recipe, not a command", hint=meant)
            raise unknown_command(ctx, args[0], [*COMMANDS])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the names are Typer's
        """Write the groups into the help."""
        widest = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), entry.line) for name, entry in group.items()])


class NounGroup(TyperGroup):
    """The verbs of a noun."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word."""
        if _is_unknown(ctx, args, self.commands):
            raise unknown_command(ctx, args[0], [*self.commands])
        return super().resolve_command(ctx, args)


def _is_unknown(context: Any, args: Sequence[str], known: Container[str]) -> bool:
    """Whether the first word is no command. While a shell completes a line, none is refused."""
    is_word = bool(args) and not args[0].startswith("-")
    return is_word and args[0] not in known and not context.resilient_parsing


class _Built(MutableMapping[str, Any]):
    """Name -> command as Typer builds it, in the order of the help."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built and name in COMMANDS:
            self._built[name] = _build(name)
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _build(name: str) -> Any:
    command, holder = load(name), typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        holder.add_typer(command, name=name, cls=NounGroup)
    else:
        holder.command(name)(command)
    return typer.main.get_group(holder).commands[name]
