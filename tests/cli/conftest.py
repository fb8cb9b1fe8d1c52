"""Commands as they are typed, in a folder and a home of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run


@pytest.fixture
def run(home: Path, run: Run) -> Run:
    """Type a command."""
    return run
