"""A local cluster for commands to find: its folder on disk, and a stand-in cluster behind its ports.

Its agent is a process that only waits; it counts as one by its command line and its CLOUDRL_RUN_ID.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from fake_cluster import FakeCluster

from cloudrl.protocol.tokens import derive
from cloudrl.providers.local import processes
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.local.state import LocalState, boot_id
from cloudrl.providers.model import CheckpointRetention

KEY = b"0" * 64


def rent_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disks of local clusters hold goes with them, as that of rented machines does."""
    really = LocalProvider.status
    lost = CheckpointRetention(destroyed=True, location="on the machines' own disks")
    monkeypatch.setattr(LocalProvider, "status", lambda self, name: replace(really(self, name), retention=lost))


class FakeLocal:
    """A READY cluster `name`; CLOUDRL_HOME must be set to a folder of the test."""

    def __init__(self, name: str, *, facts: Mapping[str, Any] | None = None) -> None:
        tokens = derive(KEY)
        self.cluster = FakeCluster(tokens.ray, agent_token=tokens.agent)
        self.cluster.status["facts"].update({"name": name, "id": f"run-{name}-{os.getpid()}", **(facts or {})})
        for rank, row in enumerate(self.cluster.status["nodes"]):
            row.update(rank=rank, phase="ready", detail="", seen_s_ago=0.1, failure=None, seconds={"ray": 4.0})
        self.state = self._state(name)
        self.state.write()
        self.state.key_file.write_bytes(KEY)
        self._agent = self._start_agent()

    def _state(self, name: str) -> LocalState:
        port = urlsplit(self.cluster.url).port
        agent_port = urlsplit(self.cluster.agent_url).port
        assert port is not None
        assert agent_port is not None
        return LocalState(
            name=name, id=self.cluster.status["facts"]["id"], nodes=2,
            ip="127.0.0.1", gcs_port=1, dashboard_port=port, client_port=2, agent_ports=(agent_port, 3),
            ray_temp_dir=f"{os.environ['CLOUDRL_HOME']}/ray-{name}", boot_id=boot_id(),
        )  # fmt: skip

    def _start_agent(self) -> subprocess.Popen[bytes]:
        program = self.state.folder / "cloudrl-node.pyz"
        program.write_text("import sys\nsys.stdin.read()\n")
        environment = {**os.environ, "CLOUDRL_RUN_ID": self.state.id}
        agent = subprocess.Popen([sys.executable, program, "run"], stdin=subprocess.PIPE, env=environment)
        processes.await_environment(agent.pid)
        return agent

    def ends_with(self, outcome: str) -> None:
        """It ends, and rank 0 leaves this outcome."""
        self._stop()
        self.state.node_dir(0).mkdir()
        (self.state.node_dir(0) / "outcome.json").write_text(outcome)

    def __enter__(self) -> FakeLocal:
        return self

    def __exit__(self, *_: object) -> None:
        """As `down` ends it."""
        self._stop()
        replace(self.state, is_down=True).write()

    def _stop(self) -> None:
        self._agent.kill()
        self._agent.communicate()
        self.cluster.down()
