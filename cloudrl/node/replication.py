"""What clients send for their jobs, files and secrets, on its way to every node.

Rank 0 takes it and tells each rank, in its answers to heartbeats, what that rank has not got yet; the rank pulls it and
reports in its own heartbeats how far it is. A client waits until all have it, and then submits its job.

What a rank has is neither announced to it nor reported again, so heartbeats do not grow with the jobs of a cluster.
"""

import http.client
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Sequence, Set, Tuple

from cloudrl.foreign import parse_json
from cloudrl.node.job_secrets import MAX_BYTES, JobSecrets
from cloudrl.node.node_state import NodeState
from cloudrl.node.uploads import Store
from cloudrl.protocol import routes
from cloudrl.protocol.client import AgentClient, AgentRefused
from cloudrl.protocol.exchange import is_network_error
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.manifest import Manifest, Part
from cloudrl.protocol.report import Replica

COMPLETE = Replica(complete=True)
_RETRY_S = 2.0
_AT_ONCE = 256
"""So many names are in a heartbeat; a sweep may submit thousands of jobs in a moment."""
_INTEREST_S = 600.0
"""A client that waits asks several times a second; what was not asked for since then is announced no more."""
_REPORT_EVERY_BYTES = 32 << 20
_SCRIPT_BYTES = 8 * MAX_BYTES
"""Of the secrets of a job, quoted for a shell."""


@dataclass
class _Transfer:
    """What some ranks have not got yet.

    Attributes:
        asked_at: when a client was last interested.
        ranks: rank -> how far it is there, of those that have said so.
    """

    asked_at: float
    ranks: Dict[int, Replica] = field(default_factory=dict)


class ReplicationHub:
    """What one node has of it, and on rank 0 what the others have. Thread-safe.

    Names of what is replicated: `files/ADDRESS`, and `secrets/JOB/NUMBER` with another number whenever the secrets of a
    job are sent again.
    """

    def __init__(
        self,
        state: NodeState,
        nodes: int,
        files: Store,
        job_secrets: JobSecrets,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state, self.files, self.secrets = state, files, job_secrets
        self._nodes, self._clock = nodes, clock
        self._lock = threading.Lock()
        self._coming: Dict[str, _Transfer] = {}
        self._everywhere: Set[str] = set()
        self._secrets_name: Dict[str, str] = {}

    def begin(self, address: str, manifest: Manifest) -> Dict[str, Any]:
        """A client announces a file or folder."""
        self._on_head()
        if manifest.address != address:
            reason = f"the manifest belongs to {manifest.address}, not to {address}"
            raise ApiError(ErrorCode.BAD_REQUEST, reason)
        self.files.begin(manifest)
        return self.files_state(address)

    def write(self, address: str, path: str, offset: int, count: int, source: BinaryIO) -> Dict[str, Any]:
        """A client sends bytes of an announced file."""
        self._on_head()
        self.files.write(address, path, offset, count, source)
        return self.files_state(address)

    def files_state(self, address: str) -> Dict[str, Any]:
        """Bytes of each part on rank 0, and how far every node is."""
        here = self.files.here(address)
        if here is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"{address} was not announced")
        name = f"files/{address}"
        if self.files.manifest(address) is not None:
            self._announce(name)
        return {"files": here, "nodes": self._progress(name)}

    def manifest(self, address: str) -> Dict[str, Any]:
        """What another node asks for before it pulls."""
        manifest = self.files.manifest(address)
        if manifest is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"{address} is not complete here")
        return manifest.to_json()

    def put_secrets(self, job: str, script: str) -> Dict[str, Any]:
        """A client leaves the secrets of a job that it is going to submit."""
        self._on_head()
        if not self.secrets.possible:
            raise ApiError(ErrorCode.UNSUPPORTED, f"{self.secrets.folder.parent} cannot be written on rank 0")
        self.secrets.write(job, script)
        name = f"secrets/{job}/{secrets.token_hex(8)}"
        with self._lock:
            before = self._secrets_name.get(job, "")
            self._secrets_name[job] = name
            self._coming.pop(before, None)
            self._everywhere.discard(before)
        self._announce(name)
        return {"name": name}

    def secrets_state(self, job: str) -> Dict[str, Any]:
        """How far every node is with the secrets of a job; never the secrets."""
        name = self._secrets_name.get(job)
        if name is None:
            raise ApiError(ErrorCode.NOT_FOUND, f"there are no secrets for job {job}")
        self._announce(name)
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

    def hear(self, rank: int, replicas: Mapping[str, Replica]) -> None:
        """A rank has said how far it is with what it was told of."""
        with self._lock:
            for name, replica in replicas.items():
                if name in self._coming:
                    self._coming[name].ranks[rank] = replica
                    self._settle(name)

    def missing_on(self, rank: int) -> Tuple[str, ...]:
        """What a rank has not got yet, as far as a client is interested in it; of many the first, without an error."""
        with self._lock:
            since = self._clock() - _INTEREST_S
            for name in [name for name, transfer in self._coming.items() if transfer.asked_at < since]:
                del self._coming[name]
            here = {name: transfer.ranks.get(rank, Replica()) for name, transfer in self._coming.items()}
        missing = [name for name, replica in here.items() if not replica.complete]
        return tuple(sorted(missing, key=lambda name: bool(here[name].error))[:_AT_ONCE])

    def _announce(self, name: str) -> None:
        """Rank 0 has it, and a client wants it on every node."""
        with self._lock:
            if name not in self._everywhere:
                transfer = self._coming.setdefault(name, _Transfer(0.0, {0: COMPLETE}))
                transfer.asked_at = self._clock()
                self._settle(name)

    def _settle(self, name: str) -> None:
        """Remember only the name of what is on every node."""
        if all(self._coming[name].ranks.get(rank) == COMPLETE for rank in range(self._nodes)):
            del self._coming[name]
            self._everywhere.add(name)

    def _progress(self, name: str) -> Dict[str, Any]:
        with self._lock:
            everywhere, transfer = name in self._everywhere, self._coming.get(name)
            ranks = {} if transfer is None else dict(transfer.ranks)
        return {str(rank): COMPLETE if everywhere else ranks.get(rank, Replica()) for rank in range(self._nodes)}


class Replicator:
    """Brings to this node what rank 0 has announced; in a thread of its own."""

    def __init__(self, hub: ReplicationHub, head: AgentClient) -> None:
        self._hub, self._head = hub, head
        self._wanted: List[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._pull_for_ever, daemon=True).start()

    def want(self, names: Sequence[str]) -> None:
        """Have these, and report no others; returns at once."""
        with self._changed:
            self._wanted = list(names)
            self._hub.state.keep("replicas", names)
            self._changed.notify()

    def pull(self, name: str) -> None:
        """Have one of them, and put in the state how that goes."""
        kind, address_or_job, *_ = name.split("/")
        try:
            if kind == "secrets":
                with self._head.open(self._head.request(routes.GIVE_SECRETS, job=address_or_job)) as answer:
                    self._hub.secrets.write(address_or_job, answer.content(_SCRIPT_BYTES).decode())
            else:
                pull_files(self._hub, self._head, name, address_or_job)
        except (AgentRefused, http.client.HTTPException, ValueError):
            return  # tried again as long as it is wanted; who waits sees that nothing moves
        except (ApiError, OSError) as error:  # this node's own disk, unless it is the network
            if not (isinstance(error, OSError) and is_network_error(error)):
                self._hub.state.add("replicas", name, Replica(error=str(error)))
        else:
            self._hub.state.add("replicas", name, COMPLETE)

    def _pull_for_ever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._missing()))
                missing = self._missing()
            for name in missing:
                self.pull(name)
            if self._missing():
                time.sleep(_RETRY_S)

    def _missing(self) -> List[str]:
        here = self._hub.state.own.replicas
        return [name for name in self._wanted if here.get(name) != COMPLETE]


def pull_files(hub: ReplicationHub, source: AgentClient, name: str, address: str) -> None:
    """Have files that another node has, as far as they are not here.

    Args:
        hub: of this node.
        source: the agent of a node that has all of them.
        name: of the transfer, in this node's report.
        address: of the files.

    Raises:
        ApiError, OSError, http.client.HTTPException, ValueError: some of it is not here.
    """
    store = hub.files
    if store.manifest(address) is not None:  # also where the folder is the source's own
        return
    with source.open(source.request(routes.MANIFEST, address=address)) as answer:
        manifest = Manifest.from_json(parse_json(answer.content()))
    here = store.begin(manifest)
    for part in manifest.parts:
        if here[part.path] < part.size_bytes:
            _pull_part(hub, source, name, address, part, here[part.path])
    if store.manifest(address) is None:
        raise ConnectionResetError(f"it broke off within {address}")


def _pull_part(hub: ReplicationHub, source: AgentClient, name: str, address: str, part: Part, offset: int) -> None:
    """Copy the rest of a file, or less when the source breaks off, and report now and then how much has come."""
    store, headers = hub.files, {"Range": f"bytes={offset}-"}
    request = source.request(routes.GIVE_FILE, address=address, path=part.path, headers=headers)
    with source.open(request) as answer:
        while offset < part.size_bytes:
            count = min(_REPORT_EVERY_BYTES, part.size_bytes - offset)
            store.write(address, part.path, offset, count, answer.stream)
            offset += count
            if offset < part.size_bytes:
                here = store.here(address) or {}
                hub.state.add("replicas", name, Replica(size_bytes=sum(here.values())))
                if here.get(part.path, 0) < offset:
                    return
