"""Where the files of a release of verl are: those that come with cloudrl, and those that a user has added.

A release is a folder with the YAML files of verl's `trainer/config` and `source.json` (`source/shapes.py`).
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cloudrl.user_cache import cache_folder
from cloudrl.verl.source.shapes import FILE_NAME, Source, from_text

SHIPPED = Path(__file__).parent / "trainer_config"
CONFIG_NAME = "ppo_trainer"
"""What `verl.trainer.main_ppo` composes by default (verl 0.9.1, trainer/main_ppo.py)."""
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,80}")


def added() -> Path:
    """The folder of the user's cache with releases that `cloudrl verl add` has read."""
    return cache_folder("verl")


def folder_of(release: str | None) -> Path | None:
    """The files of a release, what the user has added before what is shipped; None if they are not here."""
    if release is None or not _VERSION.fullmatch(release):
        return None
    folders = (added() / release, SHIPPED / release)
    return next((each for each in folders if (each / f"{CONFIG_NAME}.yaml").exists()), None)


def is_added(release: str | None) -> bool:
    """Whether the user has added this release, or a fork that calls itself so."""
    return (folder := folder_of(release)) is not None and folder.parent == added()


def source_of(release: str | None) -> Source | None:
    """What a release's source says; None if it has not been read."""
    folder = folder_of(release)
    return None if folder is None else _source(folder / FILE_NAME)


@functools.lru_cache(maxsize=4)
def _source(path: Path) -> Source | None:
    try:
        return from_text(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
