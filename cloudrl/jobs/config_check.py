"""verl's whole configuration, composed and checked before the job is sent: what verl would find out on rented GPUs."""

from collections.abc import Sequence

from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.memory_check import check_model
from cloudrl.options.environment import is_remote
from cloudrl.spec import override_argument
from cloudrl.verl.command import Command, UnknownConfig, read_command
from cloudrl.verl.composition import Composed, Problem, compose, is_known
from cloudrl.verl.keys import PY_EXECUTABLE
from cloudrl.verl.release_files import is_added, source_of
from cloudrl.verl.rules import READ_IN, notes, problems
from cloudrl.verl.setting import Setting

_ADD = " (`cloudrl verl add` makes it known)"
_INSTALLS = ("pip", "uv", "conda", "container", "image_uri", "py_modules", "py_executable")
"""Fields of a runtime environment that may bring another verl."""


def check_config(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse what Hydra or verl would refuse, all of it at once; say so if it cannot be told here.

    Where it is not certain that verl is of that release, nothing is refused, and what is found becomes notes.

    Raises:
        InputError: The job cannot work, and the user has not asked to send it all the same.
    """
    try:
        command = read_command(draft.job.entrypoint)
        release, composed = _composed(draft, snapshot, command)
    except UnknownConfig as why:
        return draft.noting(f"the configuration is not checked before the job starts: {why}")
    faults, is_certain = list(composed.problems), _is_certain(draft, snapshot, command)
    if composed.values is not None:
        gpus = draft.cluster.gpu_nodes * draft.cluster.gpus_per_node
        setting = Setting(
            composed.values,
            gpus,
            has_own_code=not command.is_usual or _brings_code(draft),
            base=composed.base,
            source=source_of(release),
            is_read=release in READ_IN and snapshot.files.verl_fork is None,
        )
        faults += problems(setting)
        is_certain = is_certain and not setting.get(PY_EXECUTABLE)
        draft, of_model = check_model(draft.noting(*notes(setting)), setting, snapshot)
        faults += of_model
    elif composed.untold:
        draft = draft.noting(
            f"the values of the configuration are not checked before the job starts: {composed.untold}"
        )
    for added, known in composed.lookalikes.items():
        draft = draft.noting(f"{added} is a key of your own, and verl has {known}: is that meant?")
    if faults and is_certain and not draft.options.unchecked:
        raise _refusal(release, faults)
    return draft.noting(*(f"with verl {release}: {problem.text}" for problem in faults))


def _composed(draft: JobDraft, snapshot: Snapshot, command: Command) -> tuple[str, Composed]:
    release = draft.cluster.verl_version
    fork = snapshot.files.verl_fork
    if fork is not None and not is_added(fork):
        raise UnknownConfig(f"cloudrl does not know a verl of your own{_ADD}")
    if release is None or not is_known(release):
        raise UnknownConfig(f"cloudrl does not know verl {release or 'of unknown version'}{_ADD if release else ''}")
    words = (override_argument(key, value) for key, value in draft.arguments.items())
    return release, compose(release, (*command.words, *words), command.config_name)


def _is_certain(draft: JobDraft, snapshot: Snapshot, command: Command) -> bool:
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


def _refusal(release: str, faults: Sequence[Problem]) -> InputError:
    anyway = "Send it all the same: --unchecked"
    if len(faults) == 1:
        return InputError(faults[0].text, hint="\n".join(filter(None, (faults[0].hint, anyway))))
    lines = [f"verl {release} cannot run this job, for {len(faults)} reasons:"]
    for problem in faults:
        lines += [f"  {problem.text}", *([f"    {problem.hint}"] if problem.hint else [])]
    return InputError("\n".join(lines), hint=anyway)
