"""The configuration of a program other than verl's own trainers: where Hydra finds its YAML, and the folder it makes.

Hydra looks for a file in several folders, one after the other (Hydra 1.3, _internal/utils.py: _run_hydra;
_internal/config_loader_impl.py: _process_config_searchpath): that of `hydra.main` or `--config-path`, those of
`--config-dir`, then those of `hydra.searchpath`. Each is in the working directory that is sent, or in verl's package.
Laid over each other in that order they are one folder, from which `composition.py` composes as from a release's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudrl.private_files import make_folder
from cloudrl.user_cache import cache_folder
from cloudrl.verl.command import Command, UnknownConfig
from cloudrl.verl.release_files import folder_of, source_of
from cloudrl.verl.source.programs import HydraProgram, folder_at

SEARCH_PATH = "hydra.searchpath"
VERLS_PACKAGE = "pkg://verl.trainer.config"
"""Finds verl's own files wherever verl is installed; `file://verl/trainer/config` only in a checkout of it."""
_CONFIG, _VERL = "trainer/config", "verl/"
_PACKAGE = "package:"
"""Begins a place in the nodes' own packages; others are in the working directory."""
_KEPT = 16


@dataclass(frozen=True)
class OwnFiles:
    """What a working directory has of a program.

    Attributes:
        program: what its source says of its configuration; None if its source is elsewhere.
        yaml: the texts of YAML files, by path.
        has_verl: whether a verl is among them, which takes the place of the nodes' own.
        registers: whether Python files give Hydra configurations that no YAML file has (its ConfigStore).
        unread: paths of YAML files that were not read, because there are too many.
    """

    program: HydraProgram | None = None
    yaml: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_verl: bool = False
    registers: bool = False
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ProgramConfig:
    """Where a program's configuration is composed from.

    Attributes:
        folder: all its YAML files.
        name: the configuration.
        searched: the entries of `hydra.searchpath`, with their folders.
        missing: those folders that are not in the working directory, which Hydra leaves out.
    """

    folder: Path
    name: str
    searched: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def program_config(command: Command, release: str, files: OwnFiles, searched: Sequence[str] | None) -> ProgramConfig:
    """Find the configuration of a program.

    Args:
        command: how it is started.
        release: of verl, for what is in its package.
        files: of the working directory.
        searched: what an override gives as `hydra.searchpath`; None without one.

    Raises:
        UnknownConfig: The source or a folder is not here, or it has no configuration of Hydra's.
    """
    primary, name = _primary(command, release, files)
    places = [primary] if primary else []
    if command.config_dir:
        places.append(_relative(command.config_dir, f"--config-dir {command.config_dir}"))
    found, own = _laid_over(_files_in(place, release, files) for place in places), _yaml(name)
    if searched is None:
        searched = _searched(found.get(own, ""))
    entries = {entry: _place(entry, files) for entry in searched}
    others = {place: _files_in(place, release, files) for place in entries.values()}
    found = _laid_over((found, *others.values()))
    if own in found:
        found[own] = _without_search_path(found[own])
    missing = tuple(place for place, texts in others.items() if not texts)
    return ProgramConfig(_written(found), name, entries, missing)


def _laid_over(layers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """All files; of those with one path that of the first layer."""
    return {path: text for layer in reversed(list(layers)) for path, text in layer.items()}


def _primary(command: Command, release: str, files: OwnFiles) -> tuple[str, str]:
    """The folder that Hydra looks in first, "" without one, and the name of the configuration."""
    program, path = files.program, path_of(command.program)
    if program is None and path.startswith(_VERL) and not files.has_verl:
        program, path = _of_release(command.program, release), _PACKAGE + path
    if program is None:
        raise UnknownConfig(f"{command.program} is neither in verl {release} nor in the folder of --working-dir")
    if not program.takes_overrides:
        raise UnknownConfig(f"{command.program} has no configuration of Hydra's")
    if program.computes:
        raise UnknownConfig(f"{command.program} computes its {program.computes} for hydra.main")
    if files.registers:
        raise UnknownConfig("Python files in the working directory register configurations in Hydra's ConfigStore")
    folder = program.folder or ""
    if command.config_path.startswith("pkg://"):
        folder = _place(command.config_path, files)
    elif command.config_path:
        _relative(command.config_path, f"--config-path {command.config_path}", above=True)
        folder = folder_at(path, command.config_path)
        if folder.startswith("..") or path.startswith(_PACKAGE) != folder.startswith(_PACKAGE):
            raise UnknownConfig(f"--config-path {command.config_path} leads to a folder of the nodes")
    name = command.config_name or program.name
    if not name:
        raise UnknownConfig(f"{command.program} names no configuration")
    return folder, name


def path_of(program: str) -> str:
    """`recipe.dapo.main_dapo` -> `recipe/dapo/main_dapo.py`."""
    return posixpath.normpath(program) if program.endswith(".py") else f"{program.replace('.', '/')}.py"


def _of_release(program: str, release: str) -> HydraProgram | None:
    source = source_of(release)
    if source is None or program not in source.programs:
        return None
    folder, _, name = source.programs[program].rpartition("/")
    return HydraProgram(_PACKAGE + _VERL + folder, name) if name else HydraProgram(None, None, takes_overrides=False)


def has_program(program: str, release: str) -> bool:
    """Whether a release has a program; True if that is not known."""
    source = source_of(release)
    is_verls = program.startswith("verl.")
    return not is_verls or source is None or not source.programs or program in source.programs


def programs_of(release: str) -> tuple[str, ...]:
    """Programs of a release that take a configuration."""
    source = source_of(release)
    return () if source is None else tuple(name for name, config in source.programs.items() if config)


def _place(entry: str, files: OwnFiles) -> str:
    """A folder of Hydra's search path, as its path in the working directory or in verl's package."""
    if "${" in entry:
        raise UnknownConfig(f"{SEARCH_PATH}={entry} depends on the nodes")
    if not entry.startswith("pkg://"):
        return _relative(entry.removeprefix("file://"), f"{SEARCH_PATH}={entry}")
    package = entry.removeprefix("pkg://").replace(".", "/").strip("/")
    if "//" in package:
        raise UnknownConfig(f"{entry} is no package")
    if package.startswith(_VERL) and not files.has_verl:
        return _PACKAGE + package
    if not any(each.startswith(f"{package}/") for each in files.yaml):
        raise UnknownConfig(f"{entry} is a package of the nodes")
    return package


def _relative(folder: str, what: str, *, above: bool = False) -> str:
    if folder.startswith(("/", "~")) or "://" in folder or (".." in folder.split("/") and not above):
        raise UnknownConfig(f"{what} is a folder of the nodes")
    return posixpath.normpath(folder)


def _files_in(place: str, release: str, files: OwnFiles) -> dict[str, str]:
    """The YAML files below a folder, by their paths in it."""
    if place.startswith(_PACKAGE):
        return _of_package(place.removeprefix(_PACKAGE + _VERL), release)
    below = "" if place == "." else f"{place}/"
    if any(path.startswith(below) for path in files.unread):
        raise UnknownConfig(f"{place} has more YAML files than cloudrl reads")
    return {path.removeprefix(below): text for path, text in files.yaml.items() if path.startswith(below)}


def _of_package(folder: str, release: str) -> dict[str, str]:
    """Of verl's package: what a release's files are of it (`add_release.py`)."""
    kept = folder_of(release)
    if kept is None:
        raise UnknownConfig(f"the files of verl {release} are not here")
    top = kept if folder == _CONFIG else kept / folder
    return {path.relative_to(top).as_posix(): path.read_text(encoding="utf-8") for path in top.rglob("*.yaml")}


def _searched(text: str) -> list[str]:
    """`hydra.searchpath` of a configuration, which counts in the main one only."""
    values = _read(text)
    hydra = values.get("hydra") if values is not None else None
    searched = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
    return [str(each) for each in searched] if isinstance(searched, list) else []


def _without_search_path(text: str) -> str:
    """A configuration without its search path, which would be read on this machine."""
    from omegaconf import OmegaConf

    values = _read(text)
    hydra = values.get("hydra") if values is not None else None
    if values is None or not isinstance(hydra, Mapping) or "searchpath" not in hydra:
        return text
    del values["hydra"]["searchpath"]
    header = "".join(f"{line}\n" for line in _header(text))
    return header + str(OmegaConf.to_yaml(OmegaConf.create(values)))


def _header(text: str) -> Iterator[str]:
    """Comments at the head of a file, in which Hydra reads `@package`."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            return
        yield line


def _read(text: str) -> dict[str, Any] | None:
    """A file as Hydra reads it; None if it is no mapping."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError):
        return None
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else None


def _yaml(name: str) -> str:
    return name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"


def _written(texts: Mapping[str, str]) -> Path:
    """A folder of the user's cache with these files, named by them."""
    digest = hashlib.sha256(json.dumps(sorted(texts.items())).encode("utf-8", "surrogatepass")).hexdigest()
    top = cache_folder("programs")
    folder = top / digest
    try:
        make_folder(top)
        if not folder.exists():
            part = Path(tempfile.mkdtemp(dir=top))
            for path, text in texts.items():
                (part / path).parent.mkdir(parents=True, exist_ok=True)
                (part / path).write_text(text, encoding="utf-8", errors="surrogatepass")
            with contextlib.suppress(OSError):  # another process was faster
                part.rename(folder)
            shutil.rmtree(part, ignore_errors=True)
            _prune(top)
    except OSError as error:
        raise UnknownConfig(f"its files cannot be kept in {top}: {error.strerror}") from error
    return folder


def _prune(top: Path) -> None:
    """Remove old folders; what another process has just removed does not matter."""
    with contextlib.suppress(OSError):
        for each in sorted(top.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
            shutil.rmtree(each, ignore_errors=True)
