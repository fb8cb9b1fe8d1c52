"""What every command that renders a dstack file offers: print it, or write it with what it needs beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloudrl.cli import _output
from cloudrl.errors import InputError

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the YAML and do nothing else.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the YAML, for `dstack apply -f FILE`."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ProjectOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Project on the dstack server; its default if not given.")
]


def write(path: Path, text: str, *, yes: bool) -> None:
    """Write a rendered file whole or not at all; one with other content is replaced after a question.

    Raises:
        InputError: it cannot be written, or the user said no.
    """
    if path.suffix not in (".yml", ".yaml"):
        raise InputError(f"-o {path}: dstack reads .yml files", hint=f"-o {path}.dstack.yml")
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            _output.note(f"{path} is up to date")
            return
        question = f"{path} has other content. Replace it?"
        if path.exists() and not _output.confirm(question, yes=yes, unattended=False):
            raise InputError(f"{path} is left as it is")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"-o {path}: {getattr(error, 'strerror', None) or error}") from error
    _output.note(f"wrote {path}")


def money(dollars: float) -> str:
    """Dollars as people write them."""
    return f"${dollars:,.2f}"


def duration(seconds: int | None) -> str:
    """Seconds in the largest unit that fits, or `never`."""
    from cloudrl.node.budget import duration as in_words

    return "never" if seconds is None else in_words(seconds)
