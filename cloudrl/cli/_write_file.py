"""Writes a rendered dstack file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.cli import _output
from cloudrl.cli._terminal import Terminal
from cloudrl.errors import InputError
from cloudrl.sdk.callbacks import Question

if TYPE_CHECKING:
    from pathlib import Path


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
        question = Question(f"{path} has other content. Replace it?", default=None)
        if path.exists() and not Terminal(yes=yes).confirm(question):
            raise InputError(f"{path} is left as it is")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"-o {path}: {getattr(error, 'strerror', None) or error}") from error
    _output.note(f"wrote {path}")
