"""READY means that it computes: agents on nodes with GPUs, by a stand-in for torch."""

import json
import os

import pytest
from node_harness import Maker, Node, Nodes, Scenarios, make_image, until

from cloudrl.protocol.compute import ComputeStep

pytestmark = pytest.mark.agents

scenario = Scenarios()


def give_gpus(cluster: Nodes) -> None:
    """An image of its own, on machines with GPUs."""
    cluster.image = make_image(cluster.folder / "image")
    cluster.image.look_like_verls()


def environment(cluster: Nodes) -> dict[str, str]:
    path = f"{cluster.image.python.parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "CLOUDRL_PROVIDER": "slurm"}


def start(cluster: Nodes, *options: str, rank_1: dict[str, object] | None = None) -> Nodes:
    """Two GPUs a node; what goes wrong on rank 1."""
    give_gpus(cluster)
    for rank, faults in enumerate([{}, rank_1 or {}]):
        steering = cluster.folder / f"torch-{rank}"
        steering.write_text(json.dumps({"count": 2, **faults}))
        asked = ["--device=gpu", "--gpus-per-node=2", "--import-check=torch", *options]
        cluster.start_one(rank, *asked, FAKE_TORCH=str(steering), **environment(cluster))
    return cluster


def step_of(node: Node) -> ComputeStep | None:
    check = node.agent.status().nodes[0].check
    return check.step if check is not None else None


@scenario
def all_gpus_compute_and_the_nodes_together(nodes: Maker) -> None:
    cluster = start(nodes(2)).ready()
    status = cluster[0].agent.status()
    for node in status.nodes:
        assert node.check is not None
        assert (node.check.step, node.check.processes, len(node.check.tflops)) == (ComputeStep.DONE, 2, 2)
        assert node.check.received_gb_per_s
        assert node.gpu_software.items() >= {"CUDA": "13.0", "NCCL": "2.28.9"}.items()
    until(lambda: not [line for line in cluster.processes().values() if " imports " in line], "the check has ended")


@scenario
def a_driver_that_is_too_old_is_said_with_the_remedy(nodes: Maker) -> None:
    words = "The NVIDIA driver on your system is too old (found version 12020)."
    cluster = start(nodes(2), rank_1={"1": f"error: {words}"})
    reason = cluster.failed()
    assert reason.startswith(f"rank 1, preflight: GPU 1 does not compute: RuntimeError: {words} -> the driver of this")
    assert "CUDA 13.0, NCCL 2.28.9" in reason
    assert "in _compute\n" in cluster[1].failure().tail
    assert cluster[1].failure().signature == "preflight|gpus|driver on your system is too old"


@scenario
def a_gpu_that_computes_wrong(nodes: Maker) -> None:
    reason = start(nodes(2), rank_1={"0": "wrong"}).failed()
    assert reason.startswith("rank 1, preflight: GPU 0 does not compute: RuntimeError: a matrix product has a wrong")


@scenario
def a_container_that_lacks_a_gpu(nodes: Maker) -> None:
    reason = start(nodes(2), rank_1={"count": 1}).failed()
    assert "torch sees 1 GPUs of 2 -> the container does not have all GPUs" in reason


@scenario
def a_gpu_that_hangs_does_not_hold_up_its_agent(nodes: Maker) -> None:
    """Its process is a child of a child. It ends with the agent, as those of all scenarios must."""
    cluster = start(nodes(2), rank_1={"1": "hang"})
    until(lambda: cluster[1].phase() and step_of(cluster[1]) is ComputeStep.COMPUTE, "it hangs on a GPU")
    until(lambda: cluster[1].phase() == "barrier", "Ray is up, and the agent answers")
    assert step_of(cluster[1]) is ComputeStep.COMPUTE


@scenario
def a_check_that_is_switched_off(nodes: Maker) -> None:
    cluster = nodes(2)
    give_gpus(cluster)
    for rank in (0, 1):
        asked = ("--device=gpu", "--gpus-per-node=1", "--import-check=torch")
        cluster.start_one(rank, *asked, CLOUDRL_GANG_CHECK="off", **environment(cluster))
    assert "the nodes are not tried together: CLOUDRL_GANG_CHECK is off" in cluster.ready()[0].text()


test_scenario = scenario.test()
