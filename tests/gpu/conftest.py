"""What only a GPU can show. `pytest -m gpu` runs it on a machine with an NVIDIA GPU and torch for CUDA."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # where only this folder's conftest is read


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of torch and others are no errors here: they depend on the card and on its driver."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session", autouse=True)
def gpu() -> str:
    """The device of torch; without one, each test is skipped and says so."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU here: run `pytest -m gpu` where there is one")
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} cannot use the GPU of this machine")
    return "cuda:0"
