"""What the head says of its cluster, by the reports of its nodes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cloudrl.node.facts import cluster_facts
from cloudrl.node.identity import Identity
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import GpuUsage, NodeReport, Usage
from cloudrl.protocol.services import Service


def facts(*reports: NodeReport, nodes: int = 3) -> ClusterFacts:
    state = NodeState(reports[0])
    for report in reports[1:]:
        state.record_heartbeat(report)
    state.publish(data={"addition": {"train.parquet": "a digest"}})
    secrets = SimpleNamespace(possible=False)
    hub: Any = SimpleNamespace(files=SimpleNamespace(root=Path("/data/user-files")), secrets=secrets)
    options = AgentOptions(data_dir=Path("/data"), services=(Service(8000, "serve"),))
    identity = Identity("dstack", "lab", "id-1", 0, nodes, "10.0.0.1", "10.0.0.1", None)
    return cluster_facts(options, identity, state, hub, env={"B": "1", "A": "1", "EMPTY": ""}, ray_session="session_x")


def report(rank: int, gpus: int, cpus: int, **more: Any) -> NodeReport:
    return NodeReport(rank, f"10.0.0.{rank + 1}", gpus=gpus, cpus=cpus, **more)


def test_nodes_without_gpus_are_no_place_for_verl() -> None:
    """A head on a CPU machine and unequal workers: node groups of dstack's."""
    found = facts(report(0, 0, 4), report(1, 8, 64), report(2, 4, 48))
    assert (found.nodes, found.gpu_nodes, found.gpus_per_node, found.cpus_per_node) == (3, 2, 4, 48)


def test_where_no_node_has_gpus_none_is_left_out() -> None:
    assert (facts(report(0, 0, 4)).gpu_nodes, facts(report(0, 0, 4)).gpus_per_node) == (3, 0)


def test_a_rank_that_was_not_heard_of_counts_as_the_others() -> None:
    found = facts(report(0, 8, 0, debuggers=("pdb",)), report(2, 8, 64, debuggers=("debugpy", "pdb")))
    assert (found.gpu_nodes, found.cpus_per_node) == (3, 64)
    assert found.debuggers == (("pdb",), (), ("debugpy", "pdb"))


def test_the_head_alone_starts_drivers() -> None:
    assert facts(report(0, 8, 64, places_controllers=True), report(1, 8, 64)).places_controllers
    assert facts(report(0, 8, 64, places_training=True), report(1, 8, 64)).places_training
    assert not facts(report(0, 8, 64), report(1, 8, 64, places_controllers=True)).places_controllers


def test_all_nodes_ask_trainers_as_a_trainer_may_be_on_any() -> None:
    asking = report(0, 8, 64, asks_trainers=True)
    assert facts(asking, report(1, 8, 64, asks_trainers=True), nodes=2).asks_trainers
    assert not facts(asking, report(1, 8, 64), nodes=2).asks_trainers
    assert not facts(asking, nodes=2).asks_trainers, "a node was not heard of"


def test_the_smallest_gpu_memory_and_disk_count() -> None:
    def usage(memory: int, disk: int, *gpus: int) -> Usage:
        cards = tuple(GpuUsage(at, "NVIDIA H100 80GB HBM3", memory_total_mib=mib) for at, mib in enumerate(gpus))
        return Usage(0.0, memory_total_bytes=memory, disk_used_bytes=10, disk_total_bytes=disk, gpus=cards)

    head = report(0, 0, 4, usage=usage(1, 11))  # without GPUs verl does not run on it
    found = facts(head, report(1, 2, 8, usage=usage(900, 100, 81559, 81000)), report(2, 2, 8, usage=usage(800, 200)))
    assert (found.gpu, found.gpu_memory_mib) == ("NVIDIA H100 80GB HBM3", 81000)
    assert (found.memory_bytes, found.disk_bytes) == (800, 90)
    kept = facts(report(0, 8, 64, usage=Usage(0.0, disk_used_bytes=10, disk_total_bytes=100, disk_kept_bytes=5)))
    assert kept.disk_bytes == 85
    full = facts(report(0, 8, 64, usage=Usage(0.0, disk_used_bytes=98, disk_total_bytes=100, disk_kept_bytes=5)))
    assert full.disk_bytes == 1
    unknown = facts(report(0, 8, 64), nodes=1)
    assert (unknown.gpu, unknown.gpu_memory_mib, unknown.memory_bytes, unknown.disk_bytes) == ("", 0, 0, 0)


def test_a_model_has_a_folder_if_that_is_the_same_everywhere() -> None:
    models = {"same": "/models/same", "other": "/models/other"}
    found = facts(report(0, 8, 64, models=models), report(1, 8, 64, models={**models, "other": "/hub"}), nodes=2)
    assert found.models == {"same": "/models/same", "other": "other"}


def test_what_jobs_read_and_ask() -> None:
    found = facts(report(0, 8, 64), nodes=1)
    assert found.data == {"addition": {"train": "/data/addition/train.parquet"}}
    assert (found.services, found.variables, found.ray_session) == (("8000",), ("A", "B"), "session_x")
    assert (found.files_dir, found.secrets_dir) == ("/data/user-files", None)
