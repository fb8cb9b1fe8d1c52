"""What clients send for their jobs, files and secrets, on its way to every node.

Rank 0 takes it and says in its answers to heartbeats what there is; every other rank pulls it and reports in its own
heartbeats how far it is. A client waits until all have it, and then submits its job.
"""

from __future__ import annotations

import http.client
import json
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, List, Sequence, Tuple

from cloudrl.node.job_secrets import JobSecrets, script
from cloudrl.node.manifest import Manifest
from cloudrl.protocol import routes, wire
from cloudrl.protocol.client import AgentRefused, is_network_error
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.report import Replica

if TYPE_CHECKING:
    from cloudrl.node.node_state import NodeState
    from cloudrl.node.uploads import Store
    from cloudrl.protocol.client import AgentClient

FILES = "user-files"
"""The folder below `data_dir`."""
COMPLETE = Replica(complete=True)
_RETRY_S = 2.0


class ReplicationHub:
    """What one node has of it. Thread-safe.

    Names of what is replicated: `files/ADDRESS`, and `secrets/JOB/NUMBER` with another number whenever the secrets of a
    job are sent again.
    """

    def __init__(self, state: NodeState, nodes: int, files: Store, job_secrets: JobSecrets) -> None:
        self.state, self.files, self.secrets = state, files, job_secrets
        self._nodes = nodes
        self._lock = threading.Lock()

    def begin(self, address: str, body: bytes) -> Dict[str, Any]:
        """A client announces a file or folder."""
        self._on_head()
        try:
            manifest = Manifest.from_json(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise ApiError(ErrorCode.BAD_REQUEST, f"not a manifest: {error}") from error
        if manifest.address != address:
            raise ApiError(
                ErrorCode.BAD_REQUEST, f"the manifest belongs to {manifest.address}, not to {address}"
            )
        return self._files_state(address, self.files.begin(manifest))

    def write(self, address: str, path: str, offset: int, count: int, source: BinaryIO) -> Dict[str, Any]:
        """A client sends bytes of an announced file."""
        self._on_head()
        self.files.write(address, path, offset, count, source)
        return self.files_state(address)

    def files_state(self, address: str) -> Dict[str, Any]:
        """Bytes of each part on rank 0, and how far every node is."""
        here = self.files.here(address)
        if here is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"nobody has announced {address}")
        return self._files_state(address, here)

    def _files_state(self, address: str, here: Dict[str, int]) -> Dict[str, Any]:
        if self.files.whole(address) is not None:
            self._announce(f"files/{address}")
        return {"files": here, "nodes": self._progress(f"files/{address}")}

    def manifest(self, address: str) -> Dict[str, Any]:
        """What another node asks for before it pulls."""
        manifest = self.files.whole(address)
        if manifest is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"{address} is not here as a whole")
        return manifest.to_json()

    def put_secrets(self, job: str, body: bytes) -> Dict[str, Any]:
        """A client leaves the secrets of a job that it is going to submit."""
        self._on_head()
        if not self.secrets.possible:
            raise ApiError(ErrorCode.UNSUPPORTED, f"{self.secrets.folder.parent} cannot be written on rank 0")
        try:
            text = script(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise ApiError(ErrorCode.BAD_REQUEST, f"not secrets: {error}") from error
        self.secrets.write(job, text)
        name = f"secrets/{job}/{secrets.token_hex(8)}"
        with self._lock:
            kept = [each for each in self._announced() if not each.startswith(f"secrets/{job}/")]
            self.state.publish(announced=(*kept, name))
        self.state.add_replica(name, COMPLETE)
        return {"name": name}

    def secrets_state(self, job: str) -> Dict[str, Any]:
        """How far every node is with the secrets of a job; never the secrets."""
        name = next((each for each in self._announced() if each.startswith(f"secrets/{job}/")), None)
        if name is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"there are no secrets for job {job}")
        return {"nodes": self._progress(name)}

    def secrets_of(self, job: str) -> str:
        """The secrets of a job, for another node."""
        text = self.secrets.read(job)
        if text is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"there are no secrets for job {job}")
        return text

    def _on_head(self) -> None:
        if self.state.own.rank != 0:
            raise ApiError(ErrorCode.CONFLICT, "files and secrets go to rank 0")

    def _announce(self, name: str) -> None:
        with self._lock:
            if name not in self._announced():
                self.state.publish(announced=(*self._announced(), name))
        self.state.add_replica(name, COMPLETE)

    def _announced(self) -> Tuple[str, ...]:
        return self.state.published.announced

    def _progress(self, name: str) -> Dict[str, Any]:
        known = {report.rank: report.replicas.get(name) for report in self.state.reports()}
        return {str(rank): wire.to_json(known.get(rank) or Replica()) for rank in range(self._nodes)}


class Replicator:
    """Brings to this node what rank 0 has announced; one thread, which starts with the first of it."""

    def __init__(
        self, hub: ReplicationHub, head: AgentClient, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._hub, self._head, self._sleep = hub, head, sleep
        self._wanted: List[str] = []
        self._changed = threading.Condition()
        self._started = False

    def want(self, names: Sequence[str]) -> None:
        """Have these; returns at once."""
        with self._changed:
            self._wanted = list(names)
            self._changed.notify()
            if names and not self._started:
                self._started = True
                threading.Thread(target=self._pull_for_ever, daemon=True).start()

    def pull(self, name: str) -> None:
        """Have one of them, and put in the state how that goes."""
        kind, _, rest = name.partition("/")
        try:
            if kind == "secrets":
                self._pull_secrets(rest.partition("/")[0])
            else:
                self._pull_files(name, rest)
        except (AgentRefused, http.client.HTTPException, ValueError):
            return  # tried again as long as it is wanted; who waits sees that nothing moves
        except (ApiError, OSError) as error:  # this node's own disk, unless it is the network
            if not (isinstance(error, OSError) and is_network_error(error)):
                self._hub.state.add_replica(name, Replica(error=str(error)))
        else:
            self._hub.state.add_replica(name, COMPLETE)

    def _pull_for_ever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._missing()))
                missing = self._missing()
            for name in missing:
                self.pull(name)
            if self._missing():
                self._sleep(_RETRY_S)

    def _missing(self) -> List[str]:
        here = self._hub.state.own.replicas
        return [name for name in self._wanted if here.get(name) != COMPLETE]

    def _pull_secrets(self, job: str) -> None:
        with self._head.open(self._head.request(routes.GIVE_SECRETS, job=job)) as answer:
            self._hub.secrets.write(job, answer.stream.read().decode())

    def _pull_files(self, name: str, address: str) -> None:
        store = self._hub.files
        if store.whole(address) is not None:  # also where the folder is rank 0's own
            return
        with self._head.open(self._head.request(routes.MANIFEST, address=address)) as answer:
            manifest = Manifest.from_json(json.loads(answer.stream.read()))
        here = store.begin(manifest)
        for part in manifest.parts:
            if here[part.path] < part.size_bytes:
                self._pull_part(name, manifest, part.path, here[part.path])

    def _pull_part(self, name: str, manifest: Manifest, path: str, offset: int) -> None:
        size = manifest.part(path).size_bytes
        request = self._head.request(
            routes.GIVE_FILE, address=manifest.address, path=path, headers={"Range": f"bytes={offset}-"}
        )
        with self._head.open(request) as answer:
            source = _Counted(answer.stream, lambda: self._tell(name, manifest))
            self._hub.files.write(manifest.address, path, offset, size - offset, source)  # type: ignore[arg-type]

    def _tell(self, name: str, manifest: Manifest) -> None:
        here = self._hub.files.here(manifest.address) or {}
        self._hub.state.add_replica(name, Replica(size_bytes=sum(here.values())))


class _Counted:
    """A stream that says now and then that it was read from."""

    def __init__(self, source: BinaryIO, tell: Callable[[], None]) -> None:
        self._source, self._tell = source, tell
        self._reads = 0

    def read(self, count: int) -> bytes:
        self._reads += 1
        if self._reads % 32 == 0:
            self._tell()
        return self._source.read(count)
