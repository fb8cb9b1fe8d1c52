"""verl's whole configuration, composed and checked before the job is sent: what verl would find out on rented GPUs."""

from collections.abc import Sequence
from typing import NamedTuple

from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.options.environment import is_remote
from cloudrl.spec import override_argument
from cloudrl.verl.composition import CONFIG_NAME, Composed, Problem, compose, is_known
from cloudrl.verl.keys import MAIN, PY_EXECUTABLE
from cloudrl.verl.rules import notes, problems
from cloudrl.verl.setting import Setting

_NAMES = ("--config-name", "-cn")
_INSTALLS = ("pip", "uv", "conda", "container", "image_uri", "py_modules", "py_executable")
"""Fields of a runtime environment that may bring another verl."""
_USUAL = (("python", "-m"), ("python3", "-m"))


class _Unknown(Exception):
    """Nobody here can tell what verl would say; the text is why."""


class _Command(NamedTuple):
    """The configuration that the driver composes, and overrides that are part of the entry point."""

    config_name: str
    words: tuple[str, ...]
    is_usual: bool
    """Whether it is the nodes' own Python that runs it, with nothing set for it."""


def check_config(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse what Hydra or verl would refuse, all of it at once; where nobody here knows, say that.

    Where it is not certain that verl is of that release, nothing is refused, and what is found becomes notes.

    Raises:
        InputError: The job cannot work, and the user has not asked to send it all the same.
    """
    try:
        command = _command(draft.job.entrypoint)
        release, composed = _composed(draft, snapshot, command)
    except _Unknown as why:
        return draft.noting(f"the configuration is not checked before the job starts: {why}")
    found, is_certain = list(composed.problems), _is_certain(draft, snapshot, command)
    if composed.values is not None:
        gpus = draft.cluster.nodes * draft.cluster.gpus_per_node
        setting = Setting(composed.values, gpus, has_own_code=not command.is_usual or _brings_code(draft))
        found += problems(setting)
        is_certain = is_certain and not setting.get(PY_EXECUTABLE)
        draft = draft.noting(*notes(setting))
    elif composed.untold:
        draft = draft.noting(
            f"the values of the configuration are not checked before the job starts: {composed.untold}"
        )
    for added, known in composed.lookalikes.items():
        draft = draft.noting(f"{added} is a key of your own, and verl has {known}: is that meant?")
    if found and is_certain and not draft.options.unchecked:
        raise _refusal(release, found)
    return draft.noting(*(f"with verl {release}: {each.text}" for each in found))


def _composed(draft: JobDraft, snapshot: Snapshot, command: _Command) -> tuple[str, Composed]:
    release = draft.cluster.verl_version
    if snapshot.files.verl_fork is not None:
        raise _Unknown("cloudrl does not know a verl of your own")
    if release is None or not is_known(release):
        raise _Unknown(f"cloudrl does not know verl {release or 'of unknown version'}")
    words = (override_argument(key, value) for key, value in draft.arguments.items())
    return release, compose(release, (*command.words, *words), command.config_name)


def _is_certain(draft: JobDraft, snapshot: Snapshot, command: _Command) -> bool:
    """Whether the nodes have said, or their image says, which verl runs, and the job brings no other."""
    brings = any(name in draft.runtime_env for name in _INSTALLS) or is_remote(draft.options.working_dir_source or "")
    brings = brings or not command.is_usual or "PYTHONPATH" in _own_variables(draft)
    return snapshot.cluster.verl_version is not None and not brings


def _brings_code(draft: JobDraft) -> bool:
    """Whether verl, or Ray, imports code of the user's in its processes (verl/__init__.py)."""
    names = {*_own_variables(draft), *draft.cluster.variables}
    return "VERL_USE_EXTERNAL_MODULES" in names or "worker_process_setup_hook" in draft.runtime_env


def _own_variables(draft: JobDraft) -> set[str]:
    """Names of what the user sets; those that debuggers need are not among them."""
    return {*draft.job.env, *draft.options.env, *(draft.options.runtime_env.get("env_vars") or {})}


def _command(entrypoint: Sequence[str]) -> _Command:
    """Raises: _Unknown: It runs another program, or has an option by which Hydra does something else."""
    if MAIN not in entrypoint:
        raise _Unknown(f"the job runs another program than {MAIN}")
    at, name = entrypoint.index(MAIN), CONFIG_NAME
    words = list(entrypoint[at + 1 :])
    overrides = []
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if option in _NAMES and (equals or words):
            name = value if equals else words.pop(0)
        elif word.startswith("-"):
            raise _Unknown(f"the entry point has option {option}")
        else:
            overrides.append(word)
    return _Command(name, tuple(overrides), tuple(entrypoint[:at]) in _USUAL)


def _refusal(release: str, found: Sequence[Problem]) -> InputError:
    anyway = "Send it all the same: --unchecked"
    if len(found) == 1:
        return InputError(found[0].text, hint="\n".join(filter(None, (found[0].hint, anyway))))
    lines = [f"verl {release} cannot run this job, for {len(found)} reasons:"]
    for each in found:
        lines += [f"  {each.text}", *([f"    {each.hint}"] if each.hint else [])]
    return InputError("\n".join(lines), hint=anyway)
