"""A cluster on dstack on its way up, told from a server's answers: what is said when something is in the way."""

from __future__ import annotations

import os
import signal
import socket
import threading
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_dstack import FakeDstack, attempt, run

from cloudrl.errors import CapacityError, CloudrlError, ClusterFailed, ConnectionFailed, InputError
from cloudrl.providers.dstack import keeper, provider, runs, state, up_errors
from cloudrl.providers.dstack.access import AccessPoller
from cloudrl.providers.dstack.provider import DstackPlan
from cloudrl.providers.dstack.runs import RunPlan
from cloudrl.providers.dstack.tunnel import Tunnel, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@pytest.mark.io
def test_a_tunnel_without_ssh_says_so(tmp_path: Path) -> None:
    def broken() -> Any:
        raise FileNotFoundError("[Errno 2] No such file or directory: 'ssh'")

    tunnel = Tunnel(broken, {1: 1}, tmp_path)
    with pytest.raises(ConnectionFailed, match=r"FileNotFoundError: .*'ssh'"):
        tunnel.open(timeout_s=0.5)


class TestLocalPorts:
    def test_one_that_a_tunnel_has_just_left_is_free(self) -> None:
        """The side that hangs up first keeps the connection in TIME_WAIT for a minute."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                server.accept()[0].close()
                assert client.recv(1) == b""
        assert free_ports((port,)) == {port: port}

    @pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
    def test_one_that_somebody_listens_at_is_not(self, address: str) -> None:
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
            assert free_ports((port,))[port] not in (0, port)


def gave_way(*_: Any) -> Any:
    """A keeper that has found another one at work, and ended."""
    return SimpleNamespace(poll=lambda: 0, terminate=lambda: None)


class TestTheKeeper:
    def test_waits_for_a_lock_that_somebody_looks_through(self, tmp_path: Path) -> None:
        looking = state.hold(tmp_path)
        assert looking is not None
        threading.Timer(0.3, looking.close).start()
        held = keeper._hold_patiently(tmp_path)
        assert held is not None
        held.close()

    def test_gives_way_to_another_keeper(self, tmp_path: Path) -> None:
        clock = Clock()
        with state.hold(tmp_path) as held:  # type: ignore[union-attr]
            assert held
            assert keeper._hold_patiently(tmp_path, clock=clock, sleep=clock.sleep) is None
        assert clock.now >= 2.0

    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where the keeper of cluster `lab` writes."""
        monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path))
        return state.folder("main", "lab") / "tunnel"

    @pytest.fixture
    def first(self, place: Path) -> Iterator[Any]:
        """The lock of a keeper that is opening its tunnel."""
        held = state.hold(place)
        assert held is not None
        with held:
            yield held

    def test_that_is_opening_is_waited_for_by_the_second_start(self, place: Path, first: Any) -> None:
        """The second keeper gives way to the first within 2 s, and the first needs longer for its tunnel."""
        clock = Clock()
        (place / "log").write_text("words of the first\n")
        opened = state.Kept(1, "run-1", 1, 2)

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            if clock.now > 30:
                state.write_kept(place, opened)

        assert keeper.start("main", "lab", launch=gave_way, clock=clock, sleep=sleep) == opened
        assert (place / "log").read_text() == "words of the first\n"

    def test_that_fails_fails_the_second_start_with_its_words(self, place: Path, first: Any) -> None:
        clock = Clock()
        (place / "log").write_text("words of last week\n")

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            if clock.now > 30 and not first.closed:
                with (place / "log").open("a") as log:
                    log.write("no tunnel after 60 s\n")
                first.close()

        for said in ("no tunnel after 60 s", "no reason given"):
            with pytest.raises(ConnectionFailed, match=f"the tunnel to 'lab' did not open: {said}"):
                keeper.start("main", "lab", launch=gave_way, clock=clock, sleep=sleep)

    def test_is_not_waited_for_without_end(self, first: Any) -> None:
        del first
        clock = Clock()
        with pytest.raises(ConnectionFailed, match="did not open"):
            keeper.start("main", "lab", launch=gave_way, clock=clock, sleep=clock.sleep)
        assert 60 < clock.now < 90

    def test_that_has_gone_meanwhile_is_no_error(
        self, place: Path, first: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state.write_kept(place, state.Kept(1, "run-1", 1, 2))

        def gone(pid: int, number: int) -> None:
            assert (pid, number) == (1, signal.SIGTERM)
            first.close()
            raise ProcessLookupError

        monkeypatch.setattr(os, "kill", gone)
        assert keeper.stop("main", "lab")


def test_down_ends_the_run_before_the_tunnel(dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    dstack.held_runs = [run()]
    monkeypatch.setattr(provider, "connect", lambda: dstack.server)
    monkeypatch.setattr(runs, "stop", lambda *_: done.append("run"))
    monkeypatch.setattr(runs, "wait_over", lambda *_: None)
    monkeypatch.setattr(keeper, "stop", lambda *_: done.append("keeper"))
    assert provider.down("lab")
    assert done == ["run", "keeper"]
