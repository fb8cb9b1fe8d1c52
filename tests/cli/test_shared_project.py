"""A dstack project with several users: whose clusters commands mean, and what is asked before one ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_dstack import ME, FakeDstack
from fake_dstack import run as held
from fake_local import FakeLocal
from typed_command import Run

from cloudrl.errors import ConnectionFailed, Unauthorized
from cloudrl.providers.dstack import access, plan, provider, server
from cloudrl.providers.dstack.machines import DstackFleets
from cloudrl.providers.model import ClusterRef
from cloudrl.providers.registry import locate
from cloudrl.providers.registry import provider as provider_of

pytestmark = pytest.mark.io


@pytest.fixture
def dstack(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDstack:
    """A server with a cluster of alice, which this machine has no key for."""
    fake = FakeDstack()
    fake.held_runs = [held(name="theirs", user="alice", run_id="run-2")]

    def refused(*_: Any, **__: Any) -> Any:
        raise Unauthorized("run 'theirs' was started with another SSH key")

    monkeypatch.setenv("DSTACK_SERVER_URL", "http://server")
    for module in (server, provider, plan):
        monkeypatch.setattr(module, "connect", lambda _project=None: fake.server)
    monkeypatch.setattr(access.route, "route", refused)
    monkeypatch.setattr(provider, "open_access", refused)
    return fake


def goes_on(dstack: FakeDstack, name: str) -> bool:
    [status] = [each.status.value for each in dstack.held_runs if each.run_spec.run_name == name]
    return bool(status != "terminated")


def test_down_without_a_name_means_ones_own(run: Run, dstack: FakeDstack) -> None:
    run("down", "-y").ended(2, "there is no cluster")
    dstack.held_runs.append(held(name="mine", status="provisioning"))
    run("down").ended(0, "mine is down")
    assert goes_on(dstack, "theirs")
    assert not goes_on(dstack, "mine")


def test_what_cannot_be_seen_of_its_fleet_afterwards_is_no_failure(
    run: Run, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_fleets: Any) -> Any:
        raise ConnectionFailed("no dstack server answers")

    monkeypatch.setattr(DstackFleets, "list", gone)
    dstack.held_runs.append(held(name="mine", status="provisioning"))
    done = run("down", "mine").ended(
        0, "mine is down", "whether fleet gpu-fleet gives the machines back cannot be seen: no dstack server answers"
    )
    assert "keeps running" not in done.err


class TestANameOfOnesOwn:
    """Here, and with a run of the project that is not one's own cluster."""

    @pytest.fixture(params=["a colleague's", "no cluster"], autouse=True)
    def other(self, dstack: FakeDstack, request: pytest.FixtureRequest) -> None:
        run = held(name="lab", user="alice" if request.param == "a colleague's" else ME)
        if request.param == "no cluster":
            run.run_spec.configuration.commands = []
        dstack.held_runs = [run]

    def test_means_ones_own(self, run: Run, dstack: FakeDstack, lab: FakeLocal) -> None:
        assert locate("lab") == ClusterRef("local", "lab")
        assert json.loads(run("status", "lab", "--json").out)["provider"] == "local"
        assert "lab is down" in run("down", "lab").err
        assert goes_on(dstack, "lab")

    def test_means_it_when_it_is_over_too(self, run: Run, lab: FakeLocal) -> None:
        lab.__exit__()
        done = run("submit", "grpo-tiny", "--cluster", "lab")
        assert "'lab' is not running" in done.err
        assert json.loads(run("status", "lab", "--json").out)["provider"] == "local"

    def test_means_the_other_where_there_is_none(self, run: Run, dstack: FakeDstack) -> None:
        assert locate("lab") == ClusterRef("dstack", "lab")
        assert run("down", "lab", "-y").code == 0
        assert not goes_on(dstack, "lab")


def test_ones_own_are_listed(run: Run, dstack: FakeDstack) -> None:
    dstack.held_runs += [held(name="mine", status="provisioning"), held(name="two", status="provisioning")]
    assert [each["name"] for each in json.loads(run("status", "--json").out)] == ["mine", "two"]
    assert json.loads(run("status", "theirs", "--json").out)["phase"] == "running"


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ({"name": "theirs", "user": "alice"}, "It is alice's; it is unknown whether jobs are running on it"),
        ({"name": "theirs", "user": "alice", "status": "provisioning"}, "It is alice's"),
        ({"name": "mine"}, "It is unknown whether jobs are running on it"),
    ],
)
def test_what_is_anothers_or_cannot_be_seen_is_asked_about(
    run: Run, dstack: FakeDstack, cluster: dict[str, str], why: str
) -> None:
    dstack.held_runs = [held(**cluster)]
    run("down", cluster["name"]).ended(
        2, f"End cluster {cluster['name']}? {why}. There is no terminal to ask on", "Answer yes with -y"
    )
    assert goes_on(dstack, cluster["name"])
    assert run("down", cluster["name"], "-y").code == 0
    assert not goes_on(dstack, cluster["name"])


def test_a_local_one_whose_ray_is_silent_is_asked_about(run: Run, home: Path) -> None:
    with FakeLocal("lab") as lab:
        lab.cluster.token = "another"
        run("down", "lab").ended(2, "It is unknown whether jobs are running on it")
        assert provider_of("local").status("lab").is_ready
