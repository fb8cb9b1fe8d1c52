"""Writes what cloudrl keeps of a release of verl: its YAML files and `source.json`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from cloudrl.errors import InputError
from cloudrl.private_files import make_folder
from cloudrl.verl.base_config import write_composed
from cloudrl.verl.release_files import added
from cloudrl.verl.source.reader import read_files, read_source
from cloudrl.verl.source.shapes import FILE_NAME, to_text

_CONFIG = "trainer/config/"


def add_release(place: Path, *, version: str | None = None, into: Path | None = None) -> Path:
    """Read a verl and keep its files.

    Args:
        place: a wheel, a checkout, or a folder of site-packages that holds verl.
        version: the name to keep it under; None means the version that it gives itself.
        into: the folder that gets a folder for the release; None means the user's cache.

    Returns:
        The release's folder.

    Raises:
        InputError: There is no verl, or it names no version.
    """
    files = read_files(place)
    source = read_source(files)
    name = version or source.version
    if not name:
        raise InputError(f"the verl in {place} names no version", hint="Give it one: --version 0.9.1+mine")
    folder = (into or added()) / name
    if into is None:
        make_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700 if into is None else 0o777)
    folders = (_CONFIG, *(f"{path.rpartition('/')[0]}/" for path in source.programs.values() if path))
    for path, text in files.items():
        inner = path.removeprefix(_CONFIG)
        is_config = path.startswith(folders) and path.endswith(".yaml") and ".." not in path.split("/")
        # generated files are for reading, and a program reads its own YAML by name
        if is_config and not inner.startswith("_generated_"):
            (folder / inner).parent.mkdir(parents=True, exist_ok=True)
            (folder / inner).write_text(text, encoding="utf-8")
    (folder / FILE_NAME).write_text(to_text(replace(source, version=name)), encoding="utf-8")
    write_composed(folder)
    return folder
