"""What Python sees: a sequence of checkpoints, each with its verbs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fake_cluster import FakeCluster
from small_step import write_step

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import InputError
from cloudrl.sdk import RunningCluster
from cloudrl.transport import Connection

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (1, 2):
        write_step(tmp_path / "whole" / "mine", step)
    return tmp_path / "whole" / "mine"


def test_a_sequence(run: Path) -> None:
    found = Checkpoints(LocalSource(run))
    assert len(found) == 2
    assert [each.step for each in found] == [1, 2]
    assert found[-1] == found.latest()
    assert found[:1] == (found[0],)
    assert (found[0].run, found[0].role, found[0].complete) == (".", "actor", True)
    assert str(found[0]) == f"{run}: ., step 1, actor"


def test_a_merge_waits_for_the_disk_if_asked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.stat(file).st_ino))
    latest = Checkpoints(LocalSource(run)).latest()
    latest.merge(tmp_path / "model")
    assert synced == []
    latest.merge(tmp_path / "again", sync=True)
    assert {path.stat().st_ino for path in (tmp_path / "again").iterdir()} <= set(synced)


@pytest.mark.io
def test_a_plain_ray_cluster_has_none() -> None:
    with FakeCluster() as fake, pytest.raises(InputError, match="is a plain Ray cluster"):
        RunningCluster(Connection("plain", fake.url, fake.token)).checkpoints()
