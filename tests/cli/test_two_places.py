"""A name that is a cluster on this machine and one of another provider."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_local import FakeLocal
from small_step import write_step
from typed_command import Run

import cloudrl
from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.plugins import providers
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.providers.dstack.plan import make_plan
from cloudrl.providers.model import CheckpointRetention, Status

pytestmark = pytest.mark.io


class Rented:
    """A provider with one cluster, in the place of one on dstack: all that it needs is a line in the registry."""

    name = "rented"
    default_cluster = "rented-cluster"
    state_pattern = "rented/*/"
    nodes_are_here = False
    has_gpus = True

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.kept: list[str] = []
        self.running = ["lab"]
        self.is_silent = False

    def is_configured(self) -> bool:
        return True

    def plan(self, cluster: cloudrl.Cluster, **_: Any) -> Any:
        return make_plan(cluster)

    def idle_costs(self) -> tuple[()]:
        return ()

    def list(self, name: str | None = None) -> tuple[Status, ...]:
        if self.is_silent:
            raise ConnectionFailed("no server answers at http://nowhere", hint="Is it running?")
        return tuple(self.status(each) for each in self.running if name in (None, each))

    def status(self, name: str) -> Status:
        return Status(
            ClusterFacts(name, "", "rented", 8), Phase.FETCH, price_per_hour=98.0, cost=12.0,
            retention=CheckpointRetention(destroyed=False, location="on a volume"),
        )  # fmt: skip

    def attach(self, name: str, *, keep_open: bool = False) -> Any:
        if keep_open:
            self.kept.append(name)
        raise InputError(f"{name} is not there yet")

    def down(self, name: str) -> bool:
        self.ended.append(name)
        return True


@pytest.fixture
def rented(home: Path, monkeypatch: pytest.MonkeyPatch) -> Rented:
    made = Rented()
    monkeypatch.setitem(sys.modules, "rented_provider", SimpleNamespace(RentedProvider=lambda: made))
    monkeypatch.setitem(providers(), "rented", "rented_provider:RentedProvider")
    return made


def test_one_that_is_down_here_does_not_hide_the_paid_one(run: Run, rented: Rented, lab: FakeLocal) -> None:
    lab.__exit__()
    assert [each["provider"] for each in json.loads(run("status", "--json").out)] == ["rented"]
    assert json.loads(run("status", "lab", "--json").out)["provider"] == "rented"
    assert run("down", "lab").code == 0
    assert rented.ended == ["lab"]


def test_status_shows_both(run: Run, rented: Rented, lab: FakeLocal) -> None:
    looks = json.loads(run("status", "--json").out)
    assert [(each["provider"], each["phase"]) for each in looks] == [("local", "ready"), ("rented", "fetch")]
    assert {"local", "rented"} <= set(run("status", "lab").out.split())
    run("status", "lab", "--json").ended(2, "there are 2 clusters lab: local/lab, rented/lab")
    assert json.loads(run("status", "rented/lab", "--json").out)["provider"] == "rented"


def test_down_has_to_be_told_which(run: Run, rented: Rented, lab: FakeLocal) -> None:
    run("down", "lab", "-y").ended(
        2, "there are 2 clusters lab: local/lab, rented/lab", "Choose it: --cluster rented/lab"
    )
    assert rented.ended == []
    assert run("down", "--cluster", "rented/lab").code == 0
    assert rented.ended == ["lab"]
    assert json.loads(run("status", "local/lab", "--json").out)["phase"] == "ready"


@pytest.mark.parametrize("words", [["--cluster", "lab"], []], ids=["named", "the only name"])
def test_a_job_goes_to_neither_by_chance(run: Run, rented: Rented, lab: FakeLocal, words: list[str]) -> None:
    run("submit", "grpo-tiny", "--no-wait", *words).ended(2, "local/lab, rented/lab")
    assert lab.cluster.jobs == {}


def test_env_is_of_use_after_its_end(run: Run, rented: Rented) -> None:
    """Where the way to a cluster is a tunnel, that stays open; other commands take theirs with them."""
    assert "lab is not there yet" in run("jobs", "list", "--cluster", "lab").err
    assert rented.kept == []
    run("env", "--cluster", "lab")
    assert rented.kept == ["lab"]


def test_attach_finds_the_provider(rented: Rented, lab: FakeLocal) -> None:
    with pytest.raises(InputError, match="there are 2 clusters lab"):
        cloudrl.attach("lab")
    assert cloudrl.attach("lab", on="local").provider == "local"
    rented.running = []
    assert cloudrl.attach("lab").provider == "local"
    rented.running = ["big"]
    with pytest.raises(InputError, match="big is not there yet"):
        cloudrl.attach("big")
    with pytest.raises(InputError, match="there is no cluster 'other'; running: lab, big"):
        cloudrl.attach("other")


@pytest.mark.parametrize(
    ("words", "running", "where"),
    [
        (["up", "lab"], "lab", "rented/lab"),
        (["run", "grpo-tiny", "--cluster", "lab"], "lab", "rented/lab"),
        (["run", "grpo", "--on", "rented", "--cluster", "lab", "-y"], "big", "local/lab"),
    ],
)
def test_a_name_that_is_taken_elsewhere(
    run: Run, rented: Rented, lab: FakeLocal, words: list[str], running: str, where: str
) -> None:
    rented.running = [running]
    run(*words).ended(2, f"a cluster lab already exists: {where}")


class TestAServerThatDoesNotAnswer:
    @pytest.fixture(autouse=True)
    def silent(self, rented: Rented) -> None:
        rented.is_silent = True

    def test_leaves_the_local_ones_to_be_listed(self, run: Run, lab: FakeLocal) -> None:
        with FakeLocal("old"):
            pass
        done = run("status", "--json").ended(0)
        assert [(each["name"], each["phase"]) for each in json.loads(done.out)] == [("lab", "ready"), ("old", "down")]
        assert "clusters on rented are not shown: no server answers at http://nowhere\n" in done.err

    def test_leaves_one_that_is_down_here_to_be_used(self, run: Run, lab: FakeLocal) -> None:
        lab.__exit__()
        write_step(lab.state.checkpoints / "mine", 3)
        for words in (["status"], ["status", "lab"]):
            done = run(*words)
            assert (done.code, done.out) == (0, "lab on local: down\n")
        assert "complete; resume point" in run("checkpoints", "list", "-c", "lab").out
        with pytest.raises(InputError, match="'lab' is not running"):
            cloudrl.attach("lab")

    def test_is_named_by_down_where_nothing_ran_here(self, run: Run, rented: Rented, lab: FakeLocal) -> None:
        silent = "if there is a cluster rented/lab, it keeps running"
        assert silent not in run("down", "lab").err  # it ran here
        run("down", "lab").ended(
            0,
            "lab was not running",
            f"no server answers at http://nowhere; {silent}",
            "When it answers: cloudrl down rented/lab",
        )
        assert silent not in run("down", "local/lab").err

    def test_is_the_error_where_there_is_nothing_else(self, run: Run) -> None:
        done = run("status")
        assert (done.code, done.out) == (5, "")
        assert "error: no server answers at http://nowhere" in done.err
