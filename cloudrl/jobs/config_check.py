"""verl's whole configuration, composed and checked before the job is sent: what verl would find out on rented GPUs."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudrl.errors import did_you_mean
from cloudrl.jobs.compatibility import is_for_another_release
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding, apply, overrides_of
from cloudrl.jobs.memory_check import check_fine_tuning, check_model
from cloudrl.jobs.program_files import compose_own, has_own_files
from cloudrl.jobs.run_checks import mode_problems, with_warnings
from cloudrl.jobs.submission import WITH_VERL
from cloudrl.options.environment import is_remote
from cloudrl.protocol.folders import OWN_CALLBACK_VARIABLE
from cloudrl.spec import override_argument
from cloudrl.spec.hydra import split_key
from cloudrl.verl.batches import with_fitting_batches
from cloudrl.verl.command import Command, UnknownConfig, processes, read_command
from cloudrl.verl.composition import Composed, compose, is_known, keys_of_engine
from cloudrl.verl.key_history import change_of
from cloudrl.verl.keys import MAIN, PY_EXECUTABLE
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.program_config import SEARCH_PATH, has_program, programs_of
from cloudrl.verl.release_files import is_added, source_of
from cloudrl.verl.rules import READ_IN, notes, problems
from cloudrl.verl.rules.fine_tuning import fine_tuning_problems
from cloudrl.verl.setting import Setting

_ADD = "; cloudrl verl add makes it known"
_INSTALLS = ("pip", "uv", "conda", "container", "image_uri", "py_modules", "py_executable")
"""Fields of a runtime environment that may bring another verl."""
_PACKAGE = re.compile(r"(?!verl\b)[A-Za-z0-9][\w.-]*(\[[\w,. -]*\])?\s*([=<>!~].*)?")
"""A package of an index by its name, and not verl; not an address, a file or an option of pip."""


def check_config(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse what Hydra or verl would refuse, all of it at once; say so if it cannot be told here.

    What was found before counts as settled, so that no fault is reported twice. Where it is not certain that verl is
    of that release, or with `--unchecked`, nothing is refused, and what is found becomes warnings.
    """
    if is_for_another_release(draft.job, draft.cluster):  # which is refused
        return draft
    settled = apply(draft.arguments, (word for finding in draft.findings for word in finding.fix))
    try:
        command = read_command(draft.job.entrypoint)
        release, composed = _composed(draft, snapshot, command, settled)
    except UnknownConfig as why:
        return draft.skipping(f"the configuration ({why})")
    faults, is_certain = list(composed.problems), _is_certain(draft, snapshot, command)
    if snapshot.files.working_dir is None:  # the folder that a node starts jobs in may be a checkout of verl
        unsure = [problem for problem in faults if problem.key == SEARCH_PATH]
        faults = [problem for problem in faults if problem not in unsure]
        remedies = {problem.text: f"; to find verl's own: {problem.hint}" if problem.hint else "" for problem in unsure}
        draft = draft.warning(*(f"{text}{remedy}" for text, remedy in remedies.items()))
    if not command.is_read or _is_unknown_fork(snapshot):
        what = f"the job runs {command.program}" if not command.is_read else f"a verl of your own{_ADD}"
        draft = draft.skipping(f"sections, batches, values and names of the configuration, and memory ({what})")
    elif composed.values is not None and command.program != MAIN:
        draft, found = _fine_tuning(draft, snapshot, release, composed, command)
        faults += found
    elif composed.values is not None:
        gpus = draft.cluster.gpu_nodes * draft.cluster.gpus_per_node
        setting = Setting(
            composed.values,
            gpus,
            has_own_code=not command.is_usual or _brings_code(draft),
            base=composed.base,
            source=source_of(release),
            is_read=release in READ_IN and snapshot.files.verl_fork is None,
        )
        faults += with_fitting_batches(setting, problems(setting)) + tuple(mode_problems(draft, setting))
        is_certain = is_certain and not setting.get(PY_EXECUTABLE)
        draft, of_model = check_model(draft.noting(*notes(setting)), setting, snapshot)
        faults += of_model
        draft = with_warnings(draft, snapshot, setting)
    elif composed.untold:
        draft = draft.skipping(f"the values of the configuration ({composed.untold})")
    for added, known in composed.lookalikes.items():
        draft = draft.noting(f"{added} is a key of your own, and verl has {known}: is that meant?")
    if is_certain and not draft.options.unchecked:
        return draft.refused(*(_finding(problem, draft) for problem in faults))
    return draft.warning(*(f"{WITH_VERL}{release or 'of unknown version'}: {problem.text}" for problem in faults))


def _fine_tuning(
    draft: JobDraft, snapshot: Snapshot, release: str, composed: Composed, command: Command
) -> tuple[JobDraft, tuple[Problem, ...]]:
    """On Ray the configuration says how many GPUs train, else the options of `torchrun` do."""
    is_read = release in READ_IN and snapshot.files.verl_fork is None
    setting = Setting(
        composed.values or {},
        0,
        base=composed.base,
        source=source_of(release),
        has_own_code=not command.is_usual or _brings_code(draft),
        is_read=is_read,
    )
    on_ray = command.program.endswith("_ray")
    gpus = setting.world_size if on_ray else processes(draft.job.entrypoint)
    if not is_read:
        draft = draft.skipping(f"batches, values and names of the configuration (the job runs {command.program})")
    draft, of_model = check_fine_tuning(draft, setting, snapshot, gpus=gpus, on_ray=on_ray)
    return draft, (*fine_tuning_problems(setting, gpus=gpus, on_ray=on_ray), *of_model)


def _finding(problem: Problem, draft: JobDraft) -> Finding:
    problem = _replacing(problem, draft)
    typed = {split_key(key)[1] for key in draft.options.overrides}
    ours = {split_key(key)[1] for key in draft.job.overrides} - typed
    words = {problem.key, *re.findall(r"[A-Za-z_][\w-]*(?:\.[\w-]+)+", problem.text)}
    is_recipes = bool(words & ours) and not words & typed
    hint = problem.hint if problem.key else _as_added(problem.hint, draft)
    meant = {split_key(word.partition("=")[0])[1] for word in overrides_of(hint)} - {problem.key}
    if problem.key in typed and meant & typed:  # what is meant is typed, too, with a value of its own
        hint = f"~{problem.key}"
    if problem.key in ours:
        hint = _of_recipe(problem.key, hint, draft)
    owner = f"recipe {draft.job.name!r}" if is_recipes else ""
    return Finding(problem.text, hint, is_about_verl=True, owner=owner, key=problem.key)


def _as_added(hint: str, draft: JobDraft) -> str:
    """The hint with `++` for keys that the job has added, and that verl's own files do not have."""
    added = {split_key(key)[1] for key in draft.arguments if key.startswith("+")}
    words = overrides_of(hint)
    if not any(word.partition("=")[0] in added for word in words):
        return hint
    return shlex.join(f"++{word}" if word.partition("=")[0] in added else word for word in words)


def _of_recipe(key: str, hint: str, draft: JobDraft) -> str:
    """The hint for a key that the recipe sets, which the user cannot leave out of the command.

    A key keeps the recipe's `+` unless the override that replaces it has one of its own.
    """
    words = overrides_of(hint)
    if any(split_key(word.partition("=")[0]) == ("", key) for word in words):
        is_added = any(each.startswith("+") and split_key(each)[1] == key for each in draft.job.overrides)
        return shlex.join(f"++{word}" if is_added and word.startswith(f"{key}=") else word for word in words)
    if f"~{key}" in words:
        return hint
    return " ".join((f"~{key}", hint)) if words else f"~{key}"


def _replacing(problem: Problem, draft: JobDraft) -> Problem:
    """A problem with an added key or with a value in place of a section, as one that takes the override's place."""
    key, equals, _ = problem.text.partition(":")[0].partition("=")
    below = any(word.partition("=")[0].startswith(f"{key}.") for word in overrides_of(problem.hint))
    if problem.key or (equals and (below or "a section here" in problem.text)):
        return replace(problem, key=problem.key or key)
    added = next(
        (text for each, text in draft.arguments.items() if each.startswith("+") and split_key(each)[1] == key), None
    )
    release = draft.cluster.verl_version
    if added is not None and problem.hint:
        is_fix = bool(overrides_of(problem.hint))
        return replace(problem, key=key, hint=_as_added(problem.hint, draft)) if is_fix else problem
    if added is None or release is None:
        return problem
    has_key = (keys_of_engine(release, "dp") | keys_of_engine(release, "megatron")).__contains__
    change = change_of(key, release, has_key)
    if change is None:
        return replace(problem, hint=f"~{key}", key=key)
    hint = shlex.quote(f"{change.key}={change.value(added)}") if change.key else f"~{key}"
    return replace(problem, text=f"{problem.text}; it is gone since verl {change.since}", hint=hint, key=key)


def _composed(
    draft: JobDraft, snapshot: Snapshot, command: Command, arguments: Mapping[str, str]
) -> tuple[str, Composed]:
    release = draft.cluster.verl_version
    words = (*command.words, *(override_argument(key, value) for key, value in arguments.items()))
    files = snapshot.files.program
    if has_own_files(command, files, words) and (command.is_read or is_known(release) or files.has_verl):
        return release or "", _composed_by_own(draft, snapshot, command, words)
    if _is_unknown_fork(snapshot):
        raise UnknownConfig(f"cloudrl does not know a verl of your own{_ADD}")
    if release is None or not is_known(release):
        raise UnknownConfig(f"cloudrl does not know verl {release or 'of unknown version'}{_ADD if release else ''}")
    return release, _without_program(command, release) or compose(release, words, command.config_name)


def _without_program(command: Command, release: str) -> Composed | None:
    """The refusal of a program of verl's that the release does not have."""
    if has_program(command.program, release):
        return None
    meant = did_you_mean(command.program, programs_of(release))
    return Composed(None, (Problem(f"verl {release} has no program {command.program}{meant}"),))


def _composed_by_own(draft: JobDraft, snapshot: Snapshot, command: Command, words: tuple[str, ...]) -> Composed:
    release, files = draft.cluster.verl_version or "", snapshot.files
    is_theirs = files.program.program is None and not files.program.has_verl
    if is_theirs and (refused := _without_program(command, release)) is not None:
        return refused
    if files.program.program is None and files.working_dir_is_remote:
        raise UnknownConfig(f"{command.program} may be in the working directory, which the nodes fetch")
    return compose_own(command, release, files.program, words)


def _is_unknown_fork(snapshot: Snapshot) -> bool:
    fork = snapshot.files.verl_fork
    return fork is not None and not is_added(fork)


def _is_certain(draft: JobDraft, snapshot: Snapshot, command: Command) -> bool:
    """Whether the nodes have said, or their image says, which verl runs, and the job brings no other."""
    brings = any(_may_bring_verl(name, draft.runtime_env.get(name)) for name in _INSTALLS) or is_remote(
        draft.options.working_dir_source or ""
    )
    brings = brings or not command.is_usual or "PYTHONPATH" in _own_variables(draft)
    return snapshot.cluster.verl_version is not None and not brings


def _may_bring_verl(name: str, value: Any) -> bool:
    """Whether a field of a runtime environment may bring another verl: not a list of other packages."""
    packages = value.get("packages") if isinstance(value, Mapping) else value
    if name in ("pip", "uv") and isinstance(packages, (list, tuple)):
        return not all(isinstance(each, str) and _PACKAGE.fullmatch(each.strip()) for each in packages)
    return value is not None


def _brings_code(draft: JobDraft) -> bool:
    """Whether verl, or Ray, imports code of the user's in its processes (verl/__init__.py)."""
    names = {*_own_variables(draft), *draft.cluster.variables}
    is_named = "VERL_USE_EXTERNAL_MODULES" in names or OWN_CALLBACK_VARIABLE in draft.variables
    return is_named or "worker_process_setup_hook" in draft.runtime_env


def _own_variables(draft: JobDraft) -> set[str]:
    """Names of what the user sets; those that debuggers need are not among them."""
    return {*draft.job.env, *draft.options.env, *(draft.options.runtime_env.get("env_vars") or {})}
