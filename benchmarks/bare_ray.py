"""Ray as one types it, two nodes on this machine: `ray start`, ended by process id.

Both nodes get what the agents of `cloudrl up --on local` give them (CPUs, object store, folders of their own,
free ports), so that Ray has the same work. Token authentication, which cloudrl switches on, is off here.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from cloudrl.child_process import Child
from cloudrl.node import ray as ray_node
from cloudrl.node.identity import address_towards
from cloudrl.providers.local import processes
from cloudrl.providers.local.plan import OBJECT_STORE_BYTES
from cloudrl.render.agent_options import CPU_SLOTS


class BareRay:
    """One cluster. Every process of it carries the mark of `cloudrl.providers.local.processes`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.id = folder, secrets.token_hex(8)
        self.ip = address_towards("192.0.2.1")
        self.gcs_port, self.dashboard_port, self._client_port = _free_ports(3)
        self.url = f"http://127.0.0.1:{self.dashboard_port}"
        self.env = {**_without_ray(os.environ), processes.MARK: self.id, "RAY_AUTH_MODE": "disabled"}
        self._dashboard = ray_node.Dashboard(self.dashboard_port, token="")
        self._children: list[Child] = []
        folder.mkdir(parents=True)

    @property
    def head(self) -> list[str]:
        """`ray start --head`."""
        words = [f"--port={self.gcs_port}", "--dashboard-host=127.0.0.1"]
        words += [f"--dashboard-port={self.dashboard_port}", f"--ray-client-server-port={self._client_port}"]
        return self._start("0", "--head", *words)

    @property
    def worker(self) -> list[str]:
        """`ray start --address`."""
        return self._start("1", f"--address={self.ip}:{self.gcs_port}")

    def run(self, command: Sequence[str], log: str) -> Child:
        """Start a process of this cluster; it dies with this one."""
        child = Child(command, log=self.folder / log, env=self.env)
        self._children.append(child)
        return child

    def answers(self) -> bool:
        """Whether Ray's control store has opened its port."""
        return ray_node.probe(self.ip, self.gcs_port, 1.0) == "open"

    def is_ready(self) -> bool:
        """Whether Ray counts two nodes and takes jobs: what the agent calls READY, asked with its own code."""
        return self._dashboard.alive_nodes() == 2 and self._dashboard.takes_jobs()

    def end(self) -> None:
        """End all of it, and wait until it is gone."""
        for child in reversed(self._children):
            child.end()
        processes.end(self.id)

    def _start(self, node: str, *words: str) -> list[str]:
        command = [ray_node.ray_command(), "start", *words, f"--node-ip-address={self.ip}", "--block"]
        # by default each node's dashboard agent takes 52365, and without it the second one stays without HTTP
        command += ["--node-manager-port=0", "--object-manager-port=0", "--dashboard-agent-listen-port=0"]
        command += ["--min-worker-port=0", "--max-worker-port=0", "--num-gpus=1", f"--num-cpus={CPU_SLOTS}"]
        command += [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"]
        return [*command, f"--temp-dir={self.folder / node}"]


def _without_ray(env: os._Environ[str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if not key.startswith(("RAY_", "CLOUDRL_"))}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
