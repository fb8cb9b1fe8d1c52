"""What tests need of a lab. `tests/conftest.py` offers `dstack_lab` to all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from .lab import Lab, LabUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


MISSING_IMAGE = "nowhere/nothing:1"  # cannot be pulled on the shared lab's hosts


def start_or_skip(lab: Lab) -> Lab:
    """Start a lab; where the machine cannot, skip the test with the reason, or fail in a CI that runs as root."""
    try:
        lab.start()
    except LabUnavailable as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))
    return lab


@pytest.fixture(scope="session")
def dstack_lab() -> Iterator[Lab]:
    """Four stand-in hosts and the real dstack server with short intervals, one for all tests. Fleets: none."""
    lab = start_or_skip(Lab(hosts=4, missing_images=[MISSING_IMAGE]))
    try:
        yield lab
    finally:
        lab.stop()
