"""A cluster on dstack on its way up, told from a server's answers: what is said when something is in the way."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_dstack import FakeDstack, attempt, fleet, run

from cloudrl.errors import (
    CapacityError,
    CloudrlError,
    ClusterFailed,
    ConnectionFailed,
    InputError,
    Interrupted,
)
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import ClusterInfo, ClusterStatus
from cloudrl.providers.dstack import plan as plan_module
from cloudrl.providers.dstack import provider, route, runs, up_errors
from cloudrl.providers.dstack.access import AccessPoller
from cloudrl.providers.dstack.plan import fleet_for, make_plan
from cloudrl.providers.dstack.provider import DstackProvider
from cloudrl.providers.dstack.runs import RunPlan
from cloudrl.providers.dstack.watcher import RunWatcher
from cloudrl.providers.model import NoFleet, Offer
from cloudrl.spec import Cluster, Fleet, NodeRange

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.providers.dstack.runs import RunState
    from cloudrl.providers.model import Status

LAB = Cluster(name="lab")
OFFERS = tuple(Offer("aws", "us", "p5", "8xH100", price, spot=False) for price in (98.32, 120.0))
PLANNED = RunPlan("", "lab", 2, OFFERS, 2, current=None)


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


def failed(dstack: FakeDstack, error: CloudrlError, plan: RunPlan | None = None) -> CloudrlError:
    clock = Clock()
    return up_errors.failed(dstack.server, plan or PLANNED, error, clock=clock, sleep=clock.sleep)


UNREACHED = ConnectionFailed("the tunnel to 'lab' did not open", hint="Is it running?")
CTRL_C = Interrupted("interrupted")


class TestAnEarlyEnd:
    """An error, or Ctrl-C, after the run was submitted."""

    @pytest.mark.parametrize("error", [UNREACHED, CTRL_C, ClusterFailed("not ready after 9 s")])
    @pytest.mark.parametrize(
        ("there", "said"),
        [
            (run(attempt(price=12.5)), "(running) and costs about $12.50/h"),
            (run(attempt(price=0.0), status="submitted"), "(submitted) and costs about $196.64/h"),
        ],
        ids=["running", "no machine yet"],
    )
    def test_says_what_goes_on_and_what_it_costs(
        self, dstack: FakeDstack, error: CloudrlError, there: Any, said: str
    ) -> None:
        dstack.held_runs = [there]
        told = failed(dstack, error)
        assert type(told) is type(error)
        assert told.message == f"{error.message}; cluster lab goes on {said}"
        hints = [
            *(error.hint or "").splitlines(),
            "Look: cloudrl status lab --watch",
            "End it: cloudrl down lab",
        ]
        assert str(told.hint).splitlines() == hints

    def test_of_a_server_that_is_gone_says_that_nobody_knows(self, dstack: FakeDstack) -> None:
        dstack.is_down = True
        told = failed(dstack, UNREACHED)
        assert "; whether cluster lab goes on cannot be seen: " in told.message
        assert str(told.hint).endswith("Look: cloudrl status lab\nEnd it: cloudrl down lab")

    @pytest.mark.parametrize(
        ("there", "before"),
        [([], None), ([run(status="failed")], None), ([run()], "run-1")],
        ids=["none", "over", "there before"],
    )
    def test_is_left_as_it_is_where_nothing_of_it_runs(
        self, dstack: FakeDstack, there: list[Any], before: str | None
    ) -> None:
        dstack.held_runs = there
        plan = replace(PLANNED, current=runs.get(dstack.server, "lab") if before else None)
        for error in (UNREACHED, CapacityError("no machines")):
            assert failed(dstack, error, plan) is error
        clock = Clock()
        told = up_errors.interrupted(dstack.server, plan, clock=clock, sleep=clock.sleep)
        assert told.message == "interrupted; nothing was started"
        assert told.exit_code == 130

    def test_before_the_server_was_asked(self, dstack: FakeDstack) -> None:
        assert up_errors.interrupted(dstack.server, None).message == "interrupted; nothing was started"
        assert dstack.looks == 0

    def test_a_request_that_arrives_late(self, dstack: FakeDstack) -> None:
        clock = Clock()

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            dstack.held_runs = [run(status="submitted")]

        told = up_errors.interrupted(dstack.server, PLANNED, clock=clock, sleep=sleep)
        assert "interrupted; cluster lab goes on (submitted)" in told.message

    def test_in_up(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        """The request that starts it gets no answer, and starts it."""

        def apply(*_: Any) -> None:
            dstack.held_runs = [run()]
            raise ConnectionFailed("no answer")

        monkeypatch.setattr(runs, "apply", apply)
        with pytest.raises(
            ConnectionFailed, match=r"no answer; cluster lab goes on \(running\) and costs about"
        ):
            DstackProvider()._start(dstack.server, PLANNED, None, 1.0)


class TestAClusterThatCannotBeReached:
    def test_is_given_up_after_a_while_and_not_before(self, dstack: FakeDstack) -> None:
        dstack.held_runs = [run(attempt(price=12.5))]
        look, clock = runs.get(dstack.server, "lab"), Clock()

        def refused(*_: Any, **__: Any) -> Any:
            raise ConnectionFailed("no tunnel after 20 s: Permission denied (publickey)")

        poller = AccessPoller(dstack.server, give_up_s=600, opener=refused, clock=clock)
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
        assert said.message.endswith("cluster lab goes on (running) and costs about $12.50/h")
        assert str(said.hint).splitlines()[0] == "Try again: cloudrl attach lab"
        assert str(said.hint).splitlines()[-1] == "End it: cloudrl down lab"

    def test_is_seen_as_such_by_who_waits(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        dstack.held_runs = [run()]
        looks: list[Status] = []

        def refused(*_: Any, **__: Any) -> Any:
            raise ConnectionFailed("Permission denied (publickey)")

        monkeypatch.setattr(provider, "AccessPoller", partial(AccessPoller, opener=refused))
        with pytest.raises(ClusterFailed, match="not ready"):
            provider.await_ready(dstack.server, runs.get(dstack.server, "lab"), looks.append, -1.0)
        assert looks[0].nodes[0].detail == "Permission denied (publickey)"

    def test_counts_from_running_and_anew_after_a_restart(self, dstack: FakeDstack) -> None:
        clock = Clock()

        def refused(*_: Any, **__: Any) -> Any:
            raise ConnectionFailed("no")

        poller = AccessPoller(dstack.server, give_up_s=600, opener=refused, clock=clock)
        for status, number in (("provisioning", 0), ("running", 0), ("running", 1)):
            dstack.held_runs = [run(attempt(number), status=status)]
            assert poller.poll(runs.get(dstack.server, "lab")) is None
            clock.sleep(500)


ANSWER = ClusterStatus(ClusterInfo("lab", "id", "dstack", 1), Phase.FETCH, checkpoint_dir="/checkpoints")


class Way:
    """A way to a cluster whose agent answers; says how often it was opened, and whether it is closed."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.closed = 0
        self.tunnel = None
        agent = SimpleNamespace(status=lambda: ANSWER)
        self.connection = SimpleNamespace(agent=lambda **_: agent, ray_url="http://127.0.0.1:8265")

    def open(self, _server: Any, look: RunState, **_: Any) -> Any:
        self.opened.append(look.attempt)
        return self

    def close(self) -> None:
        self.closed += 1


class TestLooks:
    def test_go_through_one_ssh_as_long_as_it_is_the_same_run(self, dstack: FakeDstack) -> None:
        way = Way()
        watcher = RunWatcher(dstack.server, AccessPoller(dstack.server, opener=way.open))
        dstack.held_runs = [run(volumes=[SimpleNamespace(name="ckpt", path="/checkpoints")])]
        looks = [watcher.look(runs.get(dstack.server, "lab")) for _ in range(5)]
        assert way.opened == [0]
        assert {each.phase for each in looks} == {Phase.FETCH}
        assert looks[0] == looks[4]
        assert looks[0].retention is not None
        assert looks[0].teardown_summary.endswith("; checkpoints stay on network volume ckpt")
        dstack.held_runs = [run(run_id="run-2")]
        watcher.look(runs.get(dstack.server, "lab"))
        assert (len(way.opened), way.closed) == (2, 1)
        watcher.close()
        assert way.closed == 2

    def test_of_status_and_watch(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        way, pauses = Way(), []
        monkeypatch.setattr(provider, "connect", lambda _project: dstack.server)
        monkeypatch.setattr(provider, "RunWatcher", lambda server: RunWatcher(server, poller(server)))
        monkeypatch.setattr(provider, "time", SimpleNamespace(sleep=pauses.append))

        def poller(server: Any) -> AccessPoller:
            return AccessPoller(server, opener=way.open)

        dstack.held_runs = [run()]
        assert DstackProvider().status("lab").phase is Phase.FETCH
        assert (way.opened, way.closed) == ([0], 1)
        looks = DstackProvider().watch("lab")
        assert [next(looks).phase for _ in range(3)] == [Phase.FETCH] * 3
        assert (len(way.opened), len(pauses)) == (2, 2)
        dstack.held_runs = [run(attempt(status="failed"), status="failed")]
        assert [each.phase for each in looks] == [Phase.FAILED]
        assert way.closed == 2

    def test_of_a_list_open_nothing(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(provider, "connect", lambda _project: dstack.server)
        theirs = run(name="theirs", user="alice", status="done", run_id="run-2")
        dstack.held_runs = [run(), theirs, run(name="no-agent", run_id="run-3")]
        dstack.held_runs[2].run_spec.configuration.commands = ["python3 serve.py"]
        [mine] = DstackProvider().list()
        assert (mine.name, mine.phase, mine.price_per_hour, mine.owner) == ("lab", Phase.RUNNING, 12.5, "")
        [theirs] = DstackProvider().list("theirs")
        assert (theirs.phase, theirs.owner) == (Phase.DOWN, "alice")
        assert DstackProvider().list("nothing") == ()


class TestThePrice:
    @pytest.fixture
    def asked(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
        """The texts that the server was asked about; it has two offers, the cheapest for 98.32."""
        texts: list[str] = []

        def quote(_server: Any, text: str, _folder: Path) -> RunPlan:
            texts.append(text)
            answer = SimpleNamespace(run_spec=SimpleNamespace(configuration=None))
            return RunPlan(
                text, "lab", 2, OFFERS if dstack.held_fleets else (), len(dstack.held_fleets), None, answer
            )

        monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path))
        for module in (plan_module, provider):
            monkeypatch.setattr(module, "connect", lambda _project: dstack.server)
        monkeypatch.setattr(runs, "plan", quote)
        dstack.held_fleets = [fleet(idle_s=-1)]
        return texts

    def test_is_asked_once_and_is_in_what_is_sent(
        self, asked: list[str], dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        plan = DstackProvider().plan(Cluster(name="lab", nodes=2, max_cost=200.0))
        assert plan.needs_price
        assert plan.price is None
        assert asked == []
        priced = plan.priced()
        assert len(asked) == 1
        assert "--max-cost 200 \\\n      --price-per-hour 196.64" in priced.render()
        assert priced.cluster.price_per_hour == 196.64
        assert not priced.needs_price
        assert next(tmp_path.rglob("lab.dstack.yml")).read_text() == priced.render()
        assert priced.price is not None
        assert (priced.price.per_hour, priced.price.total_offers) == (196.64, 1)
        assert ["never gives all" in each.text for each in priced.price.notices] == [True]

        sent: list[RunPlan] = []
        monkeypatch.setattr(runs, "apply", lambda _server, quoted: sent.append(quoted) or run_of(dstack))
        monkeypatch.setattr(provider, "await_ready", lambda *_: Way())
        monkeypatch.setattr(DstackProvider, "attach", lambda *_, **__: "connected")
        assert DstackProvider().up(priced) == "connected"
        assert len(asked) == 1
        assert sent == [priced.quoted]
        [quoted] = sent
        assert "--price-per-hour 196.64" in " ".join(quoted.answer.run_spec.configuration.commands)
        assert DstackProvider().up(plan) == "connected"  # not priced: it is asked for now
        assert len(asked) == 2

    def test_no_machine_and_no_fleet(self, asked: list[str], dstack: FakeDstack) -> None:
        dstack.held_fleets = []
        plan = DstackProvider().plan(Cluster(name="lab", nodes=2, gpu="H100:8", dstack={"regions": ["us"]}))
        with pytest.raises(NoFleet, match="has no fleet that it may run on") as caught:
            plan.priced()
        assert caught.value.fleet is not None
        assert caught.value.fleet == Fleet(
            name="lab-fleet", nodes=2, gpu="H100:8", dstack={"regions": ["us"]}
        )
        named = DstackProvider().plan(Cluster(name="lab", nodes=2, dstack={"fleets": ["mine"]}))
        with pytest.raises(CapacityError) as caught_too:
            named.priced()
        assert not isinstance(caught_too.value, NoFleet)


def run_of(dstack: FakeDstack) -> RunState:
    dstack.held_runs = [run()]
    return runs.get(dstack.server, "lab")


class TestBeforeAnythingIsPaid:
    def test_ssh_has_to_be_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(CloudrlError, match="there is no ssh on this machine"):
            DstackProvider().up(make_plan(LAB))

    def test_detach_false_is_refused(self) -> None:
        with pytest.raises(InputError, match="outlives this program") as caught:
            DstackProvider().up(make_plan(LAB), detach=False)
        assert 'with cluster.up(on="dstack") as ray' in str(caught.value.hint)


def test_down_ends_the_run_before_the_tunnel(dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    dstack.held_runs = [run()]
    monkeypatch.setattr(provider, "connect", lambda _project: dstack.server)
    monkeypatch.setattr(runs, "stop", lambda *_: done.append("run"))
    monkeypatch.setattr(runs, "wait_over", lambda *_: None)
    monkeypatch.setattr(route, "close_tunnel", lambda *_: done.append("tunnel"))
    assert DstackProvider().down("lab")
    assert done == ["run", "tunnel"]


def test_a_fleet_that_fits_costs_nothing_before_and_little_after() -> None:
    cluster = Cluster(
        name="a" * 41,
        nodes=4,
        gpu="H100:8",
        dstack={"regions": ["us-east-1"], "max_price": 99.0, "spot_policy": "spot", "priority": 5},
    )
    fleet = fleet_for(cluster)
    assert fleet.node_range == NodeRange(min=0, target=0, max=4)
    assert (fleet.gpu, fleet.placed) == ("H100:8", "cluster")
    assert fleet.dstack == {"regions": ("us-east-1",), "max_price": 99.0, "spot_policy": "spot"}
    assert fleet.idle_after == "1h"
    assert len(fleet.name) <= 41
