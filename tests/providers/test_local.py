"""Clusters on this machine: real agents, a stand-in for Ray."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import other_user
import pytest
from fake_clock import Clock
from node_harness import kill_all, until
from patience import SLOWER

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed, InputError, Interrupted
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.phases import Phase
from cloudrl.providers.local import processes, state
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.transport import AgentClient, inspect_cluster

if TYPE_CHECKING:
    from conftest import Home

    from cloudrl.providers.local.plan import LocalPlan
    from cloudrl.providers.model import Status

pytestmark = pytest.mark.agents
provider = LocalProvider()


def _is_gone(plan: LocalPlan) -> bool:
    """No process, no port, no temporary folder."""
    with socket.socket() as probe:
        open_ports = [port for port in plan.state.ports if probe.connect_ex(("127.0.0.1", port)) == 0]
    return not (processes.of_cluster(plan.state.id) or open_ports or Path(plan.state.ray_temp_dir).exists())


def test_from_up_to_down(home: Home) -> None:
    plan, looks = home.plan(), []
    connection = provider.up(plan, on_status=looks.append, timeout_s=60)
    assert looks[-1].is_ready
    every = list(Phase)
    assert {each.phase for each in looks} <= set(every[every.index(Phase.START) : every.index(Phase.READY) + 1])
    assert (connection.name, connection.cluster_id) == ("one", plan.state.id)
    assert [each.name for each in (*provider.list(), *provider.list("one"))] == ["one", "one"]
    assert provider.attach("one") == connection

    look = provider.status("one")
    assert (look.phase, look.facts.nodes, [node.rank for node in look.nodes]) == ("ready", 2, [0, 1])
    assert look.dashboard_url == connection.ray_url == f"http://127.0.0.1:{plan.state.dashboard_port}"
    seen = inspect_cluster(connection)
    assert (seen.nodes, seen.gpus_per_node, seen.device) == (2, 1, "cpu")
    assert seen.checkpoint_dir == str(plan.state.folder / "checkpoints")
    assert Path(seen.data["addition"]["train"]).is_file()

    # a second one of that name
    with pytest.raises(InputError, match="cluster 'one' is up already") as caught:
        home.up()
    assert "cloudrl down one" in str(caught.value.hint)
    assert provider.attach("one") == connection
    assert inspect_cluster(connection).id == plan.state.id

    (plan.state.folder / "checkpoints" / "shard").write_text("x")
    assert provider.down("one") is True
    assert _is_gone(plan)
    assert provider.down("one") is False
    assert provider.status("one").phase == "down"
    assert (plan.state.folder / "checkpoints" / "shard").read_text() == "x"
    assert "READY" in (plan.state.folder / "node-0" / "agent.log").read_text()
    with pytest.raises(InputError, match="local cluster 'one' is not running") as caught:
        provider.attach("one")
    assert "cloudrl up one" in str(caught.value.hint)
    with pytest.raises(ConnectionFailed):
        inspect_cluster(connection)


def test_two_clusters_at_once(home: Home) -> None:
    one, two = home.up("one", nodes=1), home.up("two", nodes=1)
    first, second = (plan.state for plan in home.plans)
    assert not set(first.ports) & set(second.ports)
    assert len({first.id, second.id, first.ray_temp_dir, second.ray_temp_dir, first.folder, second.folder}) == 6
    assert one.agent_token != two.agent_token
    assert one.ray_token != two.ray_token
    assert [each.name for each in provider.list()] == ["one", "two"]
    with pytest.raises(ConnectionFailed, match="refuses the token"):
        AgentClient(str(one.agent_url), str(two.agent_token)).status()
    with pytest.raises(InputError, match="local cluster 'three' does not exist"):
        provider.attach("three")
    provider.down("one")
    assert _is_gone(home.plans[0])
    assert inspect_cluster(two).id == second.id
    provider.down("two")


def test_a_client_that_waits_finds_the_cluster_that_is_started_again(home: Home) -> None:
    agent, breaks = home.up(nodes=1).agent(), []
    provider.down("one")
    with ThreadPoolExecutor(1) as pool:
        patience = Backoff(longest_s=0.5, give_up_s=60.0)
        waiting = pool.submit(retry, agent.status, patience, on_break=breaks.append)
        until(lambda: breaks, "it waits")
        home.up(nodes=1)
        assert waiting.result().facts.id == home.plans[1].state.id
    provider.down("one")


def test_a_set_up_that_fails(home: Home) -> None:
    plan = home.plan(setup=["echo about to fail; exit 3"])
    with pytest.raises(ClusterFailed, match=r"setup: `echo about to fail; exit 3` exited with 3") as caught:
        provider.up(plan, timeout_s=60)
    assert str(state.root() / "one") in str(caught.value.hint)
    assert _is_gone(plan)
    look = provider.status("one")
    assert look.has_failed
    assert "`echo about to fail; exit 3` exited with 3" in look.reason
    first = _key(plan)
    assert home.up(nodes=1)
    assert _key(plan) != first
    provider.down("one")
    assert provider.status("one").phase == "down"


def _key(plan: LocalPlan) -> bytes:
    """The cluster's secret, which only its owner may read."""
    assert plan.state.key_file.stat().st_mode & 0o777 == 0o600
    return plan.state.key_file.read_bytes()


def test_it_never_becomes_ready(home: Home) -> None:
    (home.control / "hold-0").touch()
    plan = home.plan(nodes=1)
    with pytest.raises(ClusterFailed, match=r"cluster 'one' is still in phase \w+ after 1 s"):
        provider.up(plan, timeout_s=0.6)
    assert _is_gone(plan)


def test_an_agent_that_dies_while_it_comes_up(home: Home) -> None:
    (home.control / "hold-0").touch()
    plan = home.plan()

    def kill(look: Status) -> None:
        if [node.phase for node in look.nodes] == ["ray", "ray"]:
            kill_all([pid for pid in processes.agents(plan.state.id) if _rank(pid) == 1])

    with pytest.raises(ClusterFailed, match=r"rank 1 \(.*\) was lost in phase ray"):
        provider.up(plan, on_status=kill, timeout_s=60)
    assert _is_gone(plan)


def _rank(pid: int) -> int:
    words = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    return next(int(word.partition(b"=")[2]) for word in words if word.startswith(b"CLOUDRL_NODE_RANK="))


def test_ctrl_c(home: Home) -> None:
    plan = home.plan(nodes=1)

    def press(look: Status) -> None:
        if look.phase != "start":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        provider.up(plan, on_status=press, timeout_s=60)
    assert _is_gone(plan)


def test_a_cluster_that_ends_by_itself_says_why(home: Home) -> None:
    home.up()
    plan = home.plans[0]
    kill_all([pid for pid in processes.agents(plan.state.id) if _rank(pid) == 1])
    until(lambda: provider.status("one").has_failed, "the head has ended")
    assert "rank 1 (" in provider.status("one").reason
    assert "was lost in phase" in provider.status("one").reason
    until(lambda: not processes.agents(plan.state.id), "it is gone")
    assert provider.status("one").has_failed
    assert provider.down("one") is False
    assert provider.status("one").phase == "down"
    assert _is_gone(plan)


def test_all_agents_killed_at_once(home: Home) -> None:
    home.up(nodes=1)
    plan = home.plans[0]
    [agent] = processes.agents(plan.state.id)
    kill_all([agent])
    until(lambda: not processes.agents(plan.state.id), "the agent is gone")
    with pytest.raises(InputError, match="is not running"):
        provider.attach("one")
    provider.down("one")
    assert _is_gone(plan)


def test_a_port_that_was_taken_since_the_plan(home: Home) -> None:
    plan = home.plan(nodes=1)
    with (
        socket.create_server(("127.0.0.1", plan.state.client_port)),
        pytest.raises(InputError, match=f"port {plan.state.client_port} was taken by another program a moment ago"),
    ):
        provider.up(plan, timeout_s=60)
    assert provider.list() == ()
    assert _is_gone(plan)


def test_one_command_at_a_time(home: Home) -> None:
    with (
        state.lock("one"),
        pytest.raises(
            InputError, match=rf"another cloudrl command \(process {os.getpid()}\) is working on cluster 'one'"
        ),
    ):
        home.up()
    assert not processes.of_cluster(home.plans[0].state.id)


# -- what an earlier life may have left ---------------------------------------------------------------------------


def test_a_state_whose_processes_are_long_dead(home: Home) -> None:
    """The machine was switched off. Its process ids and ports are others' now."""
    old = replace(home.plan().state, boot_id="of another day")
    old.write()
    Path(old.ray_temp_dir, "0").mkdir(parents=True)
    look = provider.status("one")
    assert (look.phase, look.reason) == ("failed", "this machine was restarted while the cluster was up")
    assert home.up(nodes=1)
    assert not Path(old.ray_temp_dir).exists()
    provider.down("one")
    old.write()
    assert provider.down("one") is False


def test_a_cluster_whose_processes_were_all_killed(home: Home) -> None:
    plan = home.plan()
    provider.up(plan, timeout_s=60)
    while alive := processes.of_cluster(plan.state.id):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    look = provider.status("one")
    assert (look.phase, look.reason) == ("failed", "all of its processes were killed")
    assert provider.down("one") is False
    assert provider.status("one").phase == "down"
    assert _is_gone(plan)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_agent_that_is_killed_leaves_nothing(home: Home, rank: int) -> None:
    """Ray starts the driver of a job in a session of its own, which no signal of an agent's group reaches."""
    plan = home.plan(setup=["setsid sh -c 'trap : TERM; while :; do sleep 1; done' >/dev/null 2>&1 &"])
    provider.up(plan, timeout_s=60)
    [agent] = [pid for pid in processes.agents(plan.state.id) if f"/node-{rank} " in _command_of(pid)]
    os.kill(agent, signal.SIGKILL)
    until(lambda: _is_gone(plan), "all processes and Ray's folder are gone", timeout_s=60)
    assert provider.status("one").has_failed


def _command_of(pid: int) -> str:
    return Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ")


def test_a_start_has_the_logs_of_no_earlier_one(home: Home) -> None:
    home.up()
    provider.down("one")
    folder = state.read("one").folder
    for node in ("node-0", "node-1"):
        (folder / node / "ray.log").write_text("of an earlier start")
    home.up(nodes=1)
    assert "earlier" not in (folder / "node-0" / "ray.log").read_text()
    assert not (folder / "node-1").exists()
    provider.down("one")


# -- other users of this machine ----------------------------------------------------------------------------------


@pytest.mark.root
def test_another_user_has_made_the_folder_of_ray(home: Home) -> None:
    plan = home.plan()
    folder = Path(plan.state.ray_temp_dir)
    assert other_user.run('mkdir "$1" && echo theirs >"$1/file"', folder).returncode == 0
    try:
        with pytest.raises(InputError, match=f"{folder} was made by another program a moment ago"):
            provider.up(plan, timeout_s=60)
        assert [each.name for each in folder.iterdir()] == ["file"]
        assert not processes.of_cluster(plan.state.id)
        assert provider.status("one").phase == "down"
    finally:
        shutil.rmtree(folder)


def test_the_state_is_private_whatever_the_umask(home: Home) -> None:
    before = os.umask(0)
    try:
        plan = home.plan()
        provider.up(plan, timeout_s=60)
    finally:
        os.umask(before)
    root, own = home.folder / "home", plan.state.folder
    folders = (root, root / "clusters", own, own / "node-0", own / "checkpoints", Path(plan.state.ray_temp_dir))
    assert {path: oct(path.stat().st_mode & 0o777) for path in folders} == dict.fromkeys(folders, "0o700")
    files = [*own.glob("*"), *own.glob("node-*/*")]
    assert not [path for path in files if path.is_file() and path.stat().st_mode & 0o077]
    provider.down("one")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"name": "one"}', '{"agent_ports": 5}', "\0"])
def test_a_state_that_cannot_be_read(home: Home, text: str) -> None:
    home.plan().state.write()
    file = (state.root() / "one") / "cluster.json"
    file.write_text(text)
    for verb in (provider.status, provider.down, provider.attach, provider.list, home.up):
        with pytest.raises(CloudrlError, match="cannot be read") as caught:
            verb("one")
        assert caught.value.hint == f"Remove it: rm {file}"


@pytest.mark.parametrize("verb", [provider.down, provider.status])
def test_a_name_that_is_not_there(home: Home, verb: object) -> None:
    with pytest.raises(InputError, match="no local cluster 'nothing'") as caught:
        verb("nothing")  # type: ignore[operator]
    assert "cloudrl status" in str(caught.value.hint)
    assert not (home.folder / "home").exists()


def test_leftovers_without_an_agent_are_ended_at_once(home: Home, clock: Clock) -> None:
    env = {**os.environ, processes.MARK: "an-id"}
    orphan = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.2; done"]
    with subprocess.Popen(orphan, env=env, stdout=subprocess.PIPE) as left:
        left.stdout.readline()
        clock.on_sleep = lambda: time.sleep(0.01)
        assert processes.end("an-id", clock=clock, sleep=clock.sleep) is True
        assert left.wait(5 * SLOWER) == -signal.SIGKILL
    assert clock.now < 5
    assert processes.end("an-id") is False


def test_what_has_lost_its_environment_is_ended_too() -> None:
    """As a process that sets its title may have."""
    env = {**os.environ, processes.MARK: "an-id"}
    with subprocess.Popen(["sh", "-c", "env -i sleep 600 & echo $!; wait"], env=env, stdout=subprocess.PIPE) as parent:
        nameless = int(parent.stdout.readline())
        until(lambda: Path(f"/proc/{nameless}/environ").read_bytes() == b"", "it has no environment")
        assert processes.of_cluster("an-id") == {parent.pid, nameless}
        assert processes.end("an-id") is True
    assert not processes.of_cluster("an-id")
    until(lambda: not _lives(nameless), "it is gone")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_is_found_from_the_moment_in_which_it_was_started() -> None:
    """On a busy machine one of some sixty was not: its environment could not be read yet."""
    env = {**os.environ, processes.MARK: "an-id"}
    for _ in range(20):
        with subprocess.Popen(["sleep", "600"], env=env) as started:
            processes.await_environment(started.pid)
            assert processes.of_cluster("an-id") == {started.pid}
            started.kill()
    with subprocess.Popen(["true"], env=env) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        processes.await_environment(ended.pid)


def test_processes_of_others_are_not_touched(home: Home) -> None:
    for mark in ("an-id-and-more", "an-i", ""):
        with subprocess.Popen(["sleep", "600"], env={**os.environ, processes.MARK: mark}) as other:
            processes.await_environment(other.pid)
            assert other.pid not in processes.of_cluster("an-id")
            other.kill()


def test_one_that_was_idle_for_long_enough_has_ended_and_not_failed(home: Home) -> None:
    plan = home.plan(down_when_idle="5s")
    provider.up(plan, timeout_s=60)
    until(lambda: not processes.of_cluster(plan.state.id), "it has ended by itself")
    look = provider.status("one")
    assert (look.phase, look.reason, look.has_failed) == ("down", "idle for 5s", False)
    assert provider.down("one") is False
    assert provider.status("one").reason == ""
    assert _is_gone(plan)


def test_the_cost_is_counted_where_the_price_is_known(home: Home) -> None:
    provider.up(home.plan(nodes=1, price_per_hour=36.0, max_cost=1000.0), timeout_s=60)
    look = provider.status("one")
    assert look.price_per_hour == 36
    assert look.cost is not None
    assert 0 < look.cost < 10
    assert look.budget.max_cost == 1000
    provider.down("one")
