"""The table of clouds, against the one in the code and against dstack's own classes."""

from __future__ import annotations

import ast
from pathlib import Path

import dstack
import pytest

from cloudrl.providers.dstack.backends import BACKENDS

PAGE = (Path(__file__).parents[2] / "docs/clouds.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
THEIRS = Path(dstack.__file__).parent / "_internal/core/backends"
FOLDERS = {"lambda": "lambdalabs"}
"""Backends whose folder has another name."""
BASES = {"amddevcloud": "digitalocean_base", "digitalocean": "digitalocean_base", "datacrunch": "verda"}


def test_the_page_shows_the_table() -> None:
    def shown(value: bool) -> str:
        return "yes" if value else "no"

    assert [
        [
            f"`{name}`",
            *map(shown, (has.several_nodes, has.instance_volumes, has.network_volumes, has.before_runs)),
            has.network,
            has.note,
        ]
        for name, has in BACKENDS.items()
    ] == ROWS


def mixins(name: str) -> set[str]:
    """The names of the bases of a backend's Compute."""
    folder = THEIRS / BASES.get(name, FOLDERS.get(name, name))
    tree = ast.parse((folder / "compute.py").read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.endswith("Compute")]
    return {base.id for node in classes for base in node.bases if isinstance(base, ast.Name)}


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "remote"])
def test_the_table_says_what_dstacks_classes_do(name: str) -> None:
    has, bases = BACKENDS[name], mixins(name)
    assert has.several_nodes is ("ComputeWithMultinodeSupport" in bases)
    assert has.instance_volumes is ("ComputeWithInstanceVolumesSupport" in bases)
    assert has.network_volumes is ("ComputeWithVolumeSupport" in bases)
    assert has.before_runs is ("ComputeWithCreateInstanceSupport" in bases)


def test_no_backend_of_dstack_is_missing() -> None:
    names = {FOLDERS.get(name, name) for name in BACKENDS}
    theirs = {path.parent.name for path in THEIRS.glob("*/compute.py")}
    assert theirs - names <= {"base", "digitalocean_base", "local", "template", "tensordock", "cudo", "dstack"}
