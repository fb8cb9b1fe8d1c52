"""The command line: its root, and errors as messages and exit codes."""

import os
import sys
import traceback

import typer

from cloudrl import __version__
from cloudrl.cli import _output
from cloudrl.cli._commands import CommandGroup
from cloudrl.errors import CloudrlError, InputError, Interrupted
from cloudrl.shards.signals import undone_by_signals

_SUMMARY = "Train LLMs with reinforcement learning (verl on Ray), from this machine to rented GPUs."
_BEGIN = f"""{_SUMMARY}

Begin with one of these:
  cloudrl demo                             train a tiny model here without GPUs
  cloudrl check grpo --gpu H100:8          would it run? starts nothing
  cloudrl run grpo --gpu H100:8 --to DIR   rent, train, fetch the model

All commands: cloudrl --help"""

app = typer.Typer(
    name="cloudrl", cls=CommandGroup, help=_SUMMARY, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        _output.data(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        _output.note(_BEGIN)
        raise typer.Exit(InputError.exit_code)


def main() -> None:
    """Entry point. Exit codes are those of `cloudrl.errors`; 1 with a traceback only for our own faults.

    Typer itself ends with 2 for wrong usage, 130 for Ctrl-C and 1 for a closed output (`cloudrl ... | head`). SIGTERM
    and SIGHUP end it with 143 and 129, and undo what it has begun.
    """
    try:
        with undone_by_signals():
            app()
    except CloudrlError as error:
        _output.error(error.message, error.hint)
        if (words := error.corrected(sys.argv[1:])) is not None:
            how = "Corrected" if error.remaining is None else "Corrected, but for what no override settles"
            _output.hint(f"{how}: {_output.command(words)}")
        if os.environ.get("CLOUDRL_DEBUG"):
            sys.stderr.write(_where_raised(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before Typer looks, or while it ends for an earlier one
        sys.exit(Interrupted.exit_code)


def _where_raised(error: BaseException) -> str:
    """The traceback, without the messages of other libraries' exceptions: they may quote secrets."""
    chain: list[BaseException] = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    parts = [
        ["Traceback (most recent call last):\n", *traceback.format_tb(link.__traceback__), f"{type(link).__name__}\n"]
        for link in reversed(chain)
    ]
    return "\nThen:\n".join("".join(part) for part in parts)


if __name__ == "__main__":
    main()
