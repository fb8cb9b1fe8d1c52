"""A name that is a cluster on this machine and one on dstack."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_local import FakeLocal
from small_step import write_step

import cloudrl
from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.providers import PROVIDERS
from cloudrl.providers.model import CheckpointRetention, NodePaths, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Typed

pytestmark = pytest.mark.io


class Rented:
    """A provider with one cluster, in the place of dstack's."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.kept: list[str] = []
        self.running = ["lab"]
        self.is_silent = False

    def plan(self, cluster: cloudrl.Cluster) -> str:
        return cluster.name

    def places(self, _cluster: cloudrl.Cluster) -> NodePaths:
        return NodePaths("/checkpoints", "/data", "/dev/shm/RUN-ID")

    def names(self) -> list[str]:
        if self.is_silent:
            raise ConnectionFailed("no dstack server answers at http://nowhere", hint="Is it running?")
        return self.running

    def status(self, name: str) -> Status:
        return Status(name, "rented", "fetch", nodes_wanted=8, price_per_hour=98.0, cost=12.0)

    def attach(self, name: str) -> Any:
        raise InputError(f"{name} is not there yet")

    def keep_open(self, name: str) -> None:
        self.kept.append(name)

    def down(self, name: str) -> bool:
        self.ended.append(name)
        return True

    def whose(self, _name: str) -> str:
        return ""

    def keeping(self, _name: str) -> CheckpointRetention:
        return CheckpointRetention(destroyed=False, location="on a volume")

    def what_stays(self, _name: str) -> str:
        return "nothing stays"


@pytest.fixture
def rented(home: Path, monkeypatch: pytest.MonkeyPatch) -> Rented:
    made = Rented()
    monkeypatch.setenv("DSTACK_SERVER_URL", "http://nowhere")
    names = (
        "plan", "places", "names", "status", "attach", "keep_open", "down", "whose", "keeping", "what_stays",
    )  # fmt: skip
    module = SimpleNamespace(**{name: getattr(made, name) for name in names})
    monkeypatch.setitem(sys.modules, "rented_provider", module)
    monkeypatch.setitem(PROVIDERS, "dstack", "rented_provider")
    return made


@pytest.fixture
def lab(home: Path) -> Iterator[FakeLocal]:
    with FakeLocal("lab") as fake:
        yield fake


def test_one_that_is_down_here_does_not_hide_the_paid_one(
    run: Callable[..., Typed], rented: Rented, lab: FakeLocal
) -> None:
    lab.__exit__()
    assert [each["provider"] for each in [json.loads(run("status", "--json").out)]] == ["rented"]
    assert json.loads(run("status", "lab", "--json").out)["provider"] == "rented"
    assert run("down", "lab").code == 0
    assert rented.ended == ["lab"]


def test_status_shows_both(run: Callable[..., Typed], rented: Rented, lab: FakeLocal) -> None:
    for words in (["status"], ["status", "lab"]):
        looks = json.loads(run(*words, "--json").out)
        assert [(each["provider"], each["phase"]) for each in looks] == [
            ("rented", "fetch"),
            ("local", "ready"),
        ]
    assert json.loads(run("status", "lab", "--on", "dstack", "--json").out)["provider"] == "rented"


def test_down_has_to_be_told_which(run: Callable[..., Typed], rented: Rented, lab: FakeLocal) -> None:
    done = run("down", "lab", "-y")
    assert done.code == 2
    assert "there are two clusters lab: on this machine and on dstack" in done.err
    assert "cloudrl down lab --on dstack" in done.err
    assert rented.ended == []
    assert run("down", "lab", "--on", "dstack").code == 0
    assert rented.ended == ["lab"]
    assert json.loads(run("status", "lab", "--on", "local", "--json").out)["phase"] == "ready"


@pytest.mark.parametrize("words", [["--cluster", "lab"], []], ids=["named", "the only name"])
def test_a_job_goes_to_neither_by_chance(
    run: Callable[..., Typed], rented: Rented, lab: FakeLocal, words: list[str]
) -> None:
    done = run("submit", "grpo-tiny", "--no-wait", *words)
    assert done.code == 2
    assert "there are two clusters lab: on this machine and on dstack" in done.err
    assert lab.cluster.jobs == {}


def test_env_is_of_use_after_its_end(run: Callable[..., Typed], rented: Rented) -> None:
    """Where the way to a cluster is a tunnel, that stays open; other commands take theirs with them."""
    assert "lab is not there yet" in run("jobs", "list", "--cluster", "lab").err
    assert rented.kept == []
    run("env", "--cluster", "lab")
    assert rented.kept == ["lab"]


def test_attach_finds_the_provider(rented: Rented, lab: FakeLocal) -> None:
    with pytest.raises(InputError, match="there are two clusters lab"):
        cloudrl.attach("lab")
    assert cloudrl.attach("lab", on="local").provider == "local"
    rented.running = []
    assert cloudrl.attach("lab").provider == "local"
    rented.running = ["big"]
    with pytest.raises(InputError, match="big is not there yet"):  # dstack's own words
        cloudrl.attach("big")


def test_a_second_of_its_name_is_refused_from_python(rented: Rented, lab: FakeLocal) -> None:
    rented.running = ["lab", "big"]
    for name, on, where in (("big", "local", "on dstack"), ("lab", "dstack", "on this machine")):
        with pytest.raises(InputError, match=f"a cluster {name} is there already, {where}"):
            cloudrl.Cluster(name=name, nodes=1).up(on=on)


def test_a_name_that_is_taken_on_dstack(run: Callable[..., Typed], rented: Rented) -> None:
    for words in (["up", "lab"], ["run", "grpo-tiny", "--cluster", "lab"]):
        done = run(*words)
        assert done.code == 2
        assert "a cluster lab is there already, on dstack" in done.err


def test_a_name_that_is_taken_here(run: Callable[..., Typed], rented: Rented, lab: FakeLocal) -> None:
    rented.running = []
    done = run("run", "grpo", "--on", "dstack", "--cluster", "lab", "-y")
    assert done.code == 2
    assert "a cluster lab is there already, on this machine" in done.err


class TestAServerThatDoesNotAnswer:
    @pytest.fixture(autouse=True)
    def silent(self, rented: Rented) -> None:
        rented.is_silent = True

    def test_leaves_the_local_ones_to_be_listed(self, run: Callable[..., Typed], lab: FakeLocal) -> None:
        with FakeLocal("old"):
            pass
        done = run("status", "--json")
        assert done.code == 0
        assert [(each["name"], each["phase"]) for each in json.loads(done.out)] == [
            ("old", "down"),
            ("lab", "ready"),
        ]
        assert "clusters on dstack are not shown: no dstack server answers at http://nowhere\n" in done.err

    def test_leaves_one_that_is_down_here_to_be_used(self, run: Callable[..., Typed], lab: FakeLocal) -> None:
        lab.__exit__()
        write_step(lab.state.checkpoints / "mine", 3)
        for words in (["status"], ["status", "lab"]):
            done = run(*words)
            assert (done.code, done.out) == (0, "lab on local: down\n")
        assert "complete; a resume takes it" in run("checkpoints", "list", "lab").out
        with pytest.raises(InputError, match="'lab' is not running"):
            cloudrl.attach("lab")

    def test_is_named_by_down_where_nothing_ran_here(
        self, run: Callable[..., Typed], rented: Rented, lab: FakeLocal
    ) -> None:
        silent = "if there is a cluster lab on dstack, it goes on"
        assert silent not in run("down", "lab").err  # it ran here
        done = run("down", "lab")
        assert done.code == 0
        assert "lab was not running" in done.err
        assert f"no dstack server answers at http://nowhere; {silent}" in done.err
        assert "When it answers: cloudrl down lab --on dstack" in done.err
        assert silent not in run("down", "lab", "--on", "local").err

    def test_is_the_error_where_there_is_nothing_else(self, run: Callable[..., Typed]) -> None:
        done = run("status")
        assert (done.code, done.out) == (5, "")
        assert "error: no dstack server answers at http://nowhere" in done.err
