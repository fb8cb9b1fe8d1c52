"""What `up` would do on this machine, without doing it."""

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudrl.errors import CapacityError, InputError
from cloudrl.plugins import providers
from cloudrl.protocol.options import AgentOptions, Ports
from cloudrl.providers.local import processes
from cloudrl.providers.local.plan import LocalPlan, free_ports, is_taken, make_plan
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.registry import provider
from cloudrl.spec import Cluster

local = LocalProvider()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))


def _plan(dashboard_port: int | None = None, **fields: Any) -> LocalPlan:
    section = {} if dashboard_port is None else {"local": {"dashboard_port": dashboard_port}}
    return make_plan(Cluster.load({"name": "one", "nodes": 2, **section, **fields}))


def test_it_touches_nothing(tmp_path: Path) -> None:
    _plan()
    assert list(tmp_path.iterdir()) == []


def test_one_command_a_node(tmp_path: Path) -> None:
    plan = _plan(setup=["pip install 'a b'"], env={"A": "x y"})
    folder, state = tmp_path / "home" / "clusters" / "one", plan.state
    for rank, command in enumerate(plan.commands):
        assert command[:3] == (sys.executable, f"{folder}/cloudrl-node.pyz", "run")
        assert AgentOptions.from_argv(command[3:]) == AgentOptions(
            device="cpu",
            gpus=1,
            cpus=8,
            setup=("pip install 'a b'",),
            data=("addition",),
            models=("tiny-adder",),
            checkpoints=folder / "checkpoints",
            data_dir=folder / "data",
            run_dir=folder / f"node-{rank}",
            key_file=folder / "key",
            ray_temp_dir=Path(f"/tmp/cloudrl-{state.id[:8]}/{rank}"),
            object_store_bytes=256 * 1024**2,
            join_timeout_s=120,
            is_one_machine=True,
            disks_stay=True,
            ports=Ports(
                agent=state.agent_ports[rank], head_agent=state.agent_ports[0], gcs=state.gcs_port,
                dashboard=state.dashboard_port, client=state.client_port, dashboard_agent=0, node_manager=0,
                object_manager=0, worker=(0, 0),
            ),
        )  # fmt: skip


def test_nodes_of_one_machine_share_the_services_of_rank_0() -> None:
    first, second = _plan(services=["8000:a", "8001:b"]).commands
    assert [word for word in first if word.startswith("--service=")] == ["--service=8000:a", "--service=8001:b"]
    assert not [word for word in second if word.startswith("--service=")]


def test_services_that_take_their_port_run_on_every_node_of_one_machine() -> None:
    serve = {"name": "search", "port": 8000, "command": "serve --port $PORT", "health": "/health"}
    plan = _plan(services=[serve, {"port": 8001, "command": "judge ${PORT:-1}"}, "8002:fixed $PORTS"])
    options = [AgentOptions.from_argv(command[3:]) for command in plan.commands]
    first, second = options
    assert [each.label for each in first.services] == ["8002", "search", "8001"]
    assert [each.label for each in second.services] == ["search", "8001"]
    assert (first.services[0].port, first.services[1].health) == (8002, "/health")
    chosen = [each.port for each in (*first.services[1:], *second.services)]
    assert plan.state.service_ports == tuple(chosen)
    assert len({*plan.state.ports}) == len(plan.state.ports)
    for port, declared in zip(chosen, (8000, 8001), strict=False):
        assert (port == declared) is not is_taken(declared, "lab")
    assert [plan.node_env(rank)["CLOUDRL_SERVICE_8002"] for rank in (0, 1)] == ["127.0.0.1:8002"] * 2
    assert "CLOUDRL_SERVICE_SEARCH" not in plan.node_env(1)


def test_the_dry_run_shows_what_is_started() -> None:
    plan = _plan(setup=["echo 'it'\"'\"'s'; rm -rf $HOME"], env={"A": "x y; z"})
    head, first, second = plan.render().splitlines()
    assert head == f"# 2 agents on this machine; state in {plan.state.folder}"
    assert "CLOUDRL_NODE_RANK=0" in first
    assert "CLOUDRL_NODE_RANK=1" in second
    assert "A='x y; z'" in first
    words = shlex.split(second)
    assert tuple(words[-len(plan.commands[1]) :]) == plan.commands[1]
    assert dict(word.split("=", 1) for word in words[: -len(plan.commands[1])]) == plan.node_env(1)


def test_ports_and_ids_of_two_clusters_are_never_the_same() -> None:
    chosen: list[int] = []
    plans = [_plan(nodes=3) for _ in range(10)]
    for plan in plans:
        state = plan.state
        chosen += [state.gcs_port, state.client_port, *state.agent_ports]
        assert len({state.dashboard_port, *chosen[-5:]}) == 6
        assert not any(is_taken(port, plan.name) for port in chosen[-5:])
    assert len(set(chosen)) >= len(chosen) - 2  # by chance two of fifty may meet; the first to bind has it
    assert len({plan.state.id for plan in plans}) == len({plan.state.ray_temp_dir for plan in plans}) == 10


def test_unix_sockets_fit_into_rays_folder() -> None:
    """Linux ends their paths at 107 bytes, and Ray adds session_<date>_<time>_<pid>/sockets/plasma_store."""
    longest = f"{_plan().state.ray_temp_dir}/99/session_2026-11-21_10-45-22_123456_4194304/sockets/plasma_store.1"
    assert len(longest) <= 107


def test_no_port_is_one_that_an_outgoing_connection_may_take() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    state = _plan(nodes=5).state
    assert not [port for port in (state.gcs_port, state.client_port, *state.agent_ports) if first <= port <= last]


def test_the_default_dashboard_port_is_that_of_ray_when_it_is_free() -> None:
    taken = is_taken(8265, "lab")
    assert (_plan().state.dashboard_port == 8265) is not taken


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_dashboard_port_in_use_is_refused(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} on this machine is in use") as caught:
            _plan(dashboard_port=port)
    assert "--dashboard-port" in str(caught.value.hint)
    assert _plan(dashboard_port=port).state.dashboard_port == port


def test_a_port_of_a_cluster_that_is_still_coming_up_is_taken() -> None:
    """Its Ray listens seconds later; its processes carry its id from the start."""
    first = _plan(dashboard_port=free_ports(1, cluster="one")[0]).state
    first.write()
    other = Cluster.load({"name": "two", "nodes": 1})
    make_plan(other.with_set(f"local.dashboard_port={first.dashboard_port}"))  # nothing of it runs
    env = {**os.environ, processes.MARK: first.id}
    with subprocess.Popen(["sleep", "600"], env=env) as running:
        try:
            processes.await_environment(running.pid)
            for port in first.ports:
                with pytest.raises(InputError, match=f"port {port} on this machine is in use"):
                    make_plan(other.with_set(f"local.dashboard_port={port}"))
            assert _plan(dashboard_port=first.dashboard_port).state.ports[1] == first.dashboard_port  # its own name
        finally:
            running.kill()


def test_one_that_is_started_again_keeps_the_ports_at_which_clients_wait() -> None:
    first = _plan(dashboard_port=free_ports(1, cluster="one")[0]).state
    first.write()
    again = _plan(nodes=1).state
    assert (again.dashboard_port, again.agent_ports[0]) == (first.dashboard_port, first.agent_ports[0])
    with (
        socket.create_server(("127.0.0.1", first.agent_ports[0])),
        socket.create_server(("127.0.0.1", first.dashboard_port)),
    ):
        assert not {first.agent_ports[0], first.dashboard_port} & {*_plan().state.ports}


def test_gpus_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapacityError, match="nodes=2 with gpu=80GB:8 need 16 GPUs; this machine has 0"):
        _plan(gpu="80GB:8")


def test_gpus_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "echo 'GPU 0: H100'\n" * 4)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    plan = _plan(nodes=1, gpu="2")
    options = AgentOptions.from_argv(plan.commands[0][3:])
    assert (options.device, options.gpus) == ("gpu", 2)
    assert not [word for word in plan.commands[0] if word.startswith("--cpus-per-node")]
    with pytest.raises(InputError, match="several nodes on one machine would share its GPUs"):
        _plan(nodes=2, gpu="2")


def test_an_unknown_data_set() -> None:
    with pytest.raises(InputError, match="adition"):
        _plan(data=["adition"])


def test_an_unknown_provider() -> None:
    assert provider("local").list() == ()
    with pytest.raises(InputError, match="no provider 'slrum'") as caught:
        provider("slrum")
    assert ", ".join(providers()) in caught.value.message
    with pytest.raises(InputError, match="did you mean 'dstack'"):
        provider("dstak")


# -- a declaration that is meant for a cloud: what holds, what is named, what is refused ---------------------------


@pytest.mark.parametrize(
    ("fields", "folder"),
    [
        ({}, None),
        ({"checkpoints": "/nvme/ckpt"}, "/nvme/ckpt"),
        ({"volumes": ["/mnt/big:/checkpoints"]}, "/mnt/big"),
        ({"volumes": ["/mnt/big:/vol"], "checkpoints": "/vol/rl/ckpt"}, "/mnt/big/rl/ckpt"),
        ({"volumes": ["ckpt:/checkpoints"]}, None),
    ],
    ids=["none", "a folder", "a host's volume", "below it", "a network volume"],
)
def test_where_checkpoints_go(tmp_path: Path, fields: dict[str, object], folder: str | None) -> None:
    plan = local.plan(Cluster.load({"name": "lab", **fields}))
    wanted = Path(folder) if folder else tmp_path / "home" / "clusters" / "lab" / "checkpoints"
    assert plan.state.checkpoints == wanted
    assert f"--checkpoints={wanted}" in plan.commands[0]
    assert plan.facts.checkpoint_dir == str(wanted)


def test_what_has_no_effect_is_named() -> None:
    fields = {"image": "mine:1", "dstack": {"fleets": ["gpus"], "max_duration": "2d"}, "volumes": ["ckpt:/checkpoints"]}
    plan = local.plan(Cluster.load({"name": "lab", "env": {"A": "1"}, **fields}))
    assert plan.notes == ("without effect on this machine: image, volumes, dstack",)
    assert local.plan(Cluster.load({"name": "lab", "checkpoints": "/nvme/ckpt"})).notes == ()


def test_a_secret_comes_from_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(name="lab", secrets=["HF_TOKEN"])
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(InputError, match="secret HF_TOKEN is not set") as caught:
        local.plan(cluster)
    assert "export HF_TOKEN=" in str(caught.value.hint)
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    assert "hf_1" not in local.plan(cluster).render()


@pytest.mark.parametrize("declared", [False, True])
def test_what_stays_is_said_with_its_place(tmp_path: Path, declared: bool) -> None:
    nvme = tmp_path / "nvme"
    plan = local.plan(Cluster.load({"name": "lab", **({"checkpoints": str(nvme)} if declared else {})}))
    plan.state.write()
    look, own = local.status("lab"), plan.state.folder
    assert look.retention.location == f"in {nvme if declared else own / 'checkpoints'}"
    assert look.teardown_summary == (
        f"checkpoints stay in {nvme}, logs in {own}" if declared else f"checkpoints and logs stay in {own}"
    )
