"""A fleet of two hosts of the shared lab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .hosts import Host
from .lab import Lab


@pytest.fixture(scope="session")
def lab(dstack_pair: Lab) -> Lab:
    """The shared lab with an idle fleet of the hosts 0 and 1."""
    return dstack_pair


@pytest.fixture
def pair(lab: Lab) -> Iterator[list[Host]]:
    """Hosts 0 and 1, up and connected; no run is left on them afterwards, also by a test that has failed."""
    hosts = lab.hosts[:2]
    yield hosts
    for host in hosts:
        if host.is_up:
            host.restore()
        host.start()
    here = {host.address for host in hosts}
    for name in lab.runs.active():
        if here & {job.address for job in lab.runs.submissions(name)}:
            lab.runs.stop(name)
    leftover = {words for host in hosts for words in host.processes(containers_only=True)}
    assert not leftover
