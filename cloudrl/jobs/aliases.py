"""`--model`, `--data`, `--reward` and `--track` as what they stand for: overrides in verl's own keys."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cloudrl.data.files import SUFFIXES as RAW_SUFFIXES
from cloudrl.errors import InputError, Refusals, did_you_mean
from cloudrl.jobs.data_files import SUFFIXES
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import (
    PARTS,
    LocalFile,
    LocalFiles,
    data_names,
    is_marked,
    is_of_this_machine,
    missing_path,
    part_names,
    split_reward,
)
from cloudrl.options.environment import is_remote
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.spec.hydra import hydra_text, one_or_many, parse_overrides, unquoted
from cloudrl.verl import keys
from cloudrl.verl.command import model_key
from cloudrl.verl.keys import PathKind
from cloudrl.verl.loggers import TRACKERS


def expand_aliases(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: write out what aliases stand for; it takes the place of what the recipe says about it.

    One that contradicts an override, or leads to no data set or file, is refused and left out.
    """
    options, files, refused = draft.options, snapshot.files, Refusals()
    values = parse_overrides({key: str(hydra_text(value)) for key, value in draft.overrides.items()})
    overrides, draft = draft.overrides, replace(draft, overrides={})
    if options.model is not None:
        with refused.collect():
            _check_free(values, f"--model {options.model}", model_key(draft.job.entrypoint))
            draft = _model(draft, options.model, files)
    if names := data_names(draft.job, options):
        unsettled = frozenset((keys.TRAIN_FILES, keys.VAL_FILES))
        try:
            _check_free(values, f"--data {names[0]}" if options.data else f"data: [{names[0]}]", keys.TRAIN_FILES)
            draft = _data(draft, names, snapshot, values)
        except InputError as error:
            refused.append(error)
            draft = replace(draft, job=draft.job.replace(data=()), unsettled=unsettled)
    if options.reward is not None:
        with refused.collect():
            _check_free(values, f"--reward {options.reward}", keys.REWARD_PATH)
            draft = draft.without(keys.REWARD_PATH, keys.REWARD_NAME, keys.OLD_REWARD_PATH, keys.OLD_REWARD_NAME)
            draft = draft.overriding(_reward(options.reward, values))
    if options.track:
        with refused.collect():
            _check_free(values, f"--track {options.track[0]}", keys.LOGGER)
            draft = draft.without(keys.LOGGER).overriding({keys.LOGGER: ["console", *map(_tracker, options.track)]})
    return draft.overriding(overrides).refused(*refused)


def _tracker(name: str) -> str:
    if name not in TRACKERS:
        unknown = f"--track {name} is not a logger of verl{did_you_mean(name, TRACKERS)}"
        raise InputError(unknown, hint=f"One of: {', '.join(TRACKERS)}")
    return name


def _check_free(values: Mapping[str, str], alias: str, key: str) -> None:
    if key in values:
        raise InputError(f"{alias} and {key}={values[key]} say the same thing twice", hint="Give one of the two")


def _model(draft: JobDraft, model: str, files: LocalFiles) -> JobDraft:
    key = model_key(draft.job.entrypoint)
    old, critic = draft.job.override(key), draft.job.override(keys.CRITIC_MODEL_PATH)
    follows = critic is not None and old is not None and unquoted(critic) == unquoted(old)
    is_here = model not in draft.cluster.models and is_of_this_machine(model, PathKind.MODEL, files)
    draft = draft.without(key, *([keys.CRITIC_MODEL_PATH] if follows else []))
    draft = replace(draft, job=draft.job.replace(model=None if is_here else model))
    return draft.overriding({key: model}) if is_here else draft


def _data(draft: JobDraft, names: tuple[str, ...], snapshot: Snapshot, values: Mapping[str, str]) -> JobDraft:
    draft, cluster = draft.without(keys.TRAIN_FILES, keys.VAL_FILES), draft.cluster
    if all(name in cluster.data for name in names):
        return replace(draft, job=draft.job.replace(data=names))
    train, val = zip(*(_files(name, snapshot) for name in names), strict=True)
    paths: dict[str, Any] = {keys.TRAIN_FILES: one_or_many(train)}
    notes = [line for name in names for line in _converted(name, snapshot)]
    if keys.VAL_FILES not in values:
        paths[keys.VAL_FILES] = one_or_many(val)
        if train == val:
            notes = [f"validation reads {train[0]}, too: {keys.VAL_FILES}=... names another file for it"]
    return draft.noting(*notes, job=draft.job.replace(data=())).overriding(paths)


def _converted(name: str, snapshot: Snapshot) -> Iterator[str]:
    """What was made of a data set, and of which of its columns."""
    if name in snapshot.files.conversions:
        counts = [snapshot.tables[text].rows for text in part_names(name) if text in snapshot.tables]
        rows = " and ".join(f"{count} {what}" for count, what in zip(counts, ("training", "validation"), strict=False))
        yield f"{name} was converted for verl: {rows or 'training and validation'} rows"
        yield from snapshot.files.conversions[name].choices


def _files(name: str, snapshot: Snapshot) -> tuple[str, str]:
    """(training file, validation file) of one data set."""
    cluster, files = snapshot.cluster, snapshot.files
    if name in cluster.data:
        return cluster.data[name]["train"], cluster.data[name]["test"]
    conversion, file = files.conversions.get(name), files.at(name)
    if conversion is not None and conversion.error is not None:
        raise conversion.error
    if conversion is None and (is_remote(name) or name.endswith(SUFFIXES)):
        return name, name
    if name.startswith("/") and conversion is None:
        return part_names(name)
    if not file.exists:
        raise _no_data(name, file, snapshot)
    if not file.is_folder:
        raise InputError(
            f"--data {name} is a file that does not end in {', '.join(RAW_SUFFIXES)}",
            hint=f"Name its kind, for example: mv {shlex.quote(name)} {shlex.quote(name)}.jsonl",
        )
    missing = [part for part in PARTS if part not in file.children]
    if missing:
        raise InputError(
            f"--data {name} has no {missing[0]} (it has: {', '.join(file.children) or 'nothing'})",
            hint=f"Name the files: {keys.TRAIN_FILES}=[FILE.parquet] {keys.VAL_FILES}=[FILE.parquet]",
        )
    return part_names(name)


def _no_data(name: str, file: LocalFile, snapshot: Snapshot) -> InputError:
    if is_marked(name):
        return missing_path(f"--data {name}", file)
    known = list(dict.fromkeys((*snapshot.cluster.data, *BUILT_IN)))
    has = "" if snapshot.is_expected else f"Cluster {snapshot.cluster.name!r} has: {', '.join(snapshot.cluster.data)}\n"
    return InputError(
        f"--data {name} is neither a data set nor a file or folder here{did_you_mean(name, known)}",
        hint=f"{has if snapshot.cluster.data else ''}Built-in data sets: {', '.join(BUILT_IN)}\n"
        f"Others by owner/name on the Hub, or as a file: ./{name}.jsonl",
    )


def _reward(text: str, values: Mapping[str, str]) -> dict[str, Any]:
    path, function = split_reward(text)
    if function is not None:
        _check_free(values, f"--reward {text}", keys.REWARD_NAME)
    name = {} if keys.REWARD_NAME in values else {keys.REWARD_NAME: function or keys.REWARD_FUNCTION}
    return {keys.REWARD_PATH: path, **name}
