from __future__ import annotations

import re
from importlib.metadata import version

from cloudrl.verl import RELEASE


def test_nothing_is_installed_from_an_unpinned_place():
    for command in RELEASE.install:
        packages = [word for word in command.split()[2:] if not word.startswith("-")]
        assert packages
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+", package) for package in packages)
    assert ":" in RELEASE.image
    assert "latest" not in RELEASE.image


def test_the_release_is_the_one_that_the_tests_run():
    assert version("verl") == RELEASE.verl
    assert f"verl=={RELEASE.verl}" in " ".join(RELEASE.install)
