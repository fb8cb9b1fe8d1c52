"""Commands as they are typed, in a folder and a home of their own."""

from pathlib import Path

import pytest
from typed_command import Run


@pytest.fixture
def run(home: Path, run: Run) -> Run:
    """Type a command."""
    return run
