"""What becomes of a cluster when a `with` block is left, above all if its disks go with it."""

import os
from pathlib import Path

import pytest
from fake_local import FakeLocal, rent_disks
from small_step import write_step

import cloudrl
from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.backoff import Backoff
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.sdk import teardown

pytestmark = pytest.mark.io


def is_up() -> bool:
    return LocalProvider().status("lab").is_ready


@pytest.fixture
def owned(lab: FakeLocal) -> cloudrl.RunningCluster:
    """As `Cluster.up` returns it."""
    return cloudrl.RunningCluster(cloudrl.attach("lab").connection, provider="local", owned=True)


@pytest.fixture
def rented(lab: FakeLocal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its disks, which go with it; steps 1 and 2 of a run are there."""
    rent_disks(monkeypatch)
    for step in (1, 2):
        write_step(tmp_path / "disk" / "mine", step)
    lab.cluster.disks = {0: tmp_path / "disk", 1: tmp_path / "disk"}
    lab.cluster.status["budget"] = {"price_per_hour": 12.3, "cost": 4.5}
    return tmp_path / "disk"


def test_it_ends_what_it_has_started(owned: cloudrl.RunningCluster) -> None:
    with owned:
        assert is_up()
    assert not is_up()


def test_a_provider_that_is_away_for_a_while_is_asked_again(
    owned: cloudrl.RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may be there to do it by hand, and the bill goes on."""
    monkeypatch.setattr(teardown, "_AWAY", Backoff(0.01, 0.01, 60.0))
    really, failures = LocalProvider.down, iter([True, True, False])

    def away(self: LocalProvider, name: str) -> bool:
        if next(failures):
            raise ConnectionFailed("the server does not answer")
        return really(self, name)

    monkeypatch.setattr(LocalProvider, "down", away)
    said = "lab cannot be ended yet: the server does not answer; trying again"
    with pytest.warns(UserWarning, match=said) as told, owned:
        pass
    assert len(told) == 1
    assert not is_up()


def test_it_does_not_end_what_was_there(lab: FakeLocal) -> None:
    with cloudrl.attach("lab") as attached:
        assert not attached.owned
    with cloudrl.run("grpo-tiny", cluster="lab", steps=2, wait=False).cluster:
        pass
    assert is_up()


@pytest.mark.usefixtures("rented")
class TestCheckpointsThatWouldBeLost:
    def test_keep_it_up_and_are_named_with_price_and_commands(self, owned: cloudrl.RunningCluster) -> None:
        with pytest.raises(cloudrl.CheckpointError) as raised, owned:
            pass
        said = str(raised.value)
        assert "lab was not stopped because its checkpoints would be lost; it keeps running and costs $12.30/h" in said
        assert "mine, step 2, actor" in said
        assert "cloudrl checkpoints merge --cluster lab --to ./model" in str(raised.value.hint)
        assert "cloudrl down lab" in str(raised.value.hint)
        assert is_up()

    def test_an_error_that_leaves_the_block_is_the_one_that_is_raised(self, owned: cloudrl.RunningCluster) -> None:
        with pytest.warns(UserWarning, match="lab was not stopped"), pytest.raises(ZeroDivisionError), owned:
            _ = 1 / 0
        assert is_up()

    def test_those_whose_newest_was_merged_or_pulled_do_not_matter(
        self, owned: cloudrl.RunningCluster, tmp_path: Path
    ) -> None:
        with owned:
            owned.checkpoints().latest().pull(tmp_path / "home-again")
        assert not is_up()

    def test_an_older_one_is_not_enough(self, owned: cloudrl.RunningCluster, tmp_path: Path) -> None:
        with pytest.raises(cloudrl.CheckpointError), owned:
            owned.checkpoints().select(1).merge(tmp_path / "model")
        assert is_up()

    def test_nor_is_one_that_was_saved_again_afterwards(
        self, owned: cloudrl.RunningCluster, rented: Path, tmp_path: Path
    ) -> None:
        newest = owned.checkpoints().latest()
        newest.merge(tmp_path / "model")
        newest.pull(tmp_path / "home-again")
        for path in (rented / "mine" / "global_step_2" / "actor").glob("*.pt"):
            os.utime(path, (newest.info.modified_at + 5, newest.info.modified_at + 5))
        with pytest.raises(cloudrl.CheckpointError, match="mine, step 2"), owned:
            pass
        assert is_up()

    def test_nor_is_one_of_another_run(self, owned: cloudrl.RunningCluster, rented: Path, tmp_path: Path) -> None:
        write_step(rented / "other", 7)
        with pytest.raises(cloudrl.CheckpointError), owned:
            owned.checkpoints().latest(run="mine").merge(tmp_path / "model")
        assert is_up()

    def test_it_ends_all_the_same_if_told_to(self, lab: FakeLocal) -> None:
        connection = cloudrl.attach("lab").connection
        with cloudrl.RunningCluster(connection, provider="local", owned=True, down_anyway=True):
            pass
        assert not is_up()

    def test_down_needs_an_answer(self, owned: cloudrl.RunningCluster) -> None:
        with pytest.raises(cloudrl.InputError, match="There is no terminal to ask on"):
            owned.down()
        asked: list[cloudrl.Question] = []
        assert owned.down(confirm=lambda question: asked.append(question) is None)
        assert [each.text for each in asked] == ["End cluster lab and lose 2 checkpoints, 46.6 kB?"]
        assert not is_up()
