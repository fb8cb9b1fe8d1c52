"""Task files for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# `user` and an architecture: without them the server asks an image registry. The hosts declare 8 CPUs, 32 GB, 500 GB.
_HEAD = """\
type: task
name: {name}
nodes: {nodes}
image: {image}
user: root
resources:
  cpu: x86:1..
  memory: 1GB..
  disk: 1GB..
"""


def write_task(
    folder: Path,
    name: str,
    commands: Sequence[str],
    *,
    nodes: int = 1,
    image: str = "any",
    more: str = "",
) -> Path:
    """Write a task's file into `folder`; `more` is YAML that is added as it is."""
    block = "".join(
        "  - |-\n" + "".join(f"    {line}\n" for line in command.splitlines()) for command in commands
    )
    path = folder / f"{name}.dstack.yml"
    path.write_text(f"{_HEAD.format(name=name, nodes=nodes, image=image)}commands:\n{block}{more}")
    return path
