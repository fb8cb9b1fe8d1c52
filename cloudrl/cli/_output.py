"""The one place that prints: data on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from cloudrl import private_files
from cloudrl.errors import InputError
from cloudrl.protocol.secret_names import mask_by_form

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloudrl.sdk.callbacks import Confirm

_PIPED_WIDTH = 100
"""Characters of a line where no terminal says how many it has."""
_STEERS = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories: control codes, marks that turn text around, halves of characters, ends of lines."""


def visible(text: str, keep: str = "\n\t") -> str:
    """The same without what steers a terminal: names of runs, files and tensors are anybody's.

    Args:
        text: What is to be printed.
        keep: Which control characters to leave as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character in keep or category(character) not in _STEERS else repr(character)[1:-1]
        for character in text
    )


def data(text: str) -> None:
    """A result that a program may read."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def as_json(value: Any) -> None:
    """A result as JSON."""
    data(json.dumps(value, indent=2, default=str))


def result(text: str, fields: Any, *, is_json: bool) -> None:
    """A result for a person, or the same as JSON."""
    as_json(fields) if is_json else data(visible(text))


def note(text: str) -> None:
    """Something for the person at the terminal, without tokens and passwords that an address in it may have."""
    sys.stderr.write(visible(mask_by_form(text)) + "\n")
    sys.stderr.flush()


def notes(sentences: Iterable[str]) -> None:
    """What the user should know, a line each."""
    for sentence in sentences:
        note(f"note: {sentence}")


def hint(text: str) -> None:
    """The next command to type."""
    note("\n".join(f"  → {line}" for line in text.splitlines()))


def error(message: str, next_command: str | None) -> None:
    """What failed, and what to do."""
    note(f"error: {message}")
    if next_command:
        hint(next_command)


def command(words: Iterable[str]) -> str:
    """A command of ours, to be pasted into a shell."""
    return shlex.join(["cloudrl", *words])


def is_interactive() -> bool:
    """Whether a person looks at standard error and can answer."""
    return sys.stderr.isatty() and sys.stdin.isatty()


def can_redraw() -> bool:
    """Whether standard error is a terminal that moves its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def lines(shown: Callable[..., Iterable[str]], *, is_data: bool = True) -> None:
    """Several lines that fit the terminal.

    Args:
        shown: makes them for a width in characters; `is_unicode` says whether blocks can be printed.
        is_data: whether they are the result; otherwise they go to standard error.
    """
    stream = sys.stdout if is_data else sys.stderr
    width = shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns if stream.isatty() else _PIPED_WIDTH
    is_unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    (data if is_data else note)("\n".join(map(visible, shown(width, is_unicode=is_unicode))))


def show(view: RenderableType) -> None:
    """A result with colours; its lines are wrapped where they are seen, and never in a file."""
    from rich.console import Console

    Console(highlight=False, soft_wrap=not sys.stdout.isatty()).print(view)


def listing(
    fields: Sequence[Any],
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    is_json: bool,
    empty: str,
    next_command: str | None = None,
) -> None:
    """All there are as a table, or as JSON; for a person `empty` if the list is empty, and how to make one."""
    if is_json:
        as_json(fields)
    elif fields:
        table(columns, rows)
    else:
        note(empty)
        if next_command:
            hint(next_command)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table as data; plain columns when standard output is not a terminal."""
    listed = [[visible(str(cell), keep="") for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(len(cell) for cell in column) for column in zip(columns, *listed, strict=True)]
        for row in [list(columns), *listed]:
            data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        view.add_column(column, overflow="fold")  # the end of a long name says as much as its start
    for row in listed:
        view.add_row(*(Text(cell) for cell in row))
    show(view)


def print_or_write(text: str, path: Path | None, *, dry_run: bool, confirm: Confirm) -> bool:
    """Print what is rendered for dstack for `--dry-run`, or write it where `-o` says; False without either.

    A file is written whole or not at all; one with other content is replaced after a question.

    Raises:
        InputError: it cannot be written, or the answer was no.
    """
    from cloudrl.sdk.callbacks import Question

    if dry_run:
        data(text)
    elif path is not None:
        if path.suffix not in (".yml", ".yaml"):
            raise InputError(f"-o {path}: dstack reads .yml files", hint=f"-o {path}.dstack.yml")
        try:
            old = path.read_text(encoding="utf-8") if path.exists() else None
            if old not in (None, text) and not confirm(Question(f"{path} has other content. Replace it?", None)):
                raise InputError(f"{path} was not changed")
            if old != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                private_files.write_file(path, text, mode=0o666)
        except (OSError, UnicodeDecodeError) as failure:
            raise InputError(f"-o {path}: {getattr(failure, 'strerror', None) or failure}") from failure
        note(f"{path} is up to date" if old == text else f"wrote {path}")
        hint(f"dstack apply -f {shlex.quote(str(path))}")
    return dry_run or path is not None


def write_files(files: Mapping[Path, str], *, confirm: Confirm) -> None:
    """Write files, each whole or not at all, after a question if some of them have other content.

    Raises:
        InputError: One cannot be written, or the answer was no.
    """
    from cloudrl.sdk.callbacks import Question

    try:
        other = [str(path) for path, text in files.items() if path.exists() and path.read_bytes() != text.encode()]
        if other and not confirm(Question(f"{', '.join(other)}: there with other content. Replace?", None)):
            raise InputError(f"{', '.join(other)}: not changed")
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            private_files.write_file(path, text, mode=0o666)
    except OSError as failure:
        raise InputError(f"{failure.filename} cannot be written: {failure.strerror}", hint="-o DIR") from failure


def write_file(path: Path, text: str) -> None:
    """A result as a file, whole or not at all; its path is what is printed.

    Raises:
        InputError: it cannot be written.
    """
    try:
        private_files.write_file(path, text, mode=0o666)
    except OSError as failure:
        raise InputError(f"{path} cannot be written: {failure.strerror or failure}", hint="-o FILE") from failure
    data(str(path))


def ask(question: str) -> bool:
    """Ask the person at the terminal."""
    note(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
