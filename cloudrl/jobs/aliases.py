"""`--model`, `--data` and `--reward` as what they stand for: overrides in verl's own keys."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from cloudrl.errors import InputError
from cloudrl.jobs.defaults import CRITIC_MODEL, MODEL, TRAIN, VAL
from cloudrl.jobs.environment import is_remote
from cloudrl.jobs.local_paths import is_of_this_machine, not_here
from cloudrl.jobs.overrides import unquoted
from cloudrl.spec import Job, did_you_mean
from cloudrl.spec.hydra import hydra_text, split_key
from cloudrl.verl.path_keys import REWARD_FUNCTION, REWARD_NAME, REWARD_PATH, PathKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.jobs.options import SubmitOptions
    from cloudrl.jobs.working_dir import DirectoryListing
    from cloudrl.spec.shape import ClusterShape

_FUNCTION = re.compile(r"(.+):([A-Za-z_]\w*)")
_LEGACY_REWARD = ("custom_reward_function.path", "custom_reward_function.name")
"""verl up to 0.7; where 0.9.1 finds one of them, it wins (verl 0.9.1, experimental/reward_loop/reward_loop.py)."""


def expand_aliases(
    job: Job,
    options: SubmitOptions,
    cluster: ClusterShape,
    *,
    here: Path,
    working_dir: DirectoryListing | None = None,
) -> tuple[Job, SubmitOptions, tuple[str, ...]]:
    """The same job and options, spelled out; and what the user should know of it.

    Args:
        job: The recipe; what an alias stands for takes the place of what the recipe says about it.
        options: What the user asks for.
        cluster: What data sets and models are prepared on.
        here: What relative paths start from.
        working_dir: The folder that is sent along.

    Raises:
        InputError: An alias and an override contradict each other, or there is no such data set or file.
    """
    plain = replace(options, model=None, data=(), reward=None)
    given = {split_key(key)[1]: str(hydra_text(value)) for key, value in options.overrides.items()}
    added: dict[str, Any] = {}
    notes: list[str] = []
    if options.model is not None:
        _check_free(given, f"--model {options.model}", MODEL)
        job, made = _model(job, options.model, cluster, here, working_dir)
        added |= made
    if options.data:
        _check_free(given, f"--data {options.data[0]}", TRAIN)
        job, made = _data(job, options.data, cluster, here, given, notes)
        added |= made
    if options.reward is not None:
        _check_free(given, f"--reward {options.reward}", REWARD_PATH)
        job = _drop_keys(job, REWARD_PATH, REWARD_NAME, *_LEGACY_REWARD)
        added |= _reward(options.reward, given)
    return job, replace(plain, overrides={**added, **plain.overrides}), tuple(notes)


def _check_free(given: Mapping[str, str], alias: str, key: str) -> None:
    if key in given:
        raise InputError(
            f"{alias} and {key}={given[key]} say the same thing twice", hint="Give one of the two"
        )


def _drop_keys(job: Job, *keys: str) -> Job:
    kept = {key: value for key, value in job.overrides.items() if split_key(key)[1] not in keys}
    return job.replace(overrides=kept)


def _model(
    job: Job, model: str, cluster: ClusterShape, here: Path, working_dir: DirectoryListing | None
) -> tuple[Job, dict[str, Any]]:
    old, critic = job.override(MODEL), job.override(CRITIC_MODEL)
    follows = critic is not None and old is not None and unquoted(critic) == unquoted(old)
    job = _drop_keys(job, MODEL, *([CRITIC_MODEL] if follows else []))
    if model in cluster.models:
        return job.replace(model=model), {}
    if is_of_this_machine(model, PathKind.MODEL, here, working_dir):
        return job.replace(model=None), {MODEL: model}
    return job.replace(model=model), {}


def _data(
    job: Job,
    names: tuple[str, ...],
    cluster: ClusterShape,
    here: Path,
    given: Mapping[str, str],
    notes: list[str],
) -> tuple[Job, dict[str, Any]]:
    job = _drop_keys(job, TRAIN, VAL)
    if all(name in cluster.data for name in names):
        return job.replace(data=names), {}
    pairs = [_files(name, cluster, here) for name in names]
    train, val = ([pair[index] for pair in pairs] for index in (0, 1))
    if train == val and VAL not in given:
        notes.append(f"validation reads {train[0]}, too: {VAL}=... names another file for it")
    made: dict[str, Any] = {TRAIN: _one_or_many(train)}
    return job.replace(data=()), made if VAL in given else {**made, VAL: _one_or_many(val)}


def _files(name: str, cluster: ClusterShape, here: Path) -> tuple[str, str]:
    """(training file, validation file) of one data set."""
    if name in cluster.data:
        return cluster.data[name]["train"], cluster.data[name]["test"]
    if is_remote(name) or name.endswith((".parquet", ".json", ".jsonl")):
        return name, name
    if name.startswith("/"):
        return f"{name.rstrip('/')}/train.parquet", f"{name.rstrip('/')}/test.parquet"
    folder = here / Path(name).expanduser()
    if not folder.exists():
        if "/" in name and name.startswith((".", "~")):
            raise not_here(f"--data {name}", name, here)
        has = ", ".join(cluster.data) or "none"
        raise InputError(
            f"--data {name} is neither a data set that cluster {cluster.name!r} has prepared (it has: {has}) nor a "
            f"file or folder here{did_you_mean(name, cluster.data)}",
            hint=f"cloudrl up ... --data {name}",
        )
    found = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
    missing = [file for file in ("train.parquet", "test.parquet") if file not in found]
    if missing:
        raise InputError(
            f"--data {name} has no {missing[0]} (it has: {', '.join(sorted(found)) or 'nothing'})",
            hint=f"Name the files: {TRAIN}=[...] {VAL}=[...]",
        )
    return str(PurePosixPath(name) / "train.parquet"), str(PurePosixPath(name) / "test.parquet")


def _reward(text: str, given: Mapping[str, str]) -> dict[str, Any]:
    match = None if is_remote(text) and text.count(":") == 1 else _FUNCTION.fullmatch(text)
    path, function = (match[1], match[2]) if match else (text, None)
    if function is not None and REWARD_NAME in given:
        raise InputError(
            f"--reward {text} and {REWARD_NAME}={given[REWARD_NAME]} say the same thing twice",
            hint="Give one of the two",
        )
    name = {} if function is None and REWARD_NAME in given else {REWARD_NAME: function or REWARD_FUNCTION}
    return {REWARD_PATH: path, **name}


def _one_or_many(paths: list[str]) -> str | list[str]:
    return paths[0] if len(paths) == 1 else paths
