"""Evidence of a job on a cluster that is up: Ray's state, and the ends of the logs of its processes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cloudrl.errors import CloudrlError
from cloudrl.jobs.causes.evidence import Evidence, LogFile, Row
from cloudrl.transport import Connection, RayClient
from cloudrl.transport.log_stream import split_lines
from cloudrl.transport.ray_job import RayJob

_LAST_LINES = 1000
_MOST_LOGS = 60
"""Files that are read; those of processes that died or failed come first."""


def gather(connection: Connection, job: RayJob, driver_log: Iterable[str]) -> Evidence:
    """What there is of a job now; whatever cannot be had is left out, and nothing is raised.

    Args:
        connection: to its cluster.
        job: that has ended.
        driver_log: the end of its log.
    """
    ray = connection.ray()
    nodes = _rows(ray, "nodes")
    of_job = {"job_id": job.job_id} if job.job_id else None
    tasks, actors = (_rows(ray, what, **of_job) if of_job else [] for what in ("tasks", "actors"))
    workers = [worker for worker in _rows(ray, "workers") if not worker.get("is_alive")] if of_job else []
    ranks = ranks_of(nodes, _ranks_by_ip(connection))
    driver = LogFile(job.log_name, ranks.get(job.driver_node_id or ""), tuple(driver_log)[-_LAST_LINES:])
    return Evidence(
        tasks=tasks,
        workers=workers,
        actors=actors,
        nodes=nodes,
        ranks=ranks,
        logs=[driver, *_logs(ray, nodes, ranks, _processes(tasks, workers, actors))],
        driver_node=job.driver_node_id,
        ended_ms=job.end_time * 1000 if job.end_time else None,
        message=job.message,
    )


def ranks_of(nodes: Sequence[Row], by_ip: Mapping[str, int]) -> dict[str, int]:
    """Ids of nodes -> ranks: by what the agents say, or the head first and the others as they came.

    Nodes of one machine have one address, and a plain Ray has no agents.
    """
    ips = [str(node.get("node_ip")) for node in nodes]
    if by_ip and len(set(ips)) == len(ips):
        return {str(node.get("node_id")): by_ip[ip] for node, ip in zip(nodes, ips, strict=True) if ip in by_ip}
    in_order = sorted(nodes, key=lambda node: (not node.get("is_head_node"), node.get("start_time_ms") or 0))
    return {str(node.get("node_id")): rank for rank, node in enumerate(in_order)}


def _ranks_by_ip(connection: Connection) -> dict[str, int]:
    agent = connection.agent()
    try:
        return {node.ip: node.rank for node in agent.status().nodes} if agent is not None else {}
    except CloudrlError:
        return {}


def _rows(ray: RayClient, what: str, **equal: str) -> list[Row]:
    try:
        return ray.state(what, **equal)
    except CloudrlError:
        return []


def _processes(tasks: Sequence[Row], workers: Sequence[Row], actors: Sequence[Row]) -> list[tuple[str, int]]:
    """Node and id of each process of the job, those that died or failed first."""
    dead = [(row.get("node_id"), row.get("pid")) for row in workers if "INTENDED" not in str(row.get("exit_type"))]
    failed = [(row.get("node_id"), row.get("worker_pid")) for row in tasks if row.get("state") == "FAILED"]
    known = {(row.get("node_id"), row.get("worker_pid")) for row in tasks}
    own = [(row.get("node_id"), row.get("pid")) for row in actors]
    mine = [place for place in dead if place in known or place in own]
    return [(str(node), int(pid)) for node, pid in dict.fromkeys([*mine, *failed, *own]) if node and pid]


def _logs(
    ray: RayClient, nodes: Sequence[Row], ranks: Mapping[str, int], processes: Sequence[tuple[str, int]]
) -> Iterator[LogFile]:
    alive = [str(node.get("node_id")) for node in nodes if node.get("state") == "ALIVE"]
    names = {node: _names(ray, node) for node in alive}
    wanted = [
        (node, name)
        for node, pid in processes
        for name in names.get(node, ())
        if name.endswith((f"-{pid}.err", f"-{pid}.out"))
    ]
    for node, name in wanted[:_MOST_LOGS]:
        try:
            with ray.open_log(node, name, follow=False, last_lines=_LAST_LINES) as response:
                lines = tuple(split_lines([response.stream.read()]))
        except CloudrlError:
            continue
        yield LogFile(name, ranks.get(node), lines)


def _names(ray: RayClient, node_id: str) -> tuple[str, ...]:
    try:
        return ray.log_names(node_id, "worker-*")
    except CloudrlError:
        return ()
