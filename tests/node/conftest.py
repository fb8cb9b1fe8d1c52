"""Agents as real processes, and the promise that nothing of them is left."""

from __future__ import annotations

import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from node_harness import Image, Nodes, make_image, marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test that leaves a process, and end what it left."""
    with marked(uuid.uuid4().hex):
        yield


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A Python with a stand-in for Ray."""
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def nodes(tmp_path: Path, image: Image, nothing_left: None) -> Iterator[Callable[..., Nodes]]:
    """Make the agents of a cluster: `nodes(2)`; they are ended with the test, and must leave no temporary file."""
    made: list[Nodes] = []

    def make(count: int, **changes: object) -> Nodes:
        made.append(Nodes(tmp_path, image, count, **changes))
        return made[-1]

    yield make
    for cluster in made:
        cluster.end()
    ended = [
        node for cluster in made for node in cluster.started.values() if node.exit_code() != -signal.SIGKILL
    ]
    left = [node.temp_dir for node in ended if node.temp_dir.exists()]
    assert not left, f"temporary folders were left: {left}"
