"""Data sets that a job names and verl cannot read as they are: converted on this machine, as `data prepare` does.

A raw parquet, jsonl or csv file, a folder of such files, and a data set on the Hub or a built-in one that the cluster
has not prepared. What is made of one is kept below `$CLOUDRL_HOME/data`, and made again once a file of it has changed.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudrl import data
from cloudrl.data import generic
from cloudrl.data.fields import UnknownFields
from cloudrl.data.files import SUFFIXES, read_files
from cloudrl.data.request import Request, folder_name
from cloudrl.errors import InputError
from cloudrl.foreign import Malformed, parse_object, read_file
from cloudrl.jobs.data_files import Columns, columns_read, read_table
from cloudrl.jobs.local_files import (
    HUB_ID,
    PARTS,
    Conversion,
    LocalFile,
    LocalFiles,
    data_names,
    inspect_path,
    is_marked,
    part_names,
)
from cloudrl.options.job import SubmitOptions
from cloudrl.private_files import write_file
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.providers.state_folder import home, make_state_folder
from cloudrl.spec import Job
from cloudrl.verl.keys import MAIN, PathKind

_RECORD, _RECORD_LIMIT_BYTES = "made-of.json", 1 << 20
_PREPARED = "./prepared"


def convert_data(
    job: Job,
    options: SubmitOptions,
    files: LocalFiles,
    *,
    prepared: Container[str],
    nodes_are_here: bool = False,
    folder: Path | None = None,
) -> LocalFiles:
    """The same files; each data set that verl cannot read is there as a folder of what was made of it.

    Args:
        job: the recipe.
        options: what is asked for beyond it.
        files: what is at the paths that both name.
        prepared: data sets that the cluster has.
        nodes_are_here: whether an absolute path is one of this machine, too.
        folder: where to keep what is made; None for `$CLOUDRL_HOME/data`.

    Raises:
        InputError: the folder cannot be written.
        ConnectionFailed: the Hub does not answer.
    """
    values = job.with_overrides(options.overrides).values
    if MAIN not in job.entrypoint or "data.custom_cls.path" in values:
        return files  # other programs and data sets read other columns
    found, conversions = dict(files.found), dict[str, Conversion]()
    for name in data_names(job, options):
        is_on_nodes = name.startswith("/") and not nodes_are_here
        if name in prepared or is_on_nodes or not _is_raw(name, files.at(name), columns_read(values)):
            continue
        place = (folder or home() / "data") / folder_name(str(files.at(name).path) if files.at(name).exists else name)
        make_state_folder(place.parent)
        conversions[name] = _convert(name, files.at(name), place)
        if conversions[name].error is None:
            for text, part in ((name, ""), *zip(part_names(name), PARTS, strict=True)):
                found[text] = replace(inspect_path(place, part, {PathKind.DATA}), is_converted=True)
    return replace(files, found=found, conversions=conversions)


def _is_raw(name: str, file: LocalFile, wanted: Columns) -> bool:
    """Whether it is to be converted. What cannot be looked into, or is nothing of the kind, is left as it is."""
    if not file.exists:
        is_on_hub = bool(HUB_ID.fullmatch(name)) and not is_marked(name) and not name.endswith(SUFFIXES)
        return name in BUILT_IN or is_on_hub
    if not file.is_folder:
        return _is_raw_file(file.path, wanted)
    parts = [file.path / part for part in PARTS if part in file.children]
    if parts:
        return len(parts) == len(PARTS) and any(_is_raw_file(part, wanted) for part in parts)
    with suppress(InputError):
        return bool(read_files(file.path))
    return False


def _is_raw_file(path: Path, wanted: Columns) -> bool:
    if path.suffix == ".csv":
        return True
    if path.suffix not in SUFFIXES:
        return False
    table = read_table(path, wanted)
    return table.is_read and not table.error and not set(wanted.names) <= set(table.columns)


def _convert(name: str, file: LocalFile, place: Path) -> Conversion:
    """Make train.parquet and test.parquet, unless they are there and the same would come out."""
    key = _key(file) if file.exists else None  # what the Hub has now is not known here
    if key is not None and (kept := _kept(place)).get("key") == key:
        return Conversion(tuple(kept["choices"]))
    choices: list[str] = []
    try:
        if file.exists:
            shown = name if is_marked(name) or name.startswith("/") else f"./{name}"
            generic.prepare(place, Request(shown, source=str(file.path)), on_choice=choices.append)
        else:
            data.prepare(name, place, on_choice=choices.append)
    except InputError as error:
        return Conversion(error=_with_command(error, name))
    if key is not None:
        write_file(place / _RECORD, json.dumps({"key": key, "choices": choices}))
    return Conversion(tuple(choices))


def _key(file: LocalFile) -> str:
    """Changes when one of the files does."""
    tables = read_files(file.path).values()
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for table in tables for path in table.paths]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def _kept(place: Path) -> dict[str, Any]:
    """What was written beside both files; empty if any of them is missing."""
    if all((place / part).is_file() for part in PARTS):
        with suppress(OSError, Malformed):
            return parse_object(read_file(place / _RECORD, _RECORD_LIMIT_BYTES))
    return {}


def _with_command(error: InputError, name: str) -> InputError:
    """The error, with the command that prepares the data set with options of its own."""
    words = [name]
    if isinstance(error, UnknownFields):
        prompt, answer = error.guess()
        words += ["--prompt-field", prompt, "--answer-field", answer]
    elif error.hint == generic.BAD_ROW_HINT:
        words.append("--skip-bad")
    elif "(--" not in (error.hint or ""):  # nothing that an option of `data prepare` settles
        return error
    command = f"cloudrl data prepare {shlex.join(words)} --to {_PREPARED}"
    return InputError(error.message, hint=f"{command}\nThen: --data {_PREPARED}")
