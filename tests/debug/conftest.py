"""A process that waits for a debugger."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from debug.debugged import Debugged, debugged


@pytest.fixture
def paused(tmp_path: Path) -> Iterator[Debugged]:
    """Stopped in the loop of `debugged.PROGRAM`."""
    with debugged(tmp_path / "job") as process:
        yield process
