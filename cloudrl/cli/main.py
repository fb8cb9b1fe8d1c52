"""The command line: registers the commands, and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys

import typer

from cloudrl import __version__
from cloudrl.cli import _output
from cloudrl.cli import cluster as cluster_commands
from cloudrl.cli.demo import demo
from cloudrl.cli.jobs import app as jobs_app
from cloudrl.cli.submit import submit
from cloudrl.cli.up import up
from cloudrl.errors import CloudrlError

app = typer.Typer(
    name="cloudrl",
    help="Reinforcement-learning training of LLMs (verl on Ray), from this machine to rented GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(demo)
app.command()(up)
app.command()(cluster_commands.status)
app.command()(submit)
app.add_typer(jobs_app, name="jobs")
app.command()(cluster_commands.env)
app.command()(cluster_commands.down)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        _output.data(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point. Exit codes are those of `cloudrl.errors`; 1 with a traceback only for our own faults."""
    try:
        app()
    except CloudrlError as error:
        _output.error(error.message, error.hint)
        if os.environ.get("CLOUDRL_DEBUG"):
            raise
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _output.note("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # `cloudrl ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
