"""The agent's HTTP server on real sockets, without an agent behind it; and a client that sends what it is told."""

import contextlib
import http.client
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from patience import SLOWER

from cloudrl.child_process import Child
from cloudrl.node.archiver import Archiver
from cloudrl.node.checkpoint_store import CheckpointStore
from cloudrl.node.identity import Identity
from cloudrl.node.job_looks import JobLooks
from cloudrl.node.job_secrets import JobSecrets
from cloudrl.node.mirror_copier import MirrorCopier
from cloudrl.node.node_state import NodeState
from cloudrl.node.replication import ReplicationHub
from cloudrl.node.server import UNAUTHENTICATED_S, AgentServer
from cloudrl.node.shard_worker_client import ShardWorkerClient
from cloudrl.node.step_copier import StepCopier
from cloudrl.node.stops import Stops
from cloudrl.node.uploads import Store
from cloudrl.node.usage_history import UsageHistory
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import ClusterStatus, NodeReport
from cloudrl.protocol.tokens import Tokens

TOKEN = "right-token"
SECRET = b"the secret outside"
SESSION_LOGS = "session_1/logs"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """One node's server, with folders below `folder`."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        *,
        nodes: int = 3,
        token: str = TOKEN,
        unauthenticated_s: float = UNAUTHENTICATED_S,
        rank_timeout_s: float = 10.0,
        checkpoint_store: type[CheckpointStore] = CheckpointStore,
    ) -> None:
        self.folder, self.rank, self.transfers = folder, rank, 0
        for name in ("checkpoints", "data", SESSION_LOGS):
            (folder / name).mkdir(parents=True)
        self.no_folder = folder / "a-file"
        self.no_folder.write_bytes(b"where a folder is looked for")
        self.ray_logs: Path | None = folder / SESSION_LOGS
        self.status: ClusterStatus | None = None
        self.child: Child | None = None
        self.state = NodeState(NodeReport(rank=rank, ip="127.0.0.1", hostname=f"node-{rank}", agent_port=0))
        self.replication = ReplicationHub(self.state, nodes, Store(folder / "files"), JobSecrets(folder / "secrets"))
        self.checkpoint_store = checkpoint_store(
            self.checkpoints, folder / "ray", run_id="run", rank=rank, child=ShardWorkerClient(self._shard_child)
        )
        identity = Identity("local", "lab", "id", rank, nodes, "127.0.0.1", "127.0.0.1", None)
        stops = Stops(folder / "run", rank)
        self.agent: Any = SimpleNamespace(
            state=self.state,
            identity=identity,
            tokens=Tokens(token, "", ""),
            options=AgentOptions(data_dir=self.data),
            status=lambda: (
                self.status or ClusterStatus(ClusterFacts("lab", "id", "local", nodes), self.state.own.phase)
            ),
            ray_logs=lambda: self.ray_logs,
            checkpoint_store=self.checkpoint_store,
            step_copier=StepCopier(self.checkpoints, lambda at: AgentClient(f"http://{at}", token)),
            mirror_copier=MirrorCopier(self.checkpoints, {}),
            replication=self.replication,
            transfer=self._transfer,
            stops=stops,
            job_looks=JobLooks(folder / "run", identity, stops, lambda: [token]),
        )
        self.history = (
            UsageHistory(self.state.reports, folder / "usage.jsonl", lambda: (None, None)) if rank == 0 else None
        )
        times: dict[str, Any] = {"unauthenticated_s": unauthenticated_s, "rank_timeout_s": rank_timeout_s}
        self.archiver = Archiver(
            self.checkpoints, "run", {"rank": rank}, own_logs=folder / "run", ray_logs=lambda: self.ray_logs,
            secrets=lambda: [token], dashboard=None, say=lambda _: None,
        )  # fmt: skip
        self.server = AgentServer(
            ["127.0.0.1"], 0, cast("Any", self.agent), self.archiver, history=self.history, **times
        )
        self.port = self.server.port
        self.state.update(agent_port=self.port)

    @contextlib.contextmanager
    def _transfer(self) -> Iterator[None]:
        self.transfers += 1
        yield

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers=headers)

    def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = TOKEN,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """One request; the path goes over the wire as it is given, without any normalisation."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            if token is not None:
                connection.putheader("Authorization", f"Bearer {token}")
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def _shard_child(self, descriptor: int) -> Child:
        command = [sys.executable, "-m", "cloudrl.node", "shards", f"--fd={descriptor}"]
        self.child = Child(command, log=self.folder / "shards.log", env=os.environ, pass_fds=(descriptor,), bound=False)
        return self.child

    def close(self) -> None:
        self.server.close()
        self.checkpoint_store.close()
        if self.child is not None:
            assert self.child.wait(10 * SLOWER) == 0, self.child.tail()
