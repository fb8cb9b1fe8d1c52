"""What Python sees: a sequence of checkpoints, each with its verbs."""

from pathlib import Path

import pytest
from fake_cluster import FakeCluster
from small_step import write_step

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import InputError
from cloudrl.sdk import RunningCluster
from cloudrl.transport import Connection


def test_a_sequence(tmp_path: Path) -> None:
    for step in (1, 2):
        write_step(tmp_path, step)
    found = Checkpoints(LocalSource(tmp_path))
    assert len(found) == 2
    assert [each.step for each in found] == [1, 2]
    assert found[-1] == found.latest()
    assert found[:1] == (found[0],)
    assert (found[0].run, found[0].role, found[0].complete) == (".", "actor", True)
    assert str(found[0]) == f"{tmp_path}: step 1, actor"


@pytest.mark.io
def test_a_plain_ray_cluster_has_none() -> None:
    with FakeCluster() as fake, pytest.raises(InputError, match="is a plain Ray cluster"):
        RunningCluster(Connection("plain", fake.url, fake.token)).checkpoints()
