"""Commands that were typed wrong: what Typer refuses, as an error of ours with the command that puts it right."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import typer

from cloudrl.cli import _output
from cloudrl.errors import InputError, did_you_mean

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What all wrong usage is raised as; Typer exports only its subclass."""
_HELP_INSTEAD = "NoArgsIsHelpError"
"""A noun without a verb, which is answered by its help."""
_LISTED_BY = {"RECIPE": "cloudrl recipes list", "ID": "cloudrl jobs list"}
"""What an argument is chosen from, by its name in the help."""
_WANTED = {"valid integer": "is not a whole number", "valid number": "is not a number"}
"""What pydantic wants -> what to say of another value."""


@contextmanager
def explained(root: Any) -> Iterator[None]:
    """Raise `InputError` for what Typer refuses within the block.

    Args:
        root: The command `cloudrl` itself.
    """
    try:
        yield
    except _USAGE_ERROR as refused:
        if type(refused).__name__ == _HELP_INSTEAD:
            raise
        words = sys.argv[1:]
        raise _explained(refused, _command_of(root, words), words) from None


def unknown_command(context: Any, typed: str, known: Sequence[str]) -> InputError:
    """The error for a word that is no command of `cloudrl`, or of one of its nouns."""
    words, likely, root = sys.argv[1:], did_you_mean(typed, known), context.find_root().command
    path, meant = _command_of(root, words).path, _replaced(words, typed, likely)
    hint = _meant(path, None if meant is None else [*meant, *_arguments_left_out(root, meant)])
    return InputError(f"{path} has no command {typed!r}{likely}", hint=hint)


class _Command(NamedTuple):
    """The command that was typed.

    Attributes:
        path: Its name and those above it: `cloudrl jobs stop`.
        parameters: Its arguments and options.
    """

    path: str
    parameters: Sequence[Any]


def _command_of(root: Any, words: Sequence[str]) -> _Command:
    """The command that the first words name: Typer's errors do not always say it."""
    path, command = ["cloudrl"], root
    for word in words:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        path, command = [*path, word], inner
    return _Command(" ".join(path), command.params)


def _arguments_left_out(root: Any, words: Sequence[str]) -> list[str]:
    """The names of arguments that a command needs, where nothing but the command was typed."""
    command = _command_of(root, words)
    if ["cloudrl", *words] != command.path.split():
        return []
    return [str(each.metavar) for each in command.parameters if each.required and each.param_type_name == "argument"]


def _explained(refused: Any, command: _Command, words: Sequence[str]) -> InputError:
    """The error of ours for one of Typer's.

    Args:
        refused: Typer's.
        command: What was typed.
        words: All that was typed behind `cloudrl`.
    """
    kind, parameter = type(refused).__name__, getattr(refused, "param", None)
    if kind == "NoSuchOption":
        return _unknown_option(refused.option_name, command, words)
    if kind == "BadOptionUsage":
        return _wrong_use(refused, command, words)
    if kind == "MissingParameter" and parameter is not None:
        return _missing(parameter, command, words)
    if parameter is not None:
        return InputError(_bad_value(refused.message, parameter, words), hint=_meant(command.path, None))
    if extra := re.fullmatch(r"Got unexpected extra argument\S* \((.+)\)", refused.message):
        return _too_many(extra[1], command, words)
    return InputError(refused.format_message().rstrip("."), hint=_meant(command.path, None))


def _meant(path: str, words: Sequence[str] | None) -> str:
    """The command that was meant; its help where that is not known, or has a secret that need not be shown again."""
    from cloudrl.protocol.secret_names import command_with_secret

    if words is None or command_with_secret(shlex.join(words)):
        return f"{path} --help"
    return f"Corrected: {_output.command(words)}"


def _unknown_option(option: str, command: _Command, words: Sequence[str]) -> InputError:
    """The error for an option that the command does not have."""
    names = [name for each in command.parameters for name in (*each.opts, *each.secondary_opts)]
    alike = did_you_mean(option[2:], [name[2:] for name in names if name[:3] == option[:3]])  # typos begin right
    likely = alike.replace("'", "'--", 1)
    message = f"{command.path} has no option {option}{likely}"
    return InputError(message, hint=_meant(command.path, _replaced(words, option, likely)))


def _replaced(words: Sequence[str], typed: str, likely: str) -> list[str] | None:
    """With the likely word in place of the first one that is `typed`, or that gives a value to it.

    Args:
        words: What was typed behind `cloudrl`.
        typed: The word that is not known.
        likely: What `did_you_mean` says of it; without a suggestion, there is no such command.
    """
    for at, word in enumerate(words if likely else ()):
        name, equals, value = word.partition("=")
        if name == typed:
            return [*words[:at], likely.split("'")[1] + equals + value, *words[at + 1 :]]
    return None


def _wrong_use(refused: Any, command: _Command, words: Sequence[str]) -> InputError:
    """The error for an option without its value, or with a value where it takes none."""
    option = refused.option_name
    if "does not take a value" in refused.message:
        without = [option if word.startswith(f"{option}=") else word for word in words]
        return InputError(f"{option} takes no value", hint=_meant(command.path, without))
    metavars = {name: each.metavar for each in command.parameters for name in each.opts}
    return InputError(f"{option} needs a value", hint=_meant(command.path, [*words, metavars.get(option) or "VALUE"]))


def _missing(parameter: Any, command: _Command, words: Sequence[str]) -> InputError:
    """The error for an argument or an option that a command cannot go without."""
    name = parameter.metavar or parameter.name.upper()
    is_option = parameter.param_type_name == "option"
    needed = [parameter.opts[0], name] if is_option else [name]
    described = f": {parameter.help[0].lower()}{parameter.help[1:].rstrip('.')}" if parameter.help else ""
    message = f"{command.path} needs {' '.join(needed)}{described}"
    if is_option:
        return InputError(message, hint=_meant(command.path, [*words, *needed]))
    return InputError(message, hint=_LISTED_BY.get(name, _meant(command.path, None)))


def _bad_value(message: str, parameter: Any, words: Sequence[str]) -> str:
    """What is wrong with a value, with the value where the words have it behind the option's name."""
    is_option = parameter.param_type_name == "option"
    name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
    joined = [word.partition("=")[2] for word in words if word.partition("=")[0] in parameter.opts and "=" in word]
    behind = [after for word, after in itertools.pairwise(words) if word in parameter.opts]
    value = next((repr(each) for each in (*joined, *behind)), "that")
    for wanted, fault in _WANTED.items():
        if message.startswith(f"Input should be a {wanted}"):
            return f"{name}: {value} {fault}"
    limit = re.sub(r"^Input should be ", "", message)
    return f"{name}: {value} should be {limit}" if limit != message else f"{name}: {message}"


def _too_many(extra: str, command: _Command, words: Sequence[str]) -> InputError:
    """The error for more arguments than a command takes.

    Args:
        extra: Those that are left over, separated by blanks.
        command: What was typed.
        words: All that was typed behind `cloudrl`.
    """
    arguments = [each for each in command.parameters if each.param_type_name == "argument"]
    taken = " ".join(each.metavar or each.name.upper() for each in arguments)
    message = f"{command.path} takes {f'only {taken}' if taken else 'no argument'}, not also {extra!r}"
    kept: list[str] | None = [*words]
    for word in reversed(extra.split()):
        if kept is not None:
            kept = _without_last(kept, word)
    return InputError(message, hint=_meant(command.path, kept))


def _without_last(words: Sequence[str], word: str) -> list[str] | None:
    if word not in words:
        return None
    at = len(words) - 1 - words[::-1].index(word)
    return [*words[:at], *words[at + 1 :]]
