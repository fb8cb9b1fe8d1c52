"""What rank 0 and each node make of what the processes of the check have found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_clock import Clock

from cloudrl.node import compute_watch
from cloudrl.node.compute_process import Found
from cloudrl.node.compute_watch import ComputeWatch, gang_is_off
from cloudrl.node.facts import cluster_facts
from cloudrl.node.failure import NodeFailed
from cloudrl.node.gang import ANSWERS_WITHIN_S, Gang, slow_parts
from cloudrl.node.identity import Identity
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.compute import ComputeStep, NodeCheck, Rendezvous
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import NodeReport, NodeWarning, WarningKind
from cloudrl.protocol.wire import to_json

READY = NodeCheck(ComputeStep.READY, 8, 4000, tflops=(600.0,) * 8)
DONE = replace(READY, step=ComputeStep.DONE, received_gb_per_s=40.0)
IDENTITY = Identity("slurm", "lab", "run", 0, 2, "10.0.0.1", "10.0.0.1", 8)
OPTIONS = AgentOptions(import_check=("numpy", "torch"))


def reports(*checks: NodeCheck | None) -> list[NodeReport]:
    return [NodeReport(rank, f"10.0.0.{rank + 1}", check=check) for rank, check in enumerate(checks)]


class Followed:
    """A check of three nodes that has begun."""

    def __init__(self) -> None:
        self.clock, self.warnings = Clock(), list[NodeWarning]()
        self.state = NodeState(reports(READY)[0])
        self.gang = Gang(3, self.state, self.warnings.append, on_gpus=True, clock=self.clock)
        self.gang.look(reports(READY, READY, READY))

    def failure(self, *checks: NodeCheck, after_s: float) -> tuple[int, str]:
        self.gang.look(reports(*checks))
        self.clock.now += after_s
        with pytest.raises(NodeFailed) as caught:
            self.gang.look(reports(*checks))
        failure = caught.value.failure
        assert "--env CLOUDRL_GANG_CHECK=off" in failure.reason
        return failure.rank, failure.reason


@pytest.mark.parametrize("missing", [None, replace(READY, step=ComputeStep.COMPUTE)])
def test_it_begins_when_all_are_ready(missing: NodeCheck | None) -> None:
    state = NodeState(reports(READY)[0])
    gang = Gang(3, state, print, on_gpus=True)
    gang.look(reports(READY, READY))
    gang.look(reports(READY, READY, missing))
    assert state.published.rendezvous is None
    gang.look(reports(NodeCheck(ComputeStep.READY), READY, READY))
    rendezvous = state.published.rendezvous
    assert rendezvous is not None
    assert [(each.rank, each.ip) for each in rendezvous.members] == [(1, "10.0.0.2"), (2, "10.0.0.3")], "no GPU on 0"
    assert [rendezvous.before(rank) for rank in range(3)] == [None, 2, 1]


def test_a_link_that_hardly_moves_anything_is_measured(tmp_path: Path) -> None:
    done = Found(ComputeStep.DONE, received_gb_per_s=1.234567e-5)
    assert OneNode(tmp_path).has_found(done, replace(done, received_gb_per_s=0.0)).received_gb_per_s == 1.235e-05


def test_nodes_that_are_not_tried_together_wait_for_nobody() -> None:
    state = NodeState(reports(READY)[0])
    gang = Gang(2, state, print, on_gpus=True)
    gang.look(reports(NodeCheck(ComputeStep.READY), READY))
    assert (gang.is_over, state.published.rendezvous) == (True, Rendezvous())


class TestWhoIsAtFault:
    def test_a_silent_rank_counts_before_the_errors_of_those_that_miss_it(self) -> None:
        broken = replace(READY, step=ComputeStep.EXCHANGE, error="RuntimeError: Connection closed by peer")
        silent = replace(READY, step=ComputeStep.EXCHANGE, lost=(3,))
        rank, reason = Followed().failure(broken, silent, broken, after_s=8.0)
        assert (rank, "rank 1: no sign of life while in step exchange" in reason) == (1, True)

    def test_one_that_hangs_in_an_earlier_step(self) -> None:
        at = [replace(READY, step=step) for step in (ComputeStep.EXCHANGE, ComputeStep.EXCHANGE, ComputeStep.CONNECT)]
        rank, reason = Followed().failure(*at, after_s=ANSWERS_WITHIN_S + 1)
        assert (rank, "rank 2: not through step connect after 55 s" in reason) == (2, True)

    def test_all_that_torch_says(self) -> None:
        broken = replace(READY, step=ComputeStep.CONNECT, error="NCCL error: unhandled system error")
        rank, reason = Followed().failure(broken, broken, READY, after_s=8.0)
        assert (rank, "ranks 0-1: NCCL error: unhandled system error" in reason) == (0, True)

    def test_a_start_that_goes_on(self) -> None:
        followed = Followed()
        followed.clock.now += ANSWERS_WITHIN_S - 1
        followed.gang.look(reports(DONE, DONE, replace(READY, step=ComputeStep.EXCHANGE)))
        followed.clock.now += 5
        followed.gang.look(reports(DONE, DONE, DONE))
        assert (followed.gang.is_over, followed.warnings) == (True, [])


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((40, 38, 3), ["slow links: from rank 1 to rank 2 3.0 GB/s; the fastest: 40.0 GB/s"]),
        ((40, 3), ["slow links: from rank 0 to rank 1 3.0 GB/s; the fastest: 40.0 GB/s"]),
        ((0.4, 0.5, 0.4), ["the nodes exchange 500 MB/s: training over several nodes will wait for the network"]),
        ((40, 30, 20), []),
    ],
)
def test_a_slow_link(rates: tuple[float, ...], told: list[str]) -> None:
    checks = [replace(DONE, received_gb_per_s=rate) for rate in rates]
    assert [warning.text for warning in slow_parts(reports(*checks), on_gpus=True)] == told


def test_a_slow_gpu() -> None:
    throttled = replace(DONE, tflops=(600.0, 610.0, 150.0, *(590.0,) * 5))
    [warning] = slow_parts(reports(DONE, throttled), on_gpus=True)
    assert warning.text == "slow GPUs: rank 1: GPU 2 150 TFLOP/s; usual here: 600"


@pytest.mark.parametrize(
    ("identity", "env", "modules", "why"),
    [
        (IDENTITY, {}, ("torch",), ""),
        (replace(IDENTITY, nodes=1), {}, ("torch",), "there is one node"),
        (replace(IDENTITY, nodes=65), {}, ("torch",), "more than 64 nodes take too long to connect"),
        (IDENTITY, {"CLOUDRL_GANG_CHECK": "OFF"}, ("torch",), "CLOUDRL_GANG_CHECK is off"),
        (IDENTITY, {}, ("numpy",), "torch is not among the modules that are checked"),
    ],
)
def test_where_it_is_off(identity: Identity, env: Mapping[str, str], modules: tuple[str, ...], why: str) -> None:
    assert gang_is_off(AgentOptions(import_check=modules), identity, env) == why
    on_one = AgentOptions(import_check=modules, is_one_machine=True)
    assert gang_is_off(on_one, identity, env) == (why if identity.nodes == 1 else "all nodes are on this machine")


def test_what_the_cluster_knows_of_its_network() -> None:
    state = NodeState(replace(reports(DONE)[0], warnings=(NodeWarning("RAM"),)))
    unused = NodeWarning("mlx5_0: NCCL will use TCP", "--setup", WarningKind.NETWORK)
    state.record_heartbeat(NodeReport(1, "10.0.0.2", check=replace(DONE, received_gb_per_s=3.0), warnings=(unused,)))
    hub = SimpleNamespace(files=SimpleNamespace(root="/f"), secrets=SimpleNamespace(possible=False))
    facts = cluster_facts(OPTIONS, IDENTITY, state, hub, env={}, ray_session=None)  # type: ignore[arg-type]
    assert (facts.unused_network, facts.link_gb_per_s) == ("mlx5_0: NCCL will use TCP", 3.0)


# -- one node -----------------------------------------------------------------------------------------------------


class OneNode:
    """A node with two GPUs, whose processes are files."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.state = Clock(), NodeState(NodeReport(0, "10.0.0.1"))
        options = replace(OPTIONS, run_dir=folder)
        self.watch = ComputeWatch(options, IDENTITY, self.state, gpus=2, clock=self.clock)
        child = SimpleNamespace(poll=lambda: None, tail=lambda: "the last line")
        self.watch.start(lambda *_: child, lambda *words: [*words], {}, print)
        self.folder = folder / "compute"

    def has_found(self, *found: Found) -> NodeCheck:
        for index, each in enumerate(found):
            (self.folder / f"{index}.json").write_text(json.dumps(to_json(each)))
        return self.look(1.0)

    def look(self, after_s: float) -> NodeCheck:
        self.clock.now += after_s
        self.watch.look()
        assert self.state.own.check is not None
        return self.state.own.check


def test_a_gpu_that_hangs_is_named_within_a_minute(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    node.has_found(Found(ComputeStep.READY, port=4000, versions={"CUDA": "13.0"}), Found())
    node.look(compute_watch.COMPUTES_WITHIN_S - 1)
    with pytest.raises(NodeFailed) as caught:
        node.look(2.0)
    assert caught.value.failure.reason == "GPU 1: no matrix product and no copy within 60 s (CUDA 13.0)"


def test_a_process_without_a_sign_of_life_is_lost(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    ready = Found(ComputeStep.READY, port=4000)
    assert node.has_found(ready, ready).lost == ()
    os.utime(node.folder / "1.json", (1.0, 1.0))
    assert node.look(1.0).lost == (1,)
    assert node.has_found(Found(ComputeStep.DONE, received_gb_per_s=20.0), Found(ComputeStep.DONE)) == NodeCheck(
        ComputeStep.DONE, 2, tflops=(0.0, 0.0), received_gb_per_s=20.0
    )


def test_the_list_of_members_reaches_the_processes_once_they_are_ready(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    ready = Found(ComputeStep.READY, port=4000)
    node.has_found(Found(), ready)
    node.has_found(ready, ready)
    assert not (node.folder / "rendezvous.json").exists()
    node.state.publish(rendezvous=Rendezvous())  # without this node: its processes would hold their GPUs for ever
    node.look(1.0)
    assert (node.folder / "rendezvous.json").exists()
    assert node.watch.is_over


def test_models_wait_for_it_for_some_seconds_at_most(tmp_path: Path) -> None:
    node = OneNode(tmp_path)
    node.clock.now += compute_watch.MODELS_WAIT_S + 0.1
    node.watch.hold_models()
    assert not node.watch.is_over
