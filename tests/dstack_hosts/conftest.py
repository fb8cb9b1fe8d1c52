"""A fleet of two hosts of the shared lab."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def lab(dstack_lab):
    """The shared lab with an idle fleet of the hosts 0 and 1."""
    dstack_lab.create_fleet("pair", (0, 1))
    return dstack_lab


@pytest.fixture
def pair(lab):
    """Hosts 0 and 1, up and connected; no run is left on them afterwards."""
    hosts = lab.hosts[:2]
    yield hosts
    for host in hosts:
        if host.is_up:
            host.restore()
        host.start()
    leftover = {process.words for host in hosts for process in host.processes(containers_only=True)}
    assert not leftover
