"""What a hint tells the user to type, and what is wrong with it.

A command stands at the start of a line, behind a colon, or in backticks. It ends with the line, the backtick, three
blanks, or where the shell ends it.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import typer
from command_tree import commands, options

from cloudrl.cli.main import app

_COMMAND = re.compile(r"(?:^|: |`|\$\()(?:[A-Z_]+=\S+ )*cloudrl ((?:(?! {3}| && | \| |;|`).)+)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
_OF_OTHERS = re.compile(r"\b(?:dstack|squeue|sbatch|hf|ray|pip|docker|ssh|git) [^\n;`]*")
_NAMES = ("hint", "next_command")  # of the arguments that take a hint
_UNKNOWN = "X"
"""Stands for a value in the text of a hint as the source has it."""


def typed(hint: str) -> list[str]:
    """The commands of a hint, without `cloudrl`."""
    return [re.sub(r"\)\"?$|\.$", "", match.strip()) for match in _COMMAND.findall(hint)]


def faults(hint: str) -> list[str]:
    """Why a hint cannot be followed as it stands; empty if it can."""
    wrong = [f"cloudrl {words}: {reason}" for words in typed(hint) if (reason := _refusal(words))]
    loose = _OF_OTHERS.sub("", _COMMAND.sub("", hint))
    return wrong + [
        f"{name} is an option of no command" for name in _OPTION.findall(loose) if name not in known_options()
    ]


@cache
def known_options() -> frozenset[str]:
    """Those of any command."""
    own = {name for _, command in commands() for name in (*options(command), *_secondary(command))}
    return frozenset(own | {"--help", "--version", "--install-completion"})


def _secondary(command: Any) -> Iterator[str]:
    return (name for option in command.params for name in option.secondary_opts)


@cache
def _refusal(words: str) -> str:
    """What the command line says to these words before it runs anything; empty if it takes them.

    `...` stands for the other words of the user's own command. A command without any words is only named.
    """
    try:
        rest = [word for word in shlex.split(words) if word.strip(".")]
    except ValueError as error:
        return str(error)
    path = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))[:2]
    command: Any = typer.main.get_command(app)
    for depth, name in enumerate(path, 1):
        if name == _UNKNOWN or not hasattr(command, "list_commands"):
            break
        if (command := command.get_command(None, name)) is None:
            return f"there is no command {' '.join(path[:depth])}"
        rest = rest[1:]
    if not rest or hasattr(command, "list_commands"):
        return ""
    reason = _refusal_of(command, rest)
    return "" if "Missing" in reason and {_UNKNOWN, "..."} & {*words.split()} else reason


def _refusal_of(command: Any, words: list[str]) -> str:
    try:
        with redirect_stdout(io.StringIO()):
            command.make_context(command.name, words)
    except typer.Exit:  # of --help
        return ""
    except Exception as error:  # noqa: BLE001 - Typer hides the errors of its parser
        return str(error.format_message() if isinstance(error, typer.BadParameter) else error)
    return ""


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Where a `hint=` stands in the source, and its text, with `_UNKNOWN` for each value that is made where it runs."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        if not any(f"{name}=" in text for name in _NAMES):  # the formatter puts no space there
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.keyword) and node.arg in _NAMES:
                for hint in _texts(node.value):
                    yield f"{path.relative_to(folder.parent)}:{node.value.lineno}", hint


def _template(node: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else _UNKNOWN for part in node.values)


def _texts(node: ast.expr) -> Iterator[str]:
    """Each text that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield re.sub(
            rf"(?<=[a-z]){_UNKNOWN}+(?=\n|$)", "", _template(node)
        )  # what stands at a word's end begins a line
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)
