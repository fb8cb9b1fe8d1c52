"""Recipes by their name, and what the user declares in files: jobs, clusters, fleets, volumes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.spec import Job, Spec
from cloudrl.spec.base import assigned
from cloudrl.spec.yaml_core import load_value

S = TypeVar("S", bound=Spec)

_FOLDER = Path(__file__).parent
_SUFFIXES = (".yml", ".yaml")


def names() -> list[str]:
    """The recipes that come with cloudrl, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


def load(name_or_path: str | os.PathLike[str]) -> Job:
    """Load a recipe by its name, or a job of the user's own by the path of its `.yml` file.

    A value is a path when it ends in `.yml` or `.yaml` or holds a `/`. A job without `name` is called
    after its file.

    Raises:
        SpecError: No recipe of that name, no such file, not YAML, or its fields are no job.
    """
    path = path_of(name_or_path)
    shown = os.fspath(name_or_path)
    return _declared(Job, {"name": path.stem, **read_mapping(path, shown)}, shown)


def load_spec(kind: type[S], path: str | os.PathLike[str]) -> S:
    """What a YAML file declares: `load_spec(Cluster, "cluster.yml")`. Its fields are those of the kind.

    Raises:
        SpecError: No such file, not YAML, or its fields are no such thing.
    """
    shown = os.fspath(path)
    return _declared(kind, read_mapping(_existing(shown), shown), shown)


def merge_fields(
    options: Mapping[str, Any], path: str | os.PathLike[str] | None = None, assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """Fields of something declared: those of a YAML file, `options` over them, and then what is assigned.

    Args:
        options: Field -> value.
        path: The file.
        assignments: `gpu=H100:8`, `dstack.backends=[aws]`: dotted paths, and values in YAML.

    Raises:
        SpecError: No such file, not YAML, no assignment, or one of a field that `options` has already.
    """
    for each in assignments:
        field = each.partition("=")[0]
        inner: Any = options
        for name in field.split("."):
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        if inner is not None:
            raise SpecError(f"--set {field}: {field} is set twice", hint=f"Leave out --set {field}=...")
    declared = read_mapping(_existing(os.fspath(path)), os.fspath(path)) if path is not None else {}
    return assigned({**declared, **options}, assignments)


def read_mapping(path: Path, shown: str) -> dict[str, Any]:
    """The one mapping in a YAML file.

    Args:
        path: The file.
        shown: What messages call it, as the user typed it.

    Raises:
        SpecError: Not readable, not YAML (with the line), or no mapping.
    """
    try:
        values = load_value(path.read_text(encoding="utf-8"), shown)
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown}: not a text file in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise SpecError(f"{shown}: cannot be read: {error.strerror}") from None
    if not isinstance(values, dict):
        found = {type(None): "nothing", list: "a list"}.get(type(values), f"only {values!r}")
        raise SpecError(f"{shown}: expected `field: value` lines, found {found}")
    return values


def _declared(kind: type[S], values: dict[str, Any], shown: str) -> S:
    try:
        return kind.load(values)
    except SpecError as error:
        raise SpecError(f"{shown}: {error.message}", hint=error.hint) from None


def path_of(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a recipe, or the file itself where a path is given.

    Raises:
        SpecError: No recipe of that name, or no such file.
    """
    asked = os.fspath(name_or_path)
    if os.sep in asked or asked.endswith(_SUFFIXES) or not isinstance(name_or_path, str):
        return _existing(asked)
    if asked not in names():
        known = ", ".join(names())
        raise SpecError(
            f"there is no recipe {asked!r}{did_you_mean(asked, names())}",
            hint=f"Recipes: {known}. A file of your own is given by its path: ./{asked or 'job'}.yml",
        )
    return _FOLDER / f"{asked}.yml"


def _existing(asked: str) -> Path:
    path = Path(asked).expanduser()
    if path.is_dir():
        raise SpecError(f"{asked} is a folder, not a file", hint=f"ls {asked}")
    if not path.is_file():
        siblings = [other.name for other in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise SpecError(f"there is no file {asked}{did_you_mean(path.name, siblings)}", hint=f"ls {path.parent}")
    return path
