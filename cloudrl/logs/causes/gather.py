"""Evidence of a job on a cluster that is up: Ray's state, and the ends of the logs of its processes."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cloudrl.errors import CloudrlError
from cloudrl.logs.causes.evidence import LAST_LINES, Evidence, LogTail, Row, last_lines
from cloudrl.protocol.ray_state import RayState, kinds_of
from cloudrl.protocol.report import NodeReport
from cloudrl.transport import Connection, RayClient
from cloudrl.transport.log_stream import split_lines
from cloudrl.transport.ray_job import RayJob

_MOST_LOGS = 60
"""Files that are read; those of processes that died or failed come first."""
_MOST_BYTES = 32 << 20
"""Of the last lines of one log, which may be of any length."""


def gather(connection: Connection, job: RayJob, driver_log: Iterable[str]) -> Evidence:
    """What there is of a job now; whatever cannot be had is left out, and nothing is raised.

    Args:
        connection: to its cluster.
        job: that has ended.
        driver_log: the end of its log.
    """
    ray = connection.ray()
    state = _state(ray, job)
    nodes = _nodes(connection)
    ranks = ranks_of(state.nodes, {node.ip: node.rank for node in nodes})
    driver = LogTail(job.log_name, ranks.get(job.driver_node_id or ""), last_lines(driver_log))
    kills = {node.rank: node.oom_kills for node in nodes if node.oom_kills is not None}
    return Evidence(state, ranks, (driver, *_logs(ray, state, ranks)), oom_kills=kills)


def ranks_of(nodes: Sequence[Row], by_ip: Mapping[str, int]) -> dict[str, int]:
    """Ids of nodes -> ranks: by what the agents say, or the head first and the others as they came.

    Nodes of one machine have one address, and a plain Ray has no agents.
    """
    ips = [str(node.get("node_ip")) for node in nodes]
    if by_ip and len(set(ips)) == len(ips):
        return {str(node.get("node_id")): by_ip[ip] for node, ip in zip(nodes, ips, strict=True) if ip in by_ip}
    in_order = sorted(nodes, key=lambda node: (not node.get("is_head_node"), node.get("start_time_ms") or 0))
    return {str(node.get("node_id")): rank for rank, node in enumerate(in_order)}


def _nodes(connection: Connection) -> Sequence[NodeReport]:
    """What the agents say of their nodes; nothing without a cluster, or if rank 0 does not answer."""
    agent = connection.agent()
    try:
        return agent.status().nodes if agent is not None else ()
    except CloudrlError:
        return ()


def _state(ray: RayClient, job: RayJob) -> RayState:
    rows = {kind: _rows(ray, kind, job.job_id) for kind in kinds_of(job.job_id)}
    ended_ms = job.end_time * 1000 if job.end_time else None
    fields = {**asdict(job), "end_time": ended_ms, "runtime_env": None}
    return RayState(saved_at=time.time(), job=fields, **rows)


def _rows(ray: RayClient, kind: str, job_id: str | None) -> tuple[Row, ...]:
    try:
        return ray.state(kind, job_id)
    except CloudrlError:
        return ()


def processes(state: RayState) -> list[tuple[str, int]]:
    """Node and id of each process of the job, those that died or failed first."""
    own = [(row.get("node_id"), row.get("pid")) for row in state.actors]
    failed = [(row.get("node_id"), row.get("worker_pid")) for row in state.tasks]
    dead = [
        (row.get("node_id"), row.get("pid")) for row in state.workers if "INTENDED" not in str(row.get("exit_type"))
    ]
    first = [place for place in dead if place in {*own, *failed}]
    return [(str(node), int(pid)) for node, pid in dict.fromkeys([*first, *failed, *own]) if node and pid]


def _logs(ray: RayClient, state: RayState, ranks: Mapping[str, int]) -> Iterator[LogTail]:
    wanted = processes(state)
    names = {node: _names(ray, node) for node in dict.fromkeys(node for node, _ in wanted)}
    files = [
        (node, name) for node, pid in wanted for name in names[node] if name.endswith((f"-{pid}.err", f"-{pid}.out"))
    ]
    for node, name in files[:_MOST_LOGS]:
        try:
            with ray.open_log(node, name, follow=False, last_lines=LAST_LINES) as response:
                yield LogTail(name, ranks.get(node), last_lines(split_lines(_start_of(response.stream))))
        except CloudrlError:
            continue


def _start_of(stream: Any) -> Iterator[bytes]:
    """As much of a stream as is worth the time."""
    size = 0
    for chunk in iter(stream.read1, b""):
        yield chunk
        size += len(chunk)
        if size > _MOST_BYTES:
            return


def _names(ray: RayClient, node_id: str) -> tuple[str, ...]:
    try:
        return ray.log_names(node_id, "worker-*")
    except CloudrlError:
        return ()
