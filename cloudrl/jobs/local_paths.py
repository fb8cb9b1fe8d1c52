"""Which values of a job are paths of this machine.

The rule, for keys under which verl reads (`cloudrl.verl.path_keys`):

- `./x`, `../x` and `~/x` are of this machine, and have to exist.
- `x/y` is of the working directory that is sent along, if it is in there; otherwise of this machine, if it is here.
- `owner/name` where a model is expected is a model on the Hub; a folder of that name needs `./`.
- `/x` is of the nodes, as it is in all of verl's examples.
- URLs (`hdfs://`, `pkg://`), `null` and `${...}` are left to verl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.errors import InputError
from cloudrl.jobs.defaults import HUB_ID
from cloudrl.jobs.environment import is_remote
from cloudrl.jobs.local_files import is_marked
from cloudrl.jobs.overrides import items
from cloudrl.spec import did_you_mean
from cloudrl.spec.hydra import split_key
from cloudrl.verl.path_keys import PathKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cloudrl.jobs.local_files import LocalFile, LocalFiles

_WHOLE_MODELS = ("actor_rollout_ref.model.path", "critic.model.path", "reward.reward_model.model_path")


@dataclass(frozen=True)
class LocalPath:
    """One path of this machine, in one override; `key` is written with its prefix."""

    key: str
    kind: PathKind
    text: str
    """As the user wrote it."""
    file: LocalFile

    def __str__(self) -> str:
        return f"{self.key}={self.text}"


def find(overrides: Mapping[str, str], files: LocalFiles) -> tuple[tuple[LocalPath, ...], tuple[str, ...]]:
    """The paths of this machine in a job's overrides, and what the user should know of the others.

    Args:
        overrides: As Hydra text.
        files: What lies at them.

    Raises:
        InputError: A path of this machine does not exist, or is a folder where a file is read, or the reverse.
    """
    paths: list[LocalPath] = []
    notes: list[str] = []
    for key, value in overrides.items():
        kind = kind_of(split_key(key)[1])
        for text in items(value) if kind is not None and not key.startswith("~") else ():
            assert kind is not None  # noqa: S101 - the loop is empty without one
            if is_of_this_machine(text, kind, files):
                path = LocalPath(key, kind, text, files.at(text))
                _check(path)
                paths.append(path)
            else:
                notes += _notes(key, text, kind, files)
    return tuple(paths), tuple(dict.fromkeys(notes))


def is_of_this_machine(text: str, kind: PathKind, files: LocalFiles) -> bool:
    """The rule at the head of this file."""
    if is_marked(text):
        return True
    if not text or text == "null" or "${" in text or is_remote(text) or text.startswith(("/", "~")):
        return False
    file = files.at(text)
    if file.is_in_working_dir:
        return True
    if kind is PathKind.MODEL:
        return not HUB_ID.fullmatch(text) and (file.exists or text.count("/") > 1)
    return file.exists or not files.working_dir_is_remote


def not_here(what: str, file: LocalFile) -> InputError:
    """The error for a path that does not exist, with the nearest name in its folder."""
    if file.beside:
        meant = did_you_mean(file.path.name, file.beside)
    else:
        meant = f", nor does its folder {file.path.parent}" if file.beside is None else ""
    return InputError(
        f"{what}: {file.path} does not exist{meant}",
        hint="A path on the nodes is written absolute; a file of --working-dir by its name in there",
    )


def _check(path: LocalPath) -> None:
    file, wants_folder = path.file, path.kind in (PathKind.MODEL, PathKind.FOLDER)
    if not file.exists:
        raise not_here(str(path), file)
    if wants_folder and not file.is_folder:
        raise InputError(f"{path} is a file, and verl reads a {path.kind.value} there")
    if file.is_folder and not wants_folder:
        name = next((each for each in file.children if not each.endswith("/")), None)
        raise InputError(
            f"{path} is a folder, and verl reads a {path.kind.value} there",
            hint=f"For example {path.text.rstrip('/')}/{name}" if name else None,
        )
    if path.key.lstrip("+") in _WHOLE_MODELS and "config.json" not in file.children:
        raise InputError(f"{path} has no config.json, so it is no Hugging Face model folder")


def _notes(key: str, text: str, kind: PathKind, files: LocalFiles) -> Iterator[str]:
    if text.startswith("/") and not files.nodes_are_here and files.at(text).exists:
        yield (
            f"{key}={text} is a path on the nodes; to send what this machine has there, give it relative to this "
            "folder"
        )
    if kind is PathKind.MODEL and HUB_ID.fullmatch(text) and files.at(text).is_folder:
        yield f"{key}={text} is a model on the Hub; the folder of that name here needs ./{text}"
