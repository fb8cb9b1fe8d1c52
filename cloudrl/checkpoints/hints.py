"""Completes the commands in the hints of errors: what finds a fault in a file does not know where the user looked."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudrl.errors import CloudrlError
from cloudrl.saves.names import STEP

_COMMAND = re.compile(r"(cloudrl checkpoints (list|verify|merge|reshard|pull|push|prune)\b)([^`\n]*)")
_OF_ALL = {"list", "prune"}
"""Commands that take no step."""


def complete(hint: str, where: str, *, step: int | None = None, run: str | None = None, role: str = "actor") -> str:
    """A hint whose commands of `cloudrl checkpoints` can be pasted.

    Args:
        hint: What to do, with or without commands.
        where: Options that name the cluster or the folder, quoted.
        step: For commands that name none.
        run: Named if the step is that of several runs.
        role: Of the step.
    """

    def completed(match: re.Match[str]) -> str:
        command, verb, rest = match.groups()
        options = []
        if verb not in _OF_ALL and not re.match(r" \d", rest) and step is not None:
            options.append(str(step))
        if "--dir" not in rest and "--cluster" not in rest:
            options.append(_of_run(where) if verb in _OF_ALL else where)
        if verb not in _OF_ALL:
            options += ["--name", shlex.quote(run)] if run is not None and "--name" not in rest else []
            options += ["--role", shlex.quote(role)] if role != "actor" and "--role" not in rest else []
        if options and (number := re.match(r" \d+", rest)):
            command, rest = command + number[0], rest[number.end() :]
        return " ".join([command, *options]) + rest

    return _COMMAND.sub(completed, hint)


def _of_run(where: str) -> str:
    """The same of the run, if it names the folder of a step: other steps are beside that."""
    option, folder = shlex.split(where)
    path = Path(folder)
    step = next((folder for folder in (path, *path.parents) if STEP.fullmatch(folder.name)), None)
    return where if step is None else f"{option} {shlex.quote(str(step.parent))}"


@contextmanager
def completed_hints(
    where: str, *, step: int | None = None, run: str | None = None, role: str = "actor"
) -> Iterator[None]:
    """Within the block, errors that pass get their hints completed: see `complete`."""
    try:
        yield
    except CloudrlError as error:
        if error.hint:
            error.hint = complete(error.hint, where, step=step, run=run, role=role)
        raise
