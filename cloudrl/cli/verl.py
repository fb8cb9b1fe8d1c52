"""`cloudrl verl`: the releases of verl whose configuration can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import JsonOption, option

app = typer.Typer(
    help="List the releases of verl that `check` knows, and add one.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the releases of verl that `check` knows: those that come with cloudrl, and those that you have added."""
    from cloudrl.sdk.verl import known_releases

    rows = known_releases()
    if as_json:
        _output.as_json(rows)
        return
    _output.table(("verl", "from", "rules"), [(row["verl"], row["from"], row["rules"]) for row in rows])


@app.command()
def add(
    place: Annotated[
        Path,
        typer.Argument(metavar="WHEEL|DIRECTORY", help="A wheel, a checkout, or the site-packages of an image."),
    ],
    version: Annotated[str | None, option("NAME", "Release to keep it as, if not what verl says.")] = None,
    into: Annotated[Path | None, option("DIR", "Folder to write to, in place of your cache.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a release of verl, or a fork, so that `check` knows it. Nothing of it is imported or run."""
    from cloudrl.sdk.verl import add_release

    folder = add_release(place, version=version, into=into)
    if as_json:
        _output.as_json({"verl": folder.name, "folder": str(folder)})
        return
    _output.data(str(folder))
