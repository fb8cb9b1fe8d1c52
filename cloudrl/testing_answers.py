"""Requests and answers of the cluster in memory (`cloudrl.testing`), as Ray and the agents write them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cloudrl.protocol.exchange import Response
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import ClusterStatus, NodeReport
from cloudrl.protocol.wire import to_json
from cloudrl.verl.releases import RELEASE


class Call(NamedTuple):
    """A request that has arrived; its path is decoded, its body whole."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


def ray_node(ip: str, gpus: float, *, is_head: bool = False, state: str = "ALIVE") -> dict[str, Any]:
    """One row of what Ray says of its nodes."""
    resources = {f"node:{ip}": 1.0, "CPU": 4.0, "memory": 1e9, **({"GPU": float(gpus)} if gpus else {})}
    return {
        "node_id": node_id_of(ip), "node_ip": ip, "is_head_node": is_head, "state": state, "resources_total": resources,
    }  # fmt: skip


def respond(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Response:
    """An answer with a body in memory."""
    return Response(status, {"Content-Length": str(len(body)), **(headers or {})}, io.BytesIO(body))


def as_json(value: Any, status: int = 200) -> Response:
    """An answer in JSON."""
    return respond(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def cluster_status(name: str, nodes: int, gpus_per_node: int, device: str) -> dict[str, Any]:
    """What the agent says of a ready cluster, as JSON; the arguments are those of `FakeCluster`."""
    facts = ClusterFacts(
        name, "id-1", "local", nodes, gpu_nodes=nodes, gpus_per_node=gpus_per_node, device=device,
        ray_version="2.60.0", ray_session="session_x", verl_version=RELEASE.verl, rollouts=("vllm",),
        debuggers=(("debugpy", "pdb"),) * nodes, divides_nodes=True, is_one_machine=True, disks_stay=True,
        checkpoint_dir="/vol/checkpoints", models={"tiny-adder": "/vol/models/tiny-adder"},
        data={"addition": {"train": "/vol/data/train.parquet", "test": "/vol/data/test.parquet"}},
    )  # fmt: skip
    reported: Any = {"phase": Phase.READY, "gpus": facts.gpus_per_node, "debuggers": ("debugpy", "pdb")}
    reports = tuple(NodeReport(rank, ip_of(rank), **reported) for rank in range(nodes))
    status = ClusterStatus(facts, Phase.READY, started_at=1.0, ready_at=2.0, nodes=reports)
    return dict(json.loads(json.dumps(to_json(status))))


def ip_of(rank: int) -> str:
    """The address of a node."""
    return f"10.0.0.{rank + 1}"


def node_id_of(ip: str) -> str:
    """Ray's id of a node."""
    return "f4a49f9ed5b5d6f2" + ip


def as_text(status: int, text: str) -> Response:
    """An answer in plain text."""
    return respond(status, text.encode(), {"Content-Type": "text/plain; charset=utf-8"})


def no_job(submission_id: str) -> Response:
    """Ray's answer where it does not know a job."""
    return as_text(404, f"Job {submission_id} does not exist")
