"""What tests need of a cluster. `tests/conftest.py` offers `slurm_nodes` to all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .cluster import SlurmNodes, SlurmUnavailable


def start_or_skip(cluster: SlurmNodes) -> SlurmNodes:
    """Start a cluster; where the machine cannot, skip the test with the reason, or fail in a CI that runs as root."""
    try:
        cluster.start()
    except SlurmUnavailable as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))
    return cluster


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[SlurmNodes]:
    """Three nodes with eight GPUs each, docker and podman, one cluster for all tests. Use `slurm`."""
    cluster = start_or_skip(SlurmNodes(3, containers=True))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def slurm(shared_slurm: SlurmNodes) -> Iterator[SlurmNodes]:
    """The shared cluster with all nodes idle; afterwards no job is left, and nothing of one on any node."""
    shared_slurm.wait_idle()
    yield shared_slurm
    shared_slurm.restore()
    left = shared_slurm.remains()
    if left:  # not for the next test to find
        for node in shared_slurm.nodes:
            node.power_off()
            node.replace_disk()
        shared_slurm.restore()
    assert not left, left
