"""What a hint tells the user to type, and what is wrong with it.

A command stands at the start of a line, behind a colon, or in backticks. It ends with the line, the backtick, three
blanks, or where the shell ends it. Options and overrides that are to be pasted stand alone there, or in brackets.
"""

from __future__ import annotations

import io
import itertools
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from typing import Any

import typer
from command_tree import commands, options
from hint_sources import UNKNOWN

from cloudrl.cli.main import app

_COMMAND = re.compile(r"(?:^|: +|`|\$\()(?:[A-Z_]+=\S+ )*cloudrl ((?:(?! {3}| && | \| |;|`).)+)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
_OF_OTHERS = re.compile(r"\b(?:dstack|squeue|sbatch|hf|ray|pip|docker|ssh|git|python|sudo|export) [^\n;`]*")
_BACKTICKS = re.compile(r"`[^`]*`")
_BRACKETS = re.compile(r"\((-[^()]+)\)")
OVERRIDE = re.compile(
    rf"(?:\+\+?)?(?:[A-Za-z_][\w-]*(?:\.[\w-]+)+|{UNKNOWN}|model_engine)=.*|~[A-Za-z_][\w.-]*", re.DOTALL
)
_PARTS = re.compile(r"; |, and | {3,}| && ")
_LEFT_OUT = re.compile(r"\b[Ll]eave (?:out )?[^,.;:]*")


def typed(hint: str) -> list[str]:
    """The commands of a hint, without `cloudrl`."""
    return [re.sub(r"\)\"?$|\.$", "", match.strip()) for match in _COMMAND.findall(hint)]


def faults(hint: str) -> list[str]:
    """Why a hint cannot be followed as it stands; empty if it can."""
    named = {words for words in typed(hint) if f"`cloudrl {words}`" in hint}
    wrong = [f"cloudrl {words}: {why}" for words in typed(hint) if (why := _refusal(words, is_named=words in named))]
    loose = _OF_OTHERS.sub("", _COMMAND.sub("", hint))
    unknown = [f"{name} is an option of no command" for name in _OPTION.findall(loose) if name not in known_options()]
    open_ended = [f"cloudrl {words} leaves words out" for words in typed(hint) if re.search(r" \.\.\.?( |$)", words)]
    return wrong + open_ended + (unknown or half_typed(_COMMAND.sub("", hint)))


def half_typed(text: str) -> list[str]:
    """What of the rest of a hint looks as if it could be pasted and cannot: it has words of a sentence beside it.

    In a sentence an option may be named, without a value.
    """
    parts = [part for line in text.splitlines() for part in _PARTS.split(_BACKTICKS.sub("", line))]
    return [fault for part in parts for fault in _half_typed(part.strip())]


def _half_typed(part: str) -> Iterator[str]:
    part = _LEFT_OUT.sub("", part)
    for inner in _BRACKETS.findall(part):
        yield from _foreign_words(inner)
    bare = _BRACKETS.sub("", part)
    sentence, colon, last = bare.rpartition(max(": ", " - ", key=bare.rfind))  # the second in remedies of failures
    if last.startswith("-") or OVERRIDE.fullmatch(last.partition(" ")[0].strip("'")):
        yield from _foreign_words(last)
    else:
        sentence += colon + _OF_OTHERS.sub("", last)
    words = sentence.split()
    for word, after in zip(words, [*words[1:], ""], strict=False):
        is_given = _takes_value(word) and re.match(r"[A-Z./~'\"]|\S+=", after)
        if is_given or OVERRIDE.fullmatch(word.strip("',.;")):
            yield f"{word} stands in a sentence: {part}"


def _foreign_words(text: str) -> Iterator[str]:
    """The first word that is neither an option with its value nor an override."""
    try:
        words = iter(shlex.split(text))
    except ValueError as error:
        yield f"{text}: {error}"
        return
    for word in words:
        if word.startswith("-"):
            if "=" not in word and _takes_value(word) and next(words, None) is None:
                yield f"{word} lacks its value: {text}"
        elif word != UNKNOWN and not OVERRIDE.fullmatch(word):
            yield f"{word!r} is no part of what is typed: {text}"
            return


def _takes_value(option: str) -> bool:
    return option in _with_values() or option.startswith(f"--{UNKNOWN}")


@cache
def _with_values() -> frozenset[str]:
    """Options that take a value in every command that has them."""
    every = [(name, each) for _, command in commands() for each in command.params for name in each.opts]
    flags = {name for name, each in every if getattr(each, "is_flag", False)}
    return frozenset({name for name, _ in every if name.startswith("-")} - flags)


@cache
def known_options() -> frozenset[str]:
    """Those of any command."""
    own = {name for _, command in commands() for name in (*options(command), *_secondary(command))}
    return frozenset(own | {"--help", "--version", "--install-completion"})


def _secondary(command: Any) -> Iterator[str]:
    return (name for option in command.params for name in option.secondary_opts)


@cache
def _refusal(words: str, *, is_named: bool) -> str:
    """What the command line says to these words before it runs anything; empty if it takes them.

    `...` stands for the other words of the user's own command. In a sentence a command may only be named.
    """
    try:
        rest = [word for word in shlex.split(words) if word.strip(".")]
    except ValueError as error:
        return str(error)
    path = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))[:2]
    command: Any = typer.main.get_command(app)
    for depth, name in enumerate(path, 1):
        if name == UNKNOWN or not hasattr(command, "list_commands"):
            break
        if (command := command.get_command(None, name)) is None:
            return f"there is no command {' '.join(path[:depth])}"
        rest = rest[1:]
    if hasattr(command, "list_commands"):
        return ""
    if not rest:
        return "" if is_named else _refusal_of(command, [])
    reason = _refusal_of(command, [*rest]) and _refusal_of(command, ["1" if word == UNKNOWN else word for word in rest])
    return "" if "Missing" in reason and {UNKNOWN, "..."} & {*words.split()} else reason


def _refusal_of(command: Any, words: list[str]) -> str:
    try:
        with redirect_stdout(io.StringIO()):
            command.make_context(command.name, words)
    except typer.Exit:  # of --help
        return ""
    except Exception as error:  # noqa: BLE001 - Typer hides the errors of its parser
        return str(error.format_message() if isinstance(error, typer.BadParameter) else error)
    return ""
