"""The job's own reward function, called on some rows before the job is sent: the call, and the pass over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.jobs.local_files import LocalFile, LocalFiles, data_names, is_of_this_machine, split_reward
from cloudrl.jobs.prompt_lengths import training_files
from cloudrl.jobs.uploads import check_code
from cloudrl.options.job import SubmitOptions
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.spec import Job
from cloudrl.spec.hydra import parse_overrides
from cloudrl.verl.keys import MAIN, OLD_REWARD_NAME, OLD_REWARD_PATH, REWARD_NAME, REWARD_PATH, PathKind
from cloudrl.verl.reward_calls import RewardCall, reward_call

if TYPE_CHECKING:
    from cloudrl.rewards.child import Candidate
    from cloudrl.rewards.examine import Examined
    from cloudrl.rewards.rows import Row
    from cloudrl.rewards.verdict import Fault, Level

_INSTALLS = ("pip", "uv", "conda", "container", "image_uri", "py_modules", "py_executable")
"""Fields of a runtime environment that may bring packages."""


def examine_reward(
    job: Job,
    options: SubmitOptions,
    files: LocalFiles,
    *,
    nodes_are_here: bool,
    may_install: bool,
    answers: Sequence[str] = (),
    isolated: bool = True,
) -> Examined | None:
    """Call the job's reward function in the sandbox; None where the job has none of this machine, or is sent unchecked.

    A file that verl could not load is left to `uploads.check_code`, which refuses it.

    Args:
        job: the recipe.
        options: what is asked for beyond it.
        files: what is at the paths that both name.
        nodes_are_here: whether the nodes are this machine, with its files and its Python.
        may_install: whether the cluster may have packages of the user's: by commands, or an image.
        answers: of the user's own, to be scored on each row.
        isolated: False calls it with the user's rights.
    """
    values = _values(job, options)
    call = reward_call(values)
    if call is None or options.unchecked or MAIN not in job.entrypoint:
        return None
    file = files.at(call.path)
    is_here = is_of_this_machine(call.path, PathKind.CODE, files) or (nodes_are_here and call.path.startswith("/"))
    if not is_here or not file.source or not _is_loadable(file, call, files):
        return None
    from cloudrl.rewards.examine import examine

    candidate = _candidate(call, file, files, job, options)
    rows = _rows(call, values, job, options, files)
    may_install = may_install or any(options.runtime_env.get(name) for name in _INSTALLS)
    return examine(
        candidate, rows, shown=call.path, answers=answers, isolated=isolated, nodes_are_here=nodes_are_here,
        may_install=may_install,
    )  # fmt: skip


def check_reward(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse a reward function that verl would fail with, and say what it scores."""
    examined = snapshot.reward
    if examined is None:
        return draft
    if examined.skipped:
        return draft.skipping(f"what the reward function scores ({examined.skipped})")
    from cloudrl.rewards.verdict import Level

    by_level: dict[Level, list[Fault]] = {level: [] for level in Level}
    for fault in examined.faults:
        by_level[fault.level].append(fault)
    draft = draft.refused(*(Finding(each.text, each.hint, is_about_verl=True) for each in by_level[Level.ERROR]))
    draft = draft.warning(*map(_sentence, by_level[Level.WARNING]))
    return draft.noting(*map(_sentence, by_level[Level.NOTE]), *filter(None, [examined.summary]))


def _sentence(fault: Fault) -> str:
    return f"{fault.text}. {fault.hint}" if fault.hint else fault.text


def _values(job: Job, options: SubmitOptions) -> dict[str, str]:
    """The overrides of the job, with what `--reward` stands for (`aliases.expand_aliases`)."""
    values = job.with_overrides(options.overrides).values
    if options.reward is None:
        return values
    own = parse_overrides({key: str(text) for key, text in options.overrides.items()})
    path, function = split_reward(options.reward)
    kept = {key: text for key, text in values.items() if key not in _OF_REWARD}
    kept |= {REWARD_NAME: own[REWARD_NAME]} if REWARD_NAME in own else {}
    return {**kept, REWARD_PATH: path, **({REWARD_NAME: function} if function else {})}


_OF_REWARD = (REWARD_PATH, REWARD_NAME, OLD_REWARD_PATH, OLD_REWARD_NAME)


def _is_loadable(file: LocalFile, call: RewardCall, files: LocalFiles) -> bool:
    with suppress(InputError):
        check_code(file, call.function, option=call.path, is_in_root=files.is_in_root(file))
        return True
    return False


def _candidate(call: RewardCall, file: LocalFile, files: LocalFiles, job: Job, options: SubmitOptions) -> Candidate:
    from cloudrl.rewards.child import Candidate, files_beside

    folder, inside = files.working_dir, None
    beside: Mapping[str, bytes] = {}
    left_out = frozenset[str]()
    if folder is not None:
        beside = files_beside([(entry.name, entry.path, entry.size_bytes) for entry in folder.entries])
        left_out = frozenset(entry.name for entry in folder.entries if not entry.is_folder) - beside.keys()
        inside = files.name_inside(file)
    from_file = options.runtime_env.get("env_vars") or {}
    return Candidate(
        source=file.source, name=file.path.name, call=call, path=file.resolved, beside=beside, left_out=left_out,
        inside=inside if inside in beside else None, working_dir=folder.path if folder is not None else None,
        variables={key: str(value) for key, value in {**job.env, **from_file, **options.env}.items()},
    )  # fmt: skip


def _rows(
    call: RewardCall, values: Mapping[str, str], job: Job, options: SubmitOptions, files: LocalFiles
) -> tuple[Row, ...]:
    """Of the first training file that is here; else made-up ones with the data source that the rows will have."""
    from cloudrl.rewards.rows import UnreadableRows, made_up_rows, read_rows

    for _, path in training_files(values, data_names(job, options), files):
        with suppress(UnreadableRows):  # which the check of the data reports
            return read_rows(path, call.source_column)
    sources = list(_data_sources((*options.data, *job.data)))
    return made_up_rows(*sources[:1])


def _data_sources(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield BUILT_IN[name].load().DATA_SOURCE if name in BUILT_IN else name
