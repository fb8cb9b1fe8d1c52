"""The command that starts a cluster is killed, at any phase: nothing is left, and the name can be used again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from node_harness import until

from cloudrl.providers.local import processes
from cloudrl.providers.local.provider import LocalProvider

if TYPE_CHECKING:
    from conftest import Home

    from cloudrl.providers.local.state import LocalState

pytestmark = pytest.mark.agents
provider = LocalProvider()

PHASES = ("start", "ray", "fetch", "barrier", "ready")


def _kill_at(home: Home, phase: str, monkeypatch: pytest.MonkeyPatch) -> LocalState:
    """Kill a starter at a phase in which the stand-in for Ray, or the check of imports, is held."""
    monkeypatch.setenv("GATE", str(home.folder / "gate"))
    holding = home.control / {"ray": "hold-0", "barrier": "hold-1"}.get(phase, "nothing")
    holding.touch()
    killed = home.kill_starter(phase, *(["--import-check=gate"] if phase == "fetch" else []))
    holding.unlink()
    return killed


def test_the_next_up_works_whenever_the_last_one_was_killed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starter comes right after one that was killed, and is killed a phase later."""
    killed = [_kill_at(home, phase, monkeypatch) for phase in PHASES]
    connection = home.up(nodes=1)
    for state in killed:
        assert not processes.of_cluster(state.id)
        assert not Path(state.ray_temp_dir).exists()
        assert connection.cluster_id != state.id
    assert provider.status("one").is_ready
    provider.down("one")


@pytest.mark.parametrize("phase", ["start", "ray"])
def test_down_works(home: Home, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = _kill_at(home, phase, monkeypatch)
    provider.down("one")
    assert not processes.of_cluster(killed.id)
    assert not Path(killed.ray_temp_dir).exists()
    assert provider.status("one").phase == "down"


@pytest.mark.parametrize("count", [1, 2])
def test_ctrl_c_leaves_nothing(home: Home, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes while the first is still ending the agents."""
    monkeypatch.setenv("GATE", str(home.folder / "gate"))
    (home.control / "hold-0").touch()
    interrupted = home.kill_starter("ray", signals=[signal.SIGINT] * count)
    until(lambda: not processes.of_cluster(interrupted.id), "all processes end by themselves", timeout_s=30)
    until(lambda: not Path(interrupted.ray_temp_dir).exists(), "Ray's folder goes with them", timeout_s=10)


def test_nobody_does_anything(home: Home) -> None:
    killed = home.kill_starter("ready")
    until(lambda: not processes.of_cluster(killed.id), "all processes end by themselves", timeout_s=10)
    look = provider.status("one")
    assert look.has_failed
    assert look.reason == "the command that started this cluster has died"
    assert provider.down("one") is False
    assert not Path(killed.ray_temp_dir).exists()


def test_a_cluster_that_is_not_detached_ends_with_its_starter_also_when_ready(home: Home) -> None:
    killed = home.kill_starter("after")
    until(lambda: not processes.of_cluster(killed.id), "all processes end by themselves", timeout_s=10)
    assert provider.status("one").reason == "the command that started this cluster has died"
    provider.down("one")
