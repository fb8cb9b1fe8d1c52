"""Releases of verl whose configuration can be checked: those that ship, and those that a user has added."""

import os
from pathlib import Path

from cloudrl.verl import add_release as adding
from cloudrl.verl.release_files import CONFIG_NAME, SHIPPED, added
from cloudrl.verl.rules import READ_IN


def add_release(
    place: str | os.PathLike[str], *, version: str | None = None, into: str | os.PathLike[str] | None = None
) -> Path:
    """Read a release of verl, or a fork, and keep what `check` needs of it.

    Args:
        place: a wheel, a checkout, or a folder of site-packages that holds verl.
        version: the release to keep it as; None means what verl says of itself.
        into: the folder that gets a folder for the release; None means the user's cache.

    Returns:
        The release's folder.

    Raises:
        InputError: There is no verl, or it names no version.
    """
    return adding.add_release(Path(place), version=version, into=None if into is None else Path(into))


def known_releases() -> list[dict[str, str]]:
    """The releases that `check` knows: version, where its files are from, and how much of it is checked."""
    found = {path.parent.name: "cloudrl" for path in SHIPPED.glob(f"*/{CONFIG_NAME}.yaml")}
    found |= {path.parent.name: "you" for path in added().glob(f"*/{CONFIG_NAME}.yaml")}
    return [
        {"verl": release, "from": origin, "rules": "all" if release in READ_IN else "keys, sections, verl's own checks"}
        for release, origin in sorted(found.items())
    ]
