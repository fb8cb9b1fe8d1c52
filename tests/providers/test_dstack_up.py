"""A cluster on dstack on its way up, told from a server's answers: what is said when something is in the way."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_dstack import FakeDstack, attempt, run

from cloudrl.errors import CapacityError, CloudrlError, ClusterFailed, ConnectionFailed, InputError
from cloudrl.providers.dstack import provider, route, runs, up_errors
from cloudrl.providers.dstack.access import AccessPoller
from cloudrl.providers.dstack.provider import DstackPlan
from cloudrl.providers.dstack.runs import RunPlan

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.providers.model import Status

PLANNED = RunPlan("", "lab", 2, (), 0, current=None)


@pytest.fixture
def dstack() -> FakeDstack:
    return FakeDstack()


class Clock:
    """Seconds that pass by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def failed(dstack: FakeDstack, error: CloudrlError) -> CloudrlError:
    clock = Clock()
    return up_errors.failed(dstack.server, PLANNED, error, clock=clock, sleep=clock.sleep)


class TestAnErrorAfterTheRunWasSubmitted:
    def test_says_that_it_goes_on_and_what_it_costs(self, dstack: FakeDstack) -> None:
        dstack.held_runs = [run(attempt(price=12.5))]
        said = failed(dstack, ConnectionFailed("the tunnel to 'lab' did not open"))
        assert isinstance(said, ConnectionFailed)
        assert (
            said.message == "the tunnel to 'lab' did not open; cluster lab goes on and costs about $12.50/h"
        )
        assert said.hint == "Look: cloudrl status lab --watch\nEnd it: cloudrl down lab"

    def test_of_a_server_that_is_gone_says_that_nobody_knows(self, dstack: FakeDstack) -> None:
        dstack.is_down = True
        said = failed(dstack, ConnectionFailed("no answer"))
        assert "whether cluster lab goes on cannot be seen" in said.message
        assert said.hint == "Look: cloudrl status lab\nEnd it: cloudrl down lab"

    def test_is_left_as_it_is_where_nothing_runs(self, dstack: FakeDstack) -> None:
        error = CapacityError("no machines")
        assert failed(dstack, error) is error
        dstack.held_runs = [run(status="failed")]
        over = ClusterFailed("it ended before it was ready")
        assert failed(dstack, over) is over

    def test_in_up(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        """The request that starts it gets no answer, and starts it."""

        def apply(*_: Any) -> None:
            dstack.held_runs = [run()]
            raise ConnectionFailed("no answer")

        monkeypatch.setattr(runs, "apply", apply)
        with pytest.raises(ConnectionFailed, match="no answer; cluster lab goes on and costs about"):
            provider._start(dstack.server, PLANNED, None, 1.0)


class TestAClusterThatCannotBeReached:
    def test_is_given_up_after_a_while_and_not_before(self, dstack: FakeDstack) -> None:
        dstack.held_runs = [run(attempt(price=12.5))]
        look, clock = runs.get(dstack.server, "lab"), Clock()

        def refused(*_: Any, **__: Any) -> Any:
            raise ConnectionFailed("no tunnel after 20 s: Permission denied (publickey)")

        poller = AccessPoller(dstack.server, opener=refused, clock=clock)
        assert poller.poll(look) is None
        assert "Permission denied" in poller.problem
        clock.sleep(599)
        assert poller.poll(look) is None
        clock.sleep(2)
        with pytest.raises(ConnectionFailed, match="is running, and cannot be reached") as at:
            poller.poll(look)
        assert "Permission denied" in at.value.message
        said = failed(dstack, at.value)
        assert "cannot be reached from this machine: no tunnel" in said.message
        assert said.message.endswith("cluster lab goes on and costs about $12.50/h")
        assert str(said.hint).splitlines()[0] == "Try again: cloudrl attach lab"
        assert str(said.hint).splitlines()[-1] == "End it: cloudrl down lab"

    def test_is_seen_as_such_by_who_waits(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        dstack.held_runs = [run()]
        looks: list[Status] = []

        def refused(*_: Any, **__: Any) -> Any:
            raise ConnectionFailed("Permission denied (publickey)")

        monkeypatch.setattr(provider, "AccessPoller", partial(AccessPoller, opener=refused))
        with pytest.raises(ClusterFailed, match="not ready"):
            provider._await_ready(dstack.server, runs.get(dstack.server, "lab"), looks.append, -1.0)
        assert looks[0].nodes[0]["detail"] == "Permission denied (publickey)"

    def test_counts_from_running_and_anew_after_a_restart(self, dstack: FakeDstack) -> None:
        clock = Clock()

        def refused(*_: Any, **__: Any) -> Any:
            raise ConnectionFailed("no")

        poller = AccessPoller(dstack.server, opener=refused, clock=clock)
        for status, number in (("provisioning", 0), ("running", 0), ("running", 1)):
            dstack.held_runs = [run(attempt(number), status=status)]
            assert poller.poll(runs.get(dstack.server, "lab")) is None
            clock.sleep(500)

    def test_a_way_in_is_opened_once(self, dstack: FakeDstack) -> None:
        dstack.held_runs = [run()]
        opened: list[Any] = []

        def reach(*_: Any, **__: Any) -> Any:
            opened.append(SimpleNamespace(close=lambda: opened.append("closed")))
            return opened[-1]

        poller, look = AccessPoller(dstack.server, opener=reach), runs.get(dstack.server, "lab")
        assert poller.poll(look) is poller.poll(look)
        assert poller.release() is opened[0]
        poller.close()
        assert len(opened) == 1


class TestBeforeAnythingIsPaid:
    def test_ssh_has_to_be_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(CloudrlError, match="there is no ssh on this machine"):
            provider.up(DstackPlan("lab", ""))

    def test_detach_false_is_refused(self) -> None:
        with pytest.raises(InputError, match="outlives this program") as caught:
            provider.up(DstackPlan("lab", ""), detach=False)
        assert 'with cluster.up(on="dstack") as ray' in str(caught.value.hint)


def test_down_ends_the_run_before_the_tunnel(dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    dstack.held_runs = [run()]
    monkeypatch.setattr(provider, "connect", lambda: dstack.server)
    monkeypatch.setattr(runs, "stop", lambda *_: done.append("run"))
    monkeypatch.setattr(runs, "wait_over", lambda *_: None)
    monkeypatch.setattr(route, "close_tunnel", lambda *_: done.append("tunnel"))
    assert provider.down("lab")
    assert done == ["run", "tunnel"]
