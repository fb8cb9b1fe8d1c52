"""The command line: registers the commands, and turns errors into messages and exit codes."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from cloudrl import __version__
from cloudrl.cli import _output
from cloudrl.cli import cluster as cluster_commands
from cloudrl.cli.check import check
from cloudrl.cli.checkpoints import app as checkpoints_app
from cloudrl.cli.data import app as data_app
from cloudrl.cli.debug import debug
from cloudrl.cli.demo import demo
from cloudrl.cli.fleet import app as fleet_app
from cloudrl.cli.import_script import import_script
from cloudrl.cli.jobs import app as jobs_app
from cloudrl.cli.logs import logs
from cloudrl.cli.recipes import app as recipes_app
from cloudrl.cli.report import report
from cloudrl.cli.retriever import app as retriever_app
from cloudrl.cli.run import run
from cloudrl.cli.slurm import app as slurm_app
from cloudrl.cli.submit import submit
from cloudrl.cli.task import app as task_app
from cloudrl.cli.up import up
from cloudrl.cli.verl import app as verl_app
from cloudrl.cli.volume import app as volume_app
from cloudrl.cli.watch import watch
from cloudrl.cli.why import why
from cloudrl.errors import CloudrlError, Interrupted
from cloudrl.shards.signals import undone_by_signals

COMMANDS: dict[str, typer.Typer | Callable[..., Any]] = {
    "demo": demo,
    "fleet": fleet_app,
    "volume": volume_app,
    "task": task_app,
    "up": up,
    "status": cluster_commands.status,
    "recipes": recipes_app,
    "data": data_app,
    "import": import_script,
    "verl": verl_app,
    "check": check,
    "submit": submit,
    "run": run,
    "watch": watch,
    "slurm": slurm_app,
    "retriever": retriever_app,
    "jobs": jobs_app,
    "why": why,
    "debug": debug,
    "report": report,
    "logs": logs,
    "checkpoints": checkpoints_app,
    "attach": cluster_commands.attach,
    "detach": cluster_commands.detach,
    "env": cluster_commands.env,
    "down": cluster_commands.down,
}
"""Functions and nouns, in the order of the help."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the name is Typer's
        """Typer puts nouns before functions."""
        return list(COMMANDS)


app = typer.Typer(
    name="cloudrl",
    cls=_InOrder,
    help="Train LLMs with reinforcement learning (verl on Ray), from this machine to rented GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        _output.data(__version__)
        raise typer.Exit


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
