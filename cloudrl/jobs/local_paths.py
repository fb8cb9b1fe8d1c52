"""Which values of a job are paths of this machine.

The rule, for keys under which verl reads (`path_keys`):

- `./x`, `../x` and `~/x` are of this machine, and have to exist.
- `x/y` is of the working directory that is sent along, if it is in there; otherwise of this machine, if it is here.
- `owner/name` where a model is expected is a model on the Hub; a folder of that name needs `./`.
- `/x` is of the nodes, as it is in all of verl's examples.
- URLs (`hdfs://`, `pkg://`), `null` and `${...}` are left to verl.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.errors import InputError
from cloudrl.jobs.environment import is_remote
from cloudrl.jobs.overrides import unquoted
from cloudrl.spec import did_you_mean
from cloudrl.spec.hydra import split_key
from cloudrl.verl.path_keys import PathKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cloudrl.jobs.working_dir import DirectoryListing

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ITEM = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^,'"\[\]{}]+?)\s*(,|\Z)""", re.DOTALL)


@dataclass(frozen=True)
class LocalPath:
    """One path of this machine, in one override."""

    key: str
    """With its prefix."""
    kind: PathKind
    text: str
    """As the user wrote it."""
    path: Path
    """Absolute, links followed."""


@dataclass(frozen=True)
class Found:
    """The paths of this machine in a job's overrides, and what the user should know of the others."""

    paths: tuple[LocalPath, ...]
    notes: tuple[str, ...]


def find(
    overrides: Mapping[str, str],
    *,
    here: Path,
    working_dir: DirectoryListing | None = None,
    remote_working_dir: bool = False,
    nodes_are_here: bool = False,
) -> Found:
    """Go through all overrides.

    Args:
        overrides: As Hydra text.
        here: What relative paths start from.
        working_dir: The folder that is sent along.
        remote_working_dir: It comes from a URL, so that nobody here knows what is in it.
        nodes_are_here: The cluster is this machine: an absolute path is the same for both.

    Raises:
        InputError: A path of this machine does not exist, or is a folder where a file is read, or the reverse.
    """
    paths: list[LocalPath] = []
    notes: list[str] = []
    for key, value in overrides.items():
        kind = kind_of(split_key(key)[1])
        for text in items(value) if kind is not None and not key.startswith("~") else ():
            assert kind is not None  # noqa: S101 - the loop is empty without one
            if is_of_this_machine(text, kind, here, working_dir, remote=remote_working_dir):
                base = working_dir.folder if working_dir is not None and is_in(working_dir, text) else here
                paths.append(LocalPath(key, kind, text, _existing(key, text, kind, base)))
            else:
                notes += _notes(key, text, kind, here, nodes_are_here=nodes_are_here)
    return Found(tuple(paths), tuple(dict.fromkeys(notes)))


def items(value: str) -> tuple[str, ...]:
    """The texts of a flat Hydra list, `[./a.parquet,'b c']`, or the one text that it is."""
    text = value.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return (unquoted(text),)
    found, position, inside = [], 0, text[1:-1]
    while position < len(inside):
        match = _ITEM.match(inside, position)
        if match is None:  # nested, or no list after all: nothing that is a path
            return ()
        found.append(unquoted(match[1]))
        position = match.end()
    return tuple(found)


def is_list(value: str) -> bool:
    """Whether a Hydra text is written as a list."""
    return value.strip().startswith("[")


def is_marked(text: str) -> bool:
    """Whether a path says itself that it is of this machine."""
    return text in (".", "..", "~") or text.startswith(("./", "../", "~/"))


def is_of_this_machine(
    text: str,
    kind: PathKind,
    here: Path,
    working_dir: DirectoryListing | None = None,
    *,
    remote: bool = False,
) -> bool:
    """The rule at the head of this file."""
    if is_marked(text):
        return True
    if not text or text == "null" or "${" in text or is_remote(text) or text.startswith(("/", "~")):
        return False
    if working_dir is not None and is_in(working_dir, text):
        return True
    if kind is PathKind.MODEL:
        return not _HUB_ID.fullmatch(text) and ((here / text).exists() or text.count("/") > 1)
    return (here / text).exists() or not remote


def is_in(working_dir: DirectoryListing, text: str) -> bool:
    """Whether a path without a mark is one of the working directory, in which the job starts."""
    return not is_marked(text) and (working_dir.folder / text).exists()


def not_here(what: str, text: str, here: Path) -> InputError:
    """The error for a path that does not exist, with the nearest name in its folder."""
    path = here / Path(text).expanduser()
    folder = path.parent
    beside = sorted(child.name for child in folder.iterdir()) if folder.is_dir() else []
    meant = did_you_mean(path.name, beside) if beside else f", nor does its folder {folder}"
    return InputError(
        f"{what}: {path} does not exist{meant}",
        hint="A path on the nodes is written absolute; a file of --working-dir by its name in there",
    )


def _existing(key: str, text: str, kind: PathKind, here: Path) -> Path:
    path = here / Path(text).expanduser()
    if not path.exists():
        raise not_here(f"{key}={text}", text, here)
    resolved = path.resolve()
    if kind in (PathKind.MODEL, PathKind.FOLDER) and not resolved.is_dir():
        raise InputError(f"{key}={text} is a file, and verl reads a {kind.value} there")
    if kind not in (PathKind.MODEL, PathKind.FOLDER) and not resolved.is_file():
        raise InputError(
            f"{key}={text} is a folder, and verl reads a {kind.value} there", hint=_inside(text, resolved)
        )
    if key.lstrip("+") in _WHOLE_MODELS and not (resolved / "config.json").is_file():
        raise InputError(f"{key}={text} has no config.json, so it is no Hugging Face model folder")
    # the name that the user gave counts, also when it is a link; only `.`, `..` and `~` have none
    return path.absolute() if path.name not in ("", "..") and text not in (".", "..", "~") else resolved


_WHOLE_MODELS = ("actor_rollout_ref.model.path", "critic.model.path", "reward.reward_model.model_path")


def _inside(text: str, folder: Path) -> str | None:
    files = sorted(child.name for child in folder.iterdir() if child.is_file())
    return f"For example {text.rstrip('/')}/{files[0]}" if files else None


def _notes(key: str, text: str, kind: PathKind, here: Path, *, nodes_are_here: bool) -> Iterator[str]:
    if text.startswith("/") and not nodes_are_here and Path(text).exists():
        yield (
            f"{key}={text} is a path on the nodes; to send what this machine has there, give it relative to this "
            "folder"
        )
    if kind is PathKind.MODEL and _HUB_ID.fullmatch(text) and (here / text).is_dir():
        yield f"{key}={text} is a model on the Hub; the folder of that name here needs ./{text}"


def each_once(paths: Iterable[LocalPath]) -> dict[Path, LocalPath]:
    """The first mention of every path."""
    found: dict[Path, LocalPath] = {}
    for each in paths:
        found.setdefault(each.path, each)
    return found
