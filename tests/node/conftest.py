"""Agents as real processes, and the promise that nothing of them is left."""

import sys
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from collections.abc import Callable, Iterator

from node_harness import Image, Nodes, make_image, making, marked
from server_harness import Served


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Served]:
    """The server of rank 0 of three."""
    with closing(Served(tmp_path / "head", 0)) as served:
        yield served


@pytest.fixture
def worker(tmp_path: Path, head: Served) -> Iterator[Served]:
    """That of rank 1, which the head has heard of."""
    with closing(Served(tmp_path / "worker", 1)) as served:
        head.state.record_heartbeat(served.state.own)
        yield served


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
def nodes(tmp_path: Path, image: Image, nothing_left: None) -> Iterator[Callable[[int], Nodes]]:
    """Make the agents of a cluster: `nodes(2)`; they are ended with the test."""
    with making(tmp_path, image) as make:
        yield make


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, image: Image, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The scenarios of a file (those of them that were asked for), all running at once."""
    items: list[Any] = request.session.items
    asked = {item.callspec.params["name"] for item in items if item.module is request.module}

    def run(name: str, folder: Path) -> None:
        with making(folder, image) as make:
            request.module.scenario.all[name](make)

    with marked(uuid.uuid4().hex), ThreadPoolExecutor(6) as pool:
        folders = {name: tmp_path_factory.mktemp("scenario") for name in asked}
        yield {name: pool.submit(run, name, folder) for name, folder in folders.items()}
