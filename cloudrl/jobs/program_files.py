"""The configuration of the program that a job runs: verl's own, that of the working directory, or both together."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cloudrl.foreign import read_file
from cloudrl.jobs.working_dir import Entry
from cloudrl.spec.hydra import items
from cloudrl.verl.command import Command, UnknownConfig, read_command
from cloudrl.verl.composition import Composed, compose, keys_in
from cloudrl.verl.override_parsing import Problem, unfilled, unreadable
from cloudrl.verl.program_config import SEARCH_PATH, VERLS_PACKAGE, OwnFiles, ProgramConfig, path_of, program_config
from cloudrl.verl.source.programs import HydraProgram, program_in

_MAX_BYTES, _MAX_FILES, _MAX_BYTES_TOGETHER = 1_000_000, 2_000, 16_000_000
_VERLS_MAIN = "verl/trainer/main_ppo.py"
_VERLS_FOLDER = "verl/trainer/config"
_VERLS_CONFIG = f"{_VERLS_FOLDER}/ppo_trainer.yaml"
_SUFFIXES = (".yaml", ".yml")


def own_files(entrypoint: Sequence[str], entries: Iterable[Entry]) -> OwnFiles:
    """Read what the files that are sent have of the program: its source, and YAML files.

    Args:
        entrypoint: of the job.
        entries: of the working directory.
    """
    by_name = {entry.name: entry for entry in entries}
    try:
        command = read_command(entrypoint)
    except UnknownConfig:
        return OwnFiles()
    path = path_of(command.program)
    places = (path, f"{path.removesuffix('.py')}/__main__.py")
    program = next((_program(by_name[each]) for each in places if each in by_name), None)
    has_verl = _VERLS_MAIN in by_name
    if program is None and not has_verl and not by_name:
        return OwnFiles()
    texts, unread = _yaml_near(path, by_name)
    is_own = program is not None and not path.startswith("verl/")  # verl uses no ConfigStore
    return OwnFiles(program, texts, has_verl, is_own and _registers(by_name), unread)


def _yaml_near(program: str, by_name: Mapping[str, Entry]) -> tuple[dict[str, str], frozenset[str]]:
    """The texts of YAML files, those near the program first, and the names of files beyond the limits."""
    place = program.split("/")[:-1]
    names = sorted((name for name in by_name if name.endswith(_SUFFIXES)), key=lambda name: _distance(place, name))
    texts, room = dict[str, str](), _MAX_BYTES_TOGETHER
    for index, name in enumerate(names):
        if index == _MAX_FILES or room <= 0:
            return texts, frozenset(names[index:])
        if (text := _text(by_name[name])) is not None:
            texts[name], room = text, room - len(text)
    return texts, frozenset()


_OWN_FOLDER = "For a folder of the working directory Hydra has another option, config-dir"


def _distance(place: Sequence[str], name: str) -> int:
    """Steps from a folder up and down to a file's."""
    folder = name.split("/")[:-1]
    return len(place) + len(folder) - 2 * len(posixpath.commonprefix([[*place], folder]))


def _registers(by_name: Mapping[str, Entry]) -> bool:
    """Whether a Python file beside verl uses Hydra's ConfigStore."""
    files = [entry for name, entry in by_name.items() if name.endswith(".py") and not name.startswith("verl/")]
    return any("ConfigStore" in (_text(entry) or "") for entry in files[:_MAX_FILES])


def has_own_files(command: Command, files: OwnFiles, words: Iterable[str]) -> bool:
    """Whether a job's configuration is another than that which verl's release has for the program."""
    is_own = files.program is not None or _VERLS_CONFIG in files.yaml
    return is_own or not command.is_read or _is_searched(command, words)


def compose_own(command: Command, release: str, files: OwnFiles, words: Sequence[str]) -> Composed:
    """Compose the configuration of such a job.

    Args:
        command: how it is started.
        release: of verl.
        files: what the working directory has of the program.
        words: all overrides.

    Raises:
        UnknownConfig: Part of it is not here.
    """
    found = own_config(command, release, files, words)
    if command.config_path and not any(found.folder.iterdir()):
        return Composed(None, (_no_folder(command), *unreadable(tuple(words))))
    others = tuple(word for word in words if not word.startswith(f"{SEARCH_PATH}="))
    composed = compose(release, others, found.name, files=found.folder, owner=_owner(command, release, files))
    if not found.missing or not composed.problems or keys_in(found.folder, found.name):
        return composed
    text = f"{SEARCH_PATH} names {', '.join(found.missing)}, which is not in the working directory"
    return Composed(None, (Problem(text, _in_package(found), SEARCH_PATH),))


def _no_folder(command: Command) -> Problem:
    """Hydra looks for a relative `--config-path` from the folder of the program."""
    option = f"--config-path {command.config_path}"
    if placeholder := unfilled(option):
        return Problem(f"{option}: {placeholder} has to be filled in", _OWN_FOLDER)
    return Problem(f"{option}: there is no such folder beside {command.program}", _OWN_FOLDER)


def _in_package(found: ProgramConfig) -> str:
    """The override that finds verl's own files instead of a checkout's; "" if other folders are missing."""
    if not all(place.endswith(_VERLS_FOLDER) for place in found.missing):
        return ""
    entries = (VERLS_PACKAGE if place in found.missing else entry for entry, place in found.searched.items())
    return shlex.quote(f"{SEARCH_PATH}=[{','.join(entries)}]")


def own_config(command: Command, release: str, files: OwnFiles, words: Iterable[str]) -> ProgramConfig:
    """Where such a job's configuration is composed from.

    Raises:
        UnknownConfig: Part of it is not here.
    """
    given = [word.partition("=")[2] for word in words if word.startswith(f"{SEARCH_PATH}=")]
    return program_config(command, release, files, items(given[-1]) if given else None)


class ProgramKeys(NamedTuple):
    """The keys of a job's configuration.

    Attributes:
        has: whether a key is one of them; true of all where they are not known.
        is_known: whether the configuration is: what another program needs cannot be told.
    """

    has: Callable[[str], bool] = lambda _key: True
    is_known: bool = True


def keys_of_program(entrypoint: Sequence[str], release: str, files: OwnFiles, words: Iterable[str]) -> ProgramKeys:
    """The keys that the program of an entry point has."""
    try:
        command = read_command(entrypoint)
        if not has_own_files(command, files, words):
            return ProgramKeys()
        found = own_config(command, release, files, words)
    except UnknownConfig:
        return ProgramKeys(is_known=False)
    known = keys_in(found.folder, found.name)
    return ProgramKeys(known.__contains__) if known else ProgramKeys()


def _owner(command: Command, release: str, files: OwnFiles) -> str:
    if not command.program.startswith("verl."):
        return command.program
    return "the verl of the working directory" if files.has_verl else f"verl {release}"


def _is_searched(command: Command, words: Iterable[str]) -> bool:
    own = any(word.startswith(f"{SEARCH_PATH}=") for word in words)
    return own or bool(command.config_path or command.config_dir)


def _program(entry: Entry) -> HydraProgram | None:
    text = _text(entry)
    return None if text is None else program_in(text, entry.name)


def _text(entry: Entry) -> str | None:
    """What is in a file; None for one that is too large, cannot be read, or is no text."""
    try:
        return read_file(entry.path, _MAX_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return None
