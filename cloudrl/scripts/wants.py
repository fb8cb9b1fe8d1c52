"""What a script stops without: variables and arguments, read from bash's messages."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudrl.errors import InputError
from cloudrl.protocol.secret_names import is_secret
from cloudrl.scripts.programs import is_training
from cloudrl.scripts.sandbox import Recording

MESSAGE = re.compile(r"^(?P<file>.+?): line (?P<line>\d+): (?P<text>.*)$", re.MULTILINE)
"""What bash says of a line of a script."""
_UNBOUND = re.compile(r"\$?(?P<name>[A-Za-z_]\w*|\d+): unbound variable")
_REQUIRED = re.compile(r"\$?(?P<name>[A-Za-z_]\w*|\d+): (?P<why>.+)")
_BUILTINS = frozenset(
    [
        "alias",
        "bg",
        "bind",
        "break",
        "builtin",
        "caller",
        "cd",
        "command",
        "compgen",
        "complete",
        "continue",
        "declare",
        "dirs",
        "disown",
        "echo",
        "enable",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "fork",
        "getopts",
        "hash",
        "help",
        "history",
        "jobs",
        "kill",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "printf",
        "pushd",
        "pwd",
        "read",
        "readarray",
        "readonly",
        "return",
        "set",
        "shift",
        "shopt",
        "source",
        "suspend",
        "syntax",
        "test",
        "times",
        "trap",
        "true",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
        "warning",
    ]
)
"""Names before a colon that are no variables: builtins of bash, and words of its own messages."""


class Wanted(InputError):
    """The script stops without a variable or an argument."""


@dataclass(frozen=True)
class Want:
    """One variable or argument.

    Attributes:
        name: Of the variable, or the number of the argument.
        where: `run.sh:3`, or the file alone.
        why: What the script itself says of it; may be empty.
    """

    name: str
    where: str
    why: str = ""

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument."""
        return self.name.isdecimal()

    def __str__(self) -> str:
        what = f"argument {self.name}" if self.is_argument else f"the variable {self.name}"
        return f"{self.where} wants {what}" + (f": {self.why}" if self.why else "")


def read_want(recording: Recording) -> Want | None:
    """The variable or argument without which a script has stopped before any training; None if that is not why."""
    if recording.status in (0, None) or any(map(is_training, recording.calls)):
        return None
    for message in reversed(list(MESSAGE.finditer(recording.output))):
        match = _UNBOUND.fullmatch(message["text"]) or _REQUIRED.fullmatch(message["text"])
        if match is None or match["name"] in _BUILTINS:
            continue
        why = match.groupdict().get("why") or ""
        usual = ("parameter null or not set", "parameter not set")
        where = f"{posixpath.basename(message['file'])}:{message['line']}"
        return Want(match["name"], where, "" if why in usual else why)
    return None


def refusal(shown: str, wants: Sequence[Want], given: Sequence[str]) -> Wanted:
    """The error that names all of them, with the command to type.

    Args:
        shown: The script.
        wants: At least one.
        given: Arguments that it was run with.
    """
    return Wanted("\n".join(map(str, wants)), hint=shlex.join(["cloudrl", "import", shown, *_words(wants, given)]))


def _words(wants: Sequence[Want], given: Sequence[str]) -> Iterator[str]:
    for want in wants:
        if not want.is_argument:
            yield from ("--env", want.name if is_secret(want.name) else f"{want.name}=VALUE")
    count = max((int(want.name) for want in wants if want.is_argument), default=0)
    arguments = [*given, *(f"ARG{number}" for number in range(len(given) + 1, count + 1))]
    yield from ("--", *arguments) if arguments else ()


def refuse_usage(recording: Recording, shown: str, unset: Sequence[str]) -> None:
    """Refuse a script that ended before any training, for a reason that bash does not say.

    Raises:
        Wanted: It explains its usage, or has called nothing.
        InputError: bash cannot read it.
    """
    if recording.status in (0, None) or any(map(is_training, recording.calls)):
        return
    says_usage = "usage" in recording.output.lower()
    if "syntax error" in recording.output and not recording.calls:
        raise InputError(recording.output.strip().splitlines()[0], hint=f"bash -n {shown}")
    if not recording.calls or says_usage:
        ending = "\n".join(recording.output.strip().splitlines()[-5:])
        arguments = ["-- ARGS"] if not unset or says_usage else []
        raise Wanted(
            f"{shown} ended with status {recording.status} before any training" + (f":\n{ending}" if ending else ""),
            hint=" ".join([f"cloudrl import {shown}", *(f"--env {name}=VALUE" for name in unset), *arguments]),
        )
