"""A script of the user's, or a task of dstack or SkyPilot, as recipes and a cluster."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudrl import private_files
from cloudrl.errors import InputError
from cloudrl.foreign import Malformed, read_file
from cloudrl.jobs import SubmitOptions
from cloudrl.options.environment import checked_runtime_env
from cloudrl.providers.state_folder import home, make_state_folder
from cloudrl.scripts.imported import Imported, import_file
from cloudrl.scripts.imported import is_importable as is_importable  # noqa: PLC0414  offered here, too
from cloudrl.scripts.lines import Line
from cloudrl.scripts.wants import Wanted
from cloudrl.sdk.callbacks import Confirm, OnProgress, Question, notify, silent, unattended
from cloudrl.spec import Job

_AGREED = "agreed-scripts"
_AGREED_AT_MOST = 500
_NAMED = 3
"""So many lines with one reason are named."""


_OPTIONS_BY_ENDING = {".py": "--reward", **dict.fromkeys((".jsonl", ".json", ".csv", ".parquet"), "--data")}
"""How files that are no scripts are given to a job."""


_RUNS = re.compile(r"""@hydra\.main|^if __name__ == ["']__main__["']""", re.MULTILINE)
_REWARDS = re.compile(r"^(async )?def \w*(score|reward)\w*\(", re.MULTILINE)
_PYTHON_BYTES = 1 << 20


def _is_program(path: Path) -> bool:
    """Whether a Python file is a program that trains, and not a reward function."""
    try:
        text = read_file(path, _PYTHON_BYTES).decode(errors="replace")
    except (OSError, Malformed):
        return False
    return _RUNS.search(text) is not None and _REWARDS.search(text) is None


def import_script(
    path: str | os.PathLike[str],
    arguments: Iterable[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    isolated: bool = True,
    confirm: Confirm = unattended,
) -> Imported:
    """Take over a script, or a task of dstack or SkyPilot: recipes, a cluster, and what became of each line.

        imported = cloudrl.import_script("./train.sh")
        print(imported.trainings[0].job.overrides, imported.cluster)

    The script is run in bash with stand-ins for the programs that it calls, where it can change and reach nothing of
    this machine: see docs/import.md. Nothing is written.

    Args:
        path: A shell script, `dstack.yml` or `sky.yml`.
        arguments: For the script.
        env: Variables that it wants. It gets none of this shell's.
        isolated: False runs it with the user's own rights.
        confirm: Is asked before a script is run for the first time.

    Raises:
        InputError: The script wants a variable or an argument, or the file is nothing that can be taken over.
        NotIsolated: Linux offers no isolation here, and the script was not run.
    """
    script, here = Path(path).expanduser().absolute(), Path.cwd()
    if option := _OPTIONS_BY_ENDING.get(script.suffix.lower()):
        name = shlex.quote(str(path))
        hint = f"Give it to a recipe: cloudrl check grpo {option} {name}"
        if option == "--reward" and _is_program(script):
            runs = f"A recipe with `entrypoint: [python3, {os.path.relpath(script, here)}]` runs it"
            hint = f"{runs}: cloudrl check ./RECIPE.yml --working-dir ./"
        raise InputError(f"{path} is neither a script nor a recipe", hint=hint)
    _ask(script, os.path.relpath(script, here), isolated=isolated, confirm=confirm)
    return import_file(script, tuple(arguments), env, here=here, home=Path.home(), isolated=isolated)


def job_of_script(
    path: str | os.PathLike[str],
    options: SubmitOptions,
    *,
    confirm: Confirm = unattended,
    on_progress: OnProgress = silent,
) -> tuple[Job, SubmitOptions, dict[str, Any]]:
    """The first training of a script, as `check` and `submit` take it: job, options, and fields of its cluster.

    Raises:
        InputError: As `import_script`, or the script starts no training.
    """
    try:
        imported = import_script(path, env=options.env, confirm=confirm)
    except Wanted as wanted:
        _, is_variable, variables = (wanted.hint or "").partition(" --env ")
        is_enough = is_variable and " -- " not in variables  # arguments are for `import`
        raise (Wanted(wanted.message, hint=f"--env {variables}") if is_enough else wanted) from None
    if not imported.trainings:
        raise InputError(
            f"{imported.shown} starts no training that cloudrl can take over", hint=f"cloudrl import {imported.shown}"
        )
    taken, count = imported.trainings[0], len(imported.trainings)
    if count > 1:
        notify(on_progress, f"note: {imported.shown} starts {count} trainings; this is the first: {taken.job.source}")
    notify(on_progress, *_notes(line for line in imported.problems if not line.is_checked))
    working_dir = options.working_dir or taken.working_dir
    runtime_env = options.runtime_env or checked_runtime_env(dict(taken.runtime_env), imported.shown)
    given = replace(options, working_dir=working_dir, runtime_env=runtime_env)
    cluster = {name: value for name, value in imported.cluster.items() if name != "name"}
    return taken.job, given, cluster


def _notes(lines: Iterable[Line]) -> Iterator[str]:
    """Each reason once: a command that breaks off early loses dozens of overrides to the same one."""
    texts: dict[str, list[str]] = {}
    for line in lines:
        texts.setdefault(line.why, []).append(line.text)
    for why, alike in texts.items():
        shown = alike if len(alike) <= _NAMED else [*alike[:_NAMED], f"{len(alike) - _NAMED} more"]
        yield f"note: {'each of ' if alike[1:] else ''}{', '.join(shown)}: {why}"


def _ask(script: Path, shown: str, *, isolated: bool, confirm: Confirm) -> None:
    """Ask before a script of this content is run for the first time.

    Raises:
        InputError: The answer was no, or there is no such file.
    """
    try:
        digest = hashlib.sha256(read_file(script, 4 << 20)).hexdigest()
    except (OSError, Malformed) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{shown} cannot be read: {reason}",
            hint=f"ls {shlex.quote(str(script if script.is_dir() else script.parent))}",
        ) from None
    mark = f"{digest} {'isolated' if isolated else 'alone'}"
    agreed = _agreed()
    if mark in agreed:
        return
    how = "cut off from this machine's files and network" if isolated else "with all of your rights"
    question = Question(
        f"cloudrl runs {shown} in bash, {how}, to see what it starts. Go on?", True if isolated else None
    )
    if not confirm(question):
        raise InputError(f"{shown} was not run")
    make_state_folder(home())
    private_files.write_file(home() / _AGREED, "\n".join([*agreed, mark][-_AGREED_AT_MOST:]) + "\n")


def _agreed() -> list[str]:
    try:
        return read_file(home() / _AGREED).decode(errors="replace").split("\n")[:-1]
    except (OSError, Malformed):
        return []
