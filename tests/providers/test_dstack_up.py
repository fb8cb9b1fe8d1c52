"""A cluster on dstack on its way up, told from a server's answers: what is said when something is in the way."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dstack._internal.core.services.ssh.key_manager import UserSSHKeyManager
from fake_clock import Clock
from fake_dstack import FakeDstack, attempt, fleet, run

from cloudrl.errors import CapacityError, CloudrlError, ClusterFailed, ConnectionFailed, Interrupted
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.outcome import STARTED
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import ClusterStatus
from cloudrl.protocol.tokens import derive
from cloudrl.providers.dstack import access, provider, route, runs
from cloudrl.providers.dstack.plan import DstackPlan, make_plan
from cloudrl.providers.dstack.provider import DstackProvider, with_run_state
from cloudrl.providers.dstack.runs import RunState
from cloudrl.providers.dstack.watcher import RunWatcher
from cloudrl.providers.model import Status
from cloudrl.spec import Cluster
from cloudrl.transport.ssh import Route
from cloudrl.transport.tunnel import Tunnel

LAB = Cluster(name="lab", nodes=2)


@pytest.fixture
def priced(dstack: FakeDstack) -> DstackPlan:
    """A plan that the server was asked about while nothing ran; two machines for $98.32 each are the cheapest."""
    dstack.held_fleets = [fleet(idle_s=-1)]
    return make_plan(LAB).priced()


def current(dstack: FakeDstack) -> RunState:
    return runs.get(dstack.server, "lab")


def refused(*_: Any, **__: Any) -> Any:
    raise ConnectionFailed("no tunnel after 20 s: Permission denied (publickey)")


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
        self, dstack: FakeDstack, priced: DstackPlan, error: CloudrlError, there: Any, said: str
    ) -> None:
        dstack.held_runs = [there]
        told = with_run_state(dstack.server, priced, error)
        assert type(told) is type(error)
        assert told.message == f"{error.message}; cluster lab keeps running {said}"
        hints = [*(error.hint or "").splitlines(), "Look: cloudrl status lab --watch", "End it: cloudrl down lab"]
        assert str(told.hint).splitlines() == hints

    def test_of_a_server_that_is_gone_says_that_nobody_knows(self, dstack: FakeDstack, priced: DstackPlan) -> None:
        dstack.is_down = True
        told = with_run_state(dstack.server, priced, UNREACHED)
        assert "; cannot tell whether cluster lab keeps running: " in told.message
        assert str(told.hint).endswith("Look: cloudrl status lab\nEnd it: cloudrl down lab")

    @pytest.mark.parametrize(
        ("there", "is_old"),
        [([], False), ([run(status="failed")], False), ([run()], True)],
        ids=["none", "over", "there before"],
    )
    def test_is_left_as_it_is_where_nothing_of_it_runs(
        self, dstack: FakeDstack, priced: DstackPlan, clock: Clock, there: list[Any], is_old: bool
    ) -> None:
        dstack.held_runs = there
        if is_old:
            priced.answer.current_resource = there[0]
        tell = partial(with_run_state, dstack.server, priced, clock=clock, sleep=clock.sleep)
        for error in (UNREACHED, CapacityError("no machines")):
            assert tell(error) is error
        told = tell(CTRL_C)
        assert told.message == "interrupted; nothing was started"
        assert told.exit_code == 130

    def test_before_the_server_was_asked(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        def press(_plan: DstackPlan) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(provider.DstackPlan, "priced", press)
        with pytest.raises(Interrupted, match=r"^interrupted; nothing was started$"):
            DstackProvider().up(make_plan(LAB))
        assert dstack.looks == 0

    def test_a_request_that_arrives_late(self, dstack: FakeDstack, priced: DstackPlan, clock: Clock) -> None:
        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            dstack.held_runs = [run(status="submitted")]

        told = with_run_state(dstack.server, priced, CTRL_C, clock=clock, sleep=sleep)
        assert "interrupted; cluster lab keeps running (submitted)" in told.message

    @pytest.mark.parametrize(
        ("problem", "error"), [(ConnectionFailed("no answer"), ConnectionFailed), (KeyboardInterrupt, Interrupted)]
    )
    def test_in_up(
        self,
        dstack: FakeDstack,
        priced: DstackPlan,
        monkeypatch: pytest.MonkeyPatch,
        problem: BaseException,
        error: type[CloudrlError],
    ) -> None:
        """The request that starts it gets no answer, and starts it."""

        def apply(*_: Any) -> None:
            dstack.held_runs = [run()]
            raise problem

        monkeypatch.setattr(runs, "apply", apply)
        with pytest.raises(error, match=r"; cluster lab keeps running \(running\) and costs about"):
            DstackProvider().up(priced)


class TestAClusterThatCannotBeReached:
    def test_is_given_up_after_a_while_and_not_before(
        self, dstack: FakeDstack, priced: DstackPlan, clock: Clock
    ) -> None:
        dstack.held_runs = [run(attempt(price=12.5))]
        watcher = RunWatcher(dstack.server, give_up_s=600, opener=refused, clock=clock)
        for pause_s in (0, 599):
            clock.sleep(pause_s)
            status = watcher.status(current(dstack))
            assert "Permission denied" in status.nodes[0].detail
        clock.sleep(2)
        with pytest.raises(ConnectionFailed, match="is running, and cannot be reached") as at:
            watcher.status(current(dstack))
        assert "Permission denied" in at.value.message
        said = with_run_state(dstack.server, priced, at.value)
        assert "cannot be reached from this machine: no tunnel" in said.message
        assert said.message.endswith("cluster lab keeps running (running) and costs about $12.50/h")
        assert str(said.hint).splitlines()[0] == "Try again: cloudrl attach lab"
        assert str(said.hint).splitlines()[-1] == "End it: cloudrl down lab"

    def test_is_seen_as_such_by_who_waits(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        dstack.held_runs = [run()]
        statuses: list[Status] = []
        monkeypatch.setattr(provider, "RunWatcher", partial(RunWatcher, opener=refused))
        with pytest.raises(ClusterFailed, match="not ready"):
            provider.await_ready(dstack.server, current(dstack), statuses.append, -1.0)
        assert "Permission denied (publickey)" in statuses[0].nodes[0].detail

    def test_the_logs_of_failed_attempts_are_asked_for_once_for_each_new_one(
        self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before, it was once a second, for as long as `up` waited."""
        ended = [attempt(n, status="failed", code="container_exited_with_error") for n in range(6)]
        dstack.held_outputs = {each.id: f"{STARTED}lab\n" for each in ended[:3]}
        dstack.held_runs = [run(*ended[:3], attempt(3), status="provisioning")]
        polls: list[int] = []

        def on_status(_: Status) -> None:
            polls.append(dstack.polls)
            if len(polls) == 3:
                dstack.held_runs = [run(*ended, status="pending")]

        monkeypatch.setattr(provider, "_POLL_S", 0)
        monkeypatch.setattr(runs, "end", partial(runs.end, sleep=lambda _: None))
        with pytest.raises(ClusterFailed, match="rank 0 has ended 3 times before its agent started"):
            provider.await_ready(dstack.server, current(dstack), on_status, 60)
        assert polls == [polls[0]] * 3
        assert [each.status.value for each in dstack.held_runs] == ["terminated"]

    def test_counts_from_running_and_anew_after_a_restart(self, dstack: FakeDstack, clock: Clock) -> None:
        watcher = RunWatcher(dstack.server, give_up_s=600, opener=refused, clock=clock)
        for status, number in (("provisioning", 0), ("running", 0), ("running", 1)):
            dstack.held_runs = [run(attempt(number), status=status)]
            assert watcher.status(current(dstack)).phase == status
            clock.sleep(500)


ANSWER = ClusterStatus(ClusterFacts("lab", "id", "dstack", 1, checkpoint_dir="/checkpoints"), Phase.FETCH)


class Way:
    """A way to a cluster whose agent answers; says how often it was opened, and whether it is closed."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.closed = 0
        self.is_kept_open = True
        self.connection = SimpleNamespace(ray_url="http://127.0.0.1:8265")

    def open(self, _server: Any, look: RunState, **_: Any) -> Any:
        self.opened.append(look.attempt)
        return self

    def status(self) -> ClusterStatus:
        return ANSWER

    def close(self) -> None:
        self.closed += 1


class TestStatuses:
    def test_go_through_one_ssh_as_long_as_it_is_the_same_run(self, dstack: FakeDstack) -> None:
        way = Way()
        watcher = RunWatcher(dstack.server, opener=way.open)
        dstack.held_runs = [run(volumes=[SimpleNamespace(name="ckpt", path="/checkpoints")])]
        seen = [watcher.status(current(dstack)) for _ in range(5)]
        assert way.opened == [0]
        assert {each.phase for each in seen} == {Phase.FETCH}
        assert seen[0] == seen[4]
        assert seen[0].retention is not None
        assert seen[0].teardown_summary.endswith("; checkpoints stay on network volume ckpt")
        dstack.held_runs = [run(attempt(0, status="failed"), attempt(1))]  # the tunnel finds its head by itself
        assert len(watcher.status(current(dstack)).previous_attempts) == 1
        assert (way.opened, way.closed) == ([0], 0)
        dstack.held_runs = [run(run_id="run-2")]
        watcher.status(current(dstack))
        assert (len(way.opened), way.closed) == (2, 1)
        watcher.close()
        assert way.closed == 2

    def test_of_status_and_watch(self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
        way, pauses = Way(), []
        monkeypatch.setattr(provider, "RunWatcher", partial(RunWatcher, opener=way.open))
        monkeypatch.setattr(provider, "time", SimpleNamespace(sleep=pauses.append))
        dstack.held_runs = [run()]
        assert DstackProvider().status("lab").phase is Phase.FETCH
        assert (way.opened, way.closed) == ([0], 1)
        statuses = DstackProvider().watch("lab")
        assert [next(statuses).phase for _ in range(3)] == [Phase.FETCH] * 3
        assert (len(way.opened), len(pauses)) == (2, 2)
        dstack.held_runs = [run(attempt(status="failed"), status="failed")]
        assert [each.phase for each in statuses] == [Phase.FAILED]
        assert way.closed == 2

    def test_of_a_list_open_nothing(self, dstack: FakeDstack) -> None:
        theirs = run(name="theirs", user="alice", status="done", run_id="run-2")
        dstack.held_runs = [run(), theirs, run(name="no-agent", run_id="run-3")]
        dstack.held_runs[2].run_spec.configuration.commands = ["python3 serve.py"]
        [mine] = DstackProvider().list()
        assert (mine.name, mine.phase, mine.price_per_hour, mine.owner) == ("lab", Phase.RUNNING, 12.5, "")
        [theirs] = DstackProvider().list("theirs")
        assert (theirs.phase, theirs.owner) == (Phase.DOWN, "alice")
        assert DstackProvider().list("nothing") == ()


def test_a_run_that_was_submitted_again_is_found_where_it_is_now(
    dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head is elsewhere, with a new key, which is read once for each token that is refused."""
    keys: list[str] = []

    def read(route: Route, *_: Any) -> bytes:
        keys.append(route.name)
        return route.name.encode() * 64

    monkeypatch.setattr(access.route, "route", lambda _server, run: Route(run.nodes[0].latest.hostname, {}))
    monkeypatch.setattr(access.ssh, "run", read)
    monkeypatch.setattr(Tunnel, "open", lambda *_: None)
    dstack.held_runs = [run(attempt(0, host="10.0.0.1"))]
    way = access.open_access(dstack.server, current(dstack))
    first = way.connection
    dstack.held_runs = [run(attempt(0, status="failed"), attempt(1, host="10.0.0.2"))]
    assert way.find().name == "10.0.0.2"
    second = way.refresh(str(first.agent_token))
    assert way.refresh(str(first.ray_token)) is second
    assert second.ray_url == first.ray_url
    assert second.agent_token != first.agent_token
    assert keys == ["10.0.0.1", "10.0.0.2"]
    dstack.is_down = True
    way.ensure_alive()
    dstack.is_down = False
    for there, how in (([run(run_id="run-2")], "another run has its name"), ([], "it is gone")):
        dstack.held_runs = there
        with pytest.raises(ClusterFailed, match=f"cluster 'lab' is over: {how}"):
            way.find()
    way.close()


def test_a_run_with_the_key_of_somebody_else_is_out_of_reach(
    dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    key = SimpleNamespace(public_key="ssh-rsa mine", private_key_path="/key")
    manager = "dstack._internal.core.services.ssh.key_manager.UserSSHKeyManager"
    monkeypatch.setattr(manager, lambda *_: SimpleNamespace(get_user_key=lambda: key))
    dstack.held_runs = [run(user="alice")]
    dstack.held_runs[0].run_spec.ssh_key_pub = "ssh-rsa theirs"
    with pytest.raises(ConnectionFailed, match=r"^no tunnel: run 'lab' was started with another SSH key") as caught:
        access.open_access(dstack.server, current(dstack))
    assert "dstack project add" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("key", "others"),
    [(b"-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\n", ["10.0.0.2"]), (b"0f" * 32, [])],
    ids=["of the run", "of a single node"],
)
def test_what_an_image_prints_before_the_key_is_no_part_of_it(
    dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch, key: bytes, others: list[str]
) -> None:
    """`cat KEY` through ssh runs the image's ~/.bashrc first."""
    monkeypatch.setattr(access.route, "route", lambda *_: Route("lab", {}))
    monkeypatch.setattr(access.ssh, "run", lambda *_: b"Welcome to CUDA\n" + key)
    monkeypatch.setattr(Tunnel, "open", lambda *_: None)
    dstack.held_runs = [run(attempt(), others=[attempt(host=host) for host in others])]
    way = access.open_access(dstack.server, current(dstack))
    assert way.connection.ray_token == derive(key).ray
    way.close()


def test_a_run_with_another_key_is_reached_with_dstacks_old_one(
    dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `dstack attach` does (0.22.5, api/_public/runs.py)."""
    monkeypatch.setenv("HOME", str(tmp_path))
    theirs = SimpleNamespace(public_key="ssh-ed25519 A", private_key_path=str(tmp_path / "new"))
    monkeypatch.setattr(UserSSHKeyManager, "__init__", lambda *_: None)
    monkeypatch.setattr(UserSSHKeyManager, "get_user_key", lambda _: theirs)
    dstack.held_runs = [run()]
    dstack.held_runs[0].run_spec.ssh_key_pub = "ssh-rsa B"
    with pytest.raises(ConnectionFailed, match="was started with another SSH key"):
        route._identity(dstack.server, current(dstack))
    old = tmp_path / ".dstack" / "ssh" / "id_rsa"
    old.parent.mkdir(parents=True, exist_ok=True)
    old.touch()
    assert route._identity(dstack.server, current(dstack)) == old
    dstack.held_runs[0].run_spec.ssh_key_pub = "ssh-ed25519 A"
    assert route._identity(dstack.server, current(dstack)) == tmp_path / "new"


def test_down_ends_the_run_before_the_tunnel(dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    dstack.held_runs = [run()]
    monkeypatch.setattr(runs, "end", lambda *_: done.append("run"))
    monkeypatch.setattr(access, "close_tunnel", lambda *_: done.append("tunnel"))
    assert DstackProvider().down("lab")
    assert done == ["run", "tunnel"]
