"""Ray on this node: command lines, and whether its head answers. Pure but for two probes."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple
from urllib.parse import quote

from cloudrl.child_process import Child
from cloudrl.foreign import Malformed, parse_json
from cloudrl.node.identity import Identity
from cloudrl.protocol.exchange import Request, send
from cloudrl.protocol.options import AgentOptions, Ports
from cloudrl.protocol.ray_state import path_of, rows_of

TEMP_DIR = Path("/tmp/ray")  # noqa: S108  Ray's own default

_ALIVE_ACTORS = "/api/v0/actors?filter_keys=state&filter_predicates=%3D&filter_values=ALIVE&detail=true&limit=1000"

_COUNTED = ("CPU", "GPU", "memory")


def ray_command() -> str:
    """The `ray` program beside this Python, or else the one on PATH."""
    beside = Path(sys.executable).parent / "ray"
    return str(beside) if beside.exists() else shutil.which("ray") or "ray"


def start_command(options: AgentOptions, identity: Identity, *, gpus: int, cpus: int) -> List[str]:
    """`ray start` for this node.

    `--block` keeps it in the foreground, where its own children carry PR_SET_PDEATHSIG (ray/_private/node.py,
    kernel_fate_share): one process of ours stands for all of Ray on this node.
    """
    ports = options.ports
    command = [ray_command(), "start", f"--node-ip-address={identity.ip}"]
    if identity.is_head:
        # the dashboard runs jobs for whoever reaches it (CVE-2023-48022): loopback only
        command += ["--head", f"--port={ports.gcs}", "--dashboard-host=127.0.0.1"]
        command += [f"--dashboard-port={ports.dashboard}", f"--ray-client-server-port={ports.client}"]
    else:
        command += [f"--address={identity.head_ip}:{ports.gcs}"]
    command += [f"--node-manager-port={ports.node_manager}", f"--object-manager-port={ports.object_manager}"]
    command += [f"--dashboard-agent-listen-port={ports.dashboard_agent}"]
    command += [f"--min-worker-port={ports.worker[0]}", f"--max-worker-port={ports.worker[1]}"]
    command += [f"--num-gpus={gpus}"]
    # Ray counts those of the machine where a job may use fewer without having a control group as its root (2.60,
    # _private/utils.py: get_num_cpus)
    command += [f"--num-cpus={cpus}"]
    if options.object_store_bytes is not None:
        command += [f"--object-store-memory={options.object_store_bytes}"]
    if options.ray_temp_dir is not None:
        command += [f"--temp-dir={options.ray_temp_dir}"]
    return [*command, "--disable-usage-stats", "--block"]


def has_started(ray: Child) -> bool:
    """Whether `ray start` says that this node belongs to the cluster (Ray 2.60, scripts/scripts.py: start).

    On the head the dashboard may answer before, and the start may still fail: after 30 s in which the node is not in
    Ray's table (_private/node.py).
    """
    return "Ray runtime started." in ray.tail(100)


def taken_ports(options: AgentOptions, identity: Identity) -> List[str]:
    """Those of the ports that Ray is to listen at which somebody else has, each with its use.

    Ray itself would try for half a minute and then say something else (2.60: "timed out during startup").
    """
    ports, ip = options.ports, identity.ip
    wanted = [("node manager", ip, ports.node_manager), ("object manager", ip, ports.object_manager)]
    wanted += [("dashboard agent", ip, ports.dashboard_agent)]
    if identity.is_head:
        wanted += [("control store", ip, ports.gcs), ("client server", ip, ports.client)]
        wanted += [("dashboard", "127.0.0.1", ports.dashboard)]
    return [f"{port} (Ray's {use})" for use, at, port in wanted if port and probe(at, port, 1.0) == "open"]


def unreachable_ports(ip: str, ports: Ports) -> List[str]:
    """Those ports between raylets that cannot be reached on another node, each with its use.

    Control store and dashboard would be up without them, and no task would ever run there.
    """
    wanted = (("node manager", ports.node_manager), ("object manager", ports.object_manager))
    return [f"{ip}:{port} (Ray's {use})" for use, port in wanted if port and probe(ip, port, 1.0) != "open"]


def probe(ip: str, port: int, timeout_s: float = 2.0) -> str:
    """What is at this address: "open"; "refused", the host is up and no process listens; or "silent"."""
    try:
        socket.create_connection((ip, port), timeout_s).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "open"


class Dashboard:
    """The questions that the agent asks Ray's dashboard on the head."""

    def __init__(self, port: int, token: str) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._headers = {"Authorization": f"Bearer {token}", "Connection": "close"}

    def session_name(self) -> Optional[str]:
        """Name of Ray's session folder, None while the dashboard does not answer."""
        version = self._get("/api/version")
        return None if version is None else str(version["session_name"])

    def alive_nodes(self) -> int:
        """How many nodes Ray counts as alive; 0 while the dashboard does not answer."""
        return len(self._alive())

    def takes_jobs(self) -> bool:
        """Whether a job would be accepted.

        Jobs are started by the dashboard agent of the head node, a process that may come up seconds after all
        else; until then a submit fails with "No available agent" (Ray 2.60, dashboard/modules/job/job_head.py).
        Listing logs asks the same agent and changes nothing.
        """
        head = next((node["nodeId"] for node in self._alive() if node.get("isHeadNode")), None)
        return head is not None and self._get(f"/api/v0/logs?node_id={head}&glob=raylet.out") is not None

    def jobs(self) -> Optional[List[Any]]:
        """All jobs that Ray knows (`/api/jobs/`), None while the dashboard does not answer."""
        answer = self._get("/api/jobs/")
        return answer if isinstance(answer, list) else None

    def job(self, submission_id: str) -> Optional[Any]:
        """What Ray knows of one job, None while the dashboard does not answer."""
        return self._get(f"/api/jobs/{quote(submission_id, safe='')}")

    def submit(self, body: Mapping[str, Any]) -> Optional[str]:
        """Submit a job; returns why Ray refuses it, "" if it does not, and None where no answer has come."""
        headers = {**self._headers, "Content-Type": "application/json"}
        request = Request("POST", f"{self._url}/api/jobs/", headers, json.dumps(body).encode(), 20.0, 5.0)
        try:
            with send(request) as answer:
                text = answer.content().decode("utf-8", "replace")
                return "" if answer.status < 300 else f"{answer.status}: {text.strip()}"
        except (OSError, Malformed, http.client.HTTPException):
            return None

    def stop(self, submission_id: str) -> bool:
        """Have Ray end a job; False where no answer has come, or it does not know the job."""
        path = f"{self._url}/api/jobs/{quote(submission_id, safe='')}/stop"
        return self._status(Request("POST", path, self._headers, b"", 20.0, 5.0)) == 200

    def put_package(self, name: str, path: Path) -> None:
        """Give Ray a package of jobs, unless it has it (Ray 2.60, dashboard/modules/job/job_head.py: upload_package).

        Raises:
            OSError: it does not take it, or does not answer.
        """
        url = f"{self._url}/api/packages/gcs/{quote(name, safe='')}"
        if self._status(Request("GET", url, self._headers, None, 20.0, 5.0)) == 200:
            return
        with path.open("rb") as file:
            headers = {**self._headers, "Content-Length": str(path.stat().st_size)}
            pieces = iter(lambda: file.read(1 << 20), b"")
            status = self._status(Request("PUT", url, headers, pieces, 600.0, 5.0))
        if status != 200:
            raise OSError(f"Ray does not take the package {name}: {status or 'no answer'}")

    def _status(self, request: Request) -> Optional[int]:
        """Of the answer; None without one."""
        try:
            with send(request) as answer:
                answer.content()
                return int(answer.status)
        except (OSError, Malformed, http.client.HTTPException):
            return None

    def rows(self, kind: str, job_id: Optional[str]) -> Optional[Tuple[Any, ...]]:
        """What Ray's state API says, see `cloudrl.protocol.ray_state`; None while the dashboard does not answer."""
        return rows_of(self._get(path_of(kind, job_id)))

    def placement_groups(self) -> Optional[Tuple[Any, ...]]:
        """Rows of all placement groups, at most 1000; None while the dashboard does not answer."""
        return rows_of(self._get("/api/v0/placement_groups?detail=true&limit=1000"))

    def used_resources(self) -> Dict[str, Dict[str, float]]:
        """Id of each node -> what is in use of its CPUs, GPUs and memory; nothing while the dashboard does not answer.

        Ray 2.60, dashboard/modules/reporter/reporter_head.py: `/api/cluster_status`, which writes other names anew.
        """
        answer = self._get("/api/cluster_status")
        try:
            nodes = answer["data"]["clusterStatus"]["loadMetricsReport"]["usageByNode"].items()
            return {
                str(node): {name: float(usage[name][0]) for name in _COUNTED if name in usage} for node, usage in nodes
            }
        except (TypeError, KeyError, ValueError, AttributeError, IndexError):
            return {}

    def actor_ends(self, ids: Iterable[str]) -> Dict[str, float]:
        """Id of each of these actors that has ended -> when, in seconds since the epoch by the clock of rank 0.

        Ray 2.60, dashboard/modules/node/node_head.py: `/logical/actors`; the state API does not tell.
        """
        answer = self._get(f"/logical/actors?ids={quote(','.join(ids))}&nocache=1")
        try:
            ends = {str(actor): float(row["endTime"]) / 1000 for actor, row in answer["data"]["actors"].items()}
        except (TypeError, KeyError, ValueError, AttributeError):
            return {}
        return {actor: ended_at for actor, ended_at in ends.items() if ended_at > 0}

    def alive_actors(self) -> Optional[List[Any]]:
        """Actors that live, at most 1000 of them; None while the dashboard does not answer.

        Ray 2.60, dashboard/modules/state/state_head.py. It asks its control store for those in this state only:
        of all that ever were, it would leave out some.
        """
        answer = self._get(_ALIVE_ACTORS)
        try:
            actors = answer["data"]["result"]["result"]
        except (TypeError, KeyError):
            return None
        return actors if isinstance(actors, list) else None

    def summary(self) -> List[Any]:
        """What Ray knows of each node, how busy it is included; nothing while the dashboard does not answer."""
        answer = self._get("/nodes?view=summary")
        return list(answer["data"]["summary"]) if answer else []

    def _alive(self) -> List[Any]:
        nodes = [node["raylet"] for node in self.summary()]
        return [node for node in nodes if node.get("state") == "ALIVE"]

    def _get(self, path: str) -> Any:
        try:
            with send(Request("GET", self._url + path, self._headers, None, 5.0, 5.0)) as answer:
                return parse_json(answer.content()) if answer.status < 300 else None
        except (OSError, ValueError, http.client.HTTPException):  # not there yet, still starting, or cut off
            return None
