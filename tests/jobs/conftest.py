"""The stand-in cluster, for what talks to one, and the command line towards it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from fake_cluster import FakeCluster

from cloudrl.cli.main import main


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster of two nodes with one GPU each, and an agent."""
    with FakeCluster() as fake:
        yield fake


@pytest.fixture
def run(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Type a command; returns exit code, standard output and standard error."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", str(cluster.token))

    def typed(*arguments: str, address: str | None = None) -> tuple[int, str, str]:
        target = [] if address == "" else ["--address", address or cluster.url]
        monkeypatch.setattr(sys, "argv", ["cloudrl", *arguments, *target])
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        return code, output.out, output.err

    return typed
