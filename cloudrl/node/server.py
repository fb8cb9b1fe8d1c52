"""The agent's HTTP: bound to loopback and to the node's cluster address, a bearer token on every call.

The calls are `cloudrl.protocol.routes`; one of the handler's methods is named like each.
"""

import contextlib
import dataclasses
import functools
import json
import os
import threading
from pathlib import Path
from typing import BinaryIO, Iterator, List, Optional, Set, cast
from urllib.parse import parse_qsl, urlsplit

from cloudrl.listening import heads
from cloudrl.listening.acceptor import Limits
from cloudrl.listening.http_server import HttpServer
from cloudrl.node import job_secrets
from cloudrl.node.agent import Agent
from cloudrl.node.archiver import Archiver
from cloudrl.node.durable_jobs import DurableJobs
from cloudrl.node.http_handler import BYTES, HttpHandler, check_request, refusal
from cloudrl.node.job_journal import JobJournal
from cloudrl.node.mirror_stores import FAILURES
from cloudrl.node.ranges import Span, number, parse_ranges
from cloudrl.node.relay import Relays
from cloudrl.node.shard_worker_client import ShardUnreadable, ShardWorkerFailed
from cloudrl.node.usage_history import HOUR, UsageHistory
from cloudrl.protocol import routes
from cloudrl.protocol.client import LISTING_TIMEOUT_S
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.failures import ApiError, ErrorCode, Failure, FailureKind
from cloudrl.protocol.limits import CASTS
from cloudrl.protocol.manifest import Manifest
from cloudrl.protocol.mirrors import UploadOrder
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.step_copies import ClearOrder, CopyOrder
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.saves.below import Refused, open_below
from cloudrl.saves.removal import set_aside

_MAX_MANIFEST_BYTES = 8 << 20
_LOG_CHUNK_BYTES = 1 << 20
UNAUTHENTICATED_S = 5.0
"""Seconds until a connection must have shown the token, however busily it sends."""


class AgentServer:
    """One listener for each address, one thread for each connection; it answers from the start.

    Args:
        agent: what is shown.
        archiver: what is kept of its logs, likewise.
        history: how busy all nodes were; only on rank 0.
        durable_jobs: those that were left with the agents, likewise.
        unauthenticated_s: seconds in which a connection has to show the token.
        rank_timeout_s: how long another rank may take to answer a call that is passed on to it.
    """

    def __init__(
        self,
        addresses: List[str],
        port: int,
        agent: Agent,
        archiver: Archiver,
        *,
        history: Optional[UsageHistory] = None,
        durable_jobs: Optional[DurableJobs] = None,
        unauthenticated_s: float = UNAUTHENTICATED_S,
        rank_timeout_s: float = LISTING_TIMEOUT_S,
    ) -> None:
        members = {
            "agent": agent, "archiver": archiver, "history": history, "rank_timeout_s": rank_timeout_s,
            "relays": Relays(), "durable_jobs": durable_jobs,
        }  # fmt: skip
        handler = type("Handler", (_Handler,), members)
        refusals = heads.refusals(
            lambda head: check_request(head.get, head.target, agent.tokens.agent),
            lambda status, reason: json.dumps(to_json(refusal(status, reason))),
        )
        limits = Limits.for_nodes(agent.identity.nodes, head_s=unauthenticated_s)
        self._servers: List[HttpServer] = []
        try:
            for address in dict.fromkeys(addresses):
                self._servers.append(HttpServer((address, port), handler, refusals, limits))
        except OSError:
            for server in self._servers:
                server.server_close()
            raise
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        """The TCP port, of interest where 0 asked for any."""
        return int(self._servers[0].server_address[1])

    def close(self) -> None:
        """Stop listening. Calls under way are cut."""
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Handler(HttpHandler):
    archiver: Archiver
    history: Optional[UsageHistory]
    durable_jobs: Optional[DurableJobs]

    def _status(self) -> None:
        self._json(self.agent.status())

    def _usage(self) -> None:
        if self.history is None:
            raise ApiError(ErrorCode.UNSUPPORTED, "only rank 0 knows of all nodes")
        self._json(self.history.answer(self._query().get("span", HOUR)))

    def _heartbeat(self) -> None:
        report = self._json_body(functools.partial(from_json, NodeReport), "a report")
        identity, state, replication = self.agent.identity, self.agent.state, self.agent.replication
        if 0 < report.rank < identity.nodes:
            replication.hear(report.rank, report.replicas)
            state.record_heartbeat(dataclasses.replace(report, replicas={}))
        else:
            reason = f"rank {report.rank} does not belong to this cluster of {identity.nodes} nodes"
            if not identity.is_head or report.rank < 1 or state.published.ready:
                raise ApiError(ErrorCode.BAD_REQUEST, reason)
            # every attempt would have it: the start ends now, and not when those that are missing are too late
            reason += "; start all nodes with the same number of nodes"
            state.refuse(report, Failure(FailureKind.PREFLIGHT, report.rank, reason, subject="rank"))
        missing = replication.missing_on(report.rank)
        self._json(dataclasses.replace(state.heartbeat_reply(report.rank), announced=missing))

    def _transfer(self) -> None:
        """A client says that it is sending something to Ray, which this agent does not see."""
        self._json({"noted": True})

    def _job_log(self, job: str) -> None:
        folder, offset = self.agent.ray_logs(), self._offset()
        if folder is None:
            raise ApiError(ErrorCode.NOT_FOUND, "Ray is not up")
        try:
            with (folder / f"job-driver-{job}.log").open("rb") as file:
                size = file.seek(0, 2)
                file.seek(min(offset, size))
                body = file.read(_LOG_CHUNK_BYTES)
        except FileNotFoundError:
            raise ApiError(ErrorCode.NOT_FOUND, "there is no such log yet") from None
        # `size` may have grown since: the client asks again from where this body ends
        self._bytes(body, {**BYTES, routes.SIZE_HEADER: str(max(size, min(offset, size) + len(body)))})

    def _archive(self) -> None:
        query = self._query()
        self._json(self.archiver.listing(query.get("run"), own="own" in query))

    def _archive_piece(self, path: str) -> None:
        self._file(self.archiver.root, path)

    # -- jobs that outlive their machines -------------------------------------------------------------------

    def _submit_job(self, job: str) -> None:
        asked = self._job_body(job)
        self._json(self._supervised.accept(asked))

    def _jobs(self) -> None:
        self._json({"jobs": self._supervised.supervisor.jobs})

    def _stop_job(self, job: str) -> None:
        with _disk_errors(ErrorCode.NO_SPACE):
            is_known = self._supervised.supervisor.stop_job(job)
        if not is_known:
            raise ApiError(ErrorCode.NOT_FOUND, f"{job} was not left with the cluster's agents")
        self._json({"stopped": True})

    def _journal(self) -> None:
        self._json({"jobs": JobJournal(self.agent.options.checkpoints).read()})

    def _record_job(self, job: str) -> None:
        record = self._job_body(job)
        with _disk_errors(ErrorCode.NO_SPACE):
            JobJournal(self.agent.options.checkpoints).write(record)
        self._json({"recorded": True})

    def _set_aside(self, path: str) -> None:
        with _disk_errors(ErrorCode.CONFLICT), contextlib.suppress(FileNotFoundError):  # asked once more
            set_aside(self.agent.options.checkpoints, path)
        self._json({"aside": path})

    def _copy_step(self, path: str) -> None:
        order = self._json_body(functools.partial(from_json, CopyOrder), "an order for copies", _MAX_MANIFEST_BYTES)
        if order.folder != path:
            raise ApiError(ErrorCode.BAD_REQUEST, f"the order is for {order.folder!r}, and the call says {path!r}")
        self._json(self.agent.step_copier.take(order))

    def _clear_copies(self, path: str) -> None:
        order = self._json_body(functools.partial(from_json, ClearOrder), "copies to clear", _MAX_MANIFEST_BYTES)
        if order.folder != path:
            raise ApiError(ErrorCode.BAD_REQUEST, f"the order is for {order.folder!r}, and the call says {path!r}")
        with _disk_errors(ErrorCode.CONFLICT):
            self._json({"freed_bytes": self.agent.step_copier.clear(order)})

    def _upload_step(self, path: str) -> None:
        order = self._json_body(functools.partial(from_json, UploadOrder), "an upload", _MAX_MANIFEST_BYTES)
        if order.folder != path:
            raise ApiError(ErrorCode.BAD_REQUEST, f"the order is for {order.folder!r}, and the call says {path!r}")
        self._json(self.agent.mirror_copier.take(order))

    def _check_mirror(self) -> None:
        asked = self._json_body(dict, "a mirror")
        writes = self.agent.identity.rank == 0
        self._json(self.agent.mirror_copier.check(str(asked.get("mirror")), str(asked.get("token")), writes=writes))

    def _jobs_in_mirror(self) -> None:
        asked = self._json_body(dict, "a mirror")
        try:
            self._json({"jobs": self._supervised.mirrors.jobs.records(str(asked.get("mirror")))})
        except FAILURES as error:
            raise ApiError(ErrorCode.CONFLICT, f"the mirror cannot be read: {error}") from error

    def _mirrored(self) -> None:
        self._json({"steps": self.durable_jobs.mirrors.steps if self.durable_jobs is not None else ()})

    def _job_body(self, job: str) -> DurableJob:
        record = self._json_body(functools.partial(from_json, DurableJob), "a job")
        if record.job_id != job:
            raise ApiError(ErrorCode.BAD_REQUEST, f"the job is {record.job_id!r}, and the call says {job!r}")
        return record

    @property
    def _supervised(self) -> DurableJobs:
        if self.durable_jobs is None:
            raise ApiError(ErrorCode.CONFLICT, "jobs are left with rank 0")
        if not self.durable_jobs.supervisor.is_ready:
            raise ApiError(ErrorCode.CONFLICT, "the cluster is not ready yet")
        return self.durable_jobs

    # -- debuggers ------------------------------------------------------------------------------------------

    def _stops(self) -> None:
        self._json({"stops": self.agent.stops.listing()})

    def _look(self) -> None:
        self._json({"processes": self.agent.job_looks.look(self.agent.state.reports())})

    def _relay(self, port: str) -> None:
        self._check_upgrade()
        with self.relays.slot(), self.agent.stops.connect(int(port)) as debugger:
            self._upgrade(debugger)

    # -- data, files and secrets ----------------------------------------------------------------------------

    def _data_file(self, name: str, file: str) -> None:
        self._file(self.agent.options.data_dir, f"{name}/{file}")

    def _announce_files(self, address: str) -> None:
        manifest = self._json_body(Manifest.from_json, "a manifest", _MAX_MANIFEST_BYTES)
        self._json(self.agent.replication.begin(address, manifest))

    def _take_file(self, address: str, path: str) -> None:
        count = self._content_length()
        if count is None:
            raise ApiError(ErrorCode.LENGTH_REQUIRED, "a file comes with its Content-Length")
        source = cast("BinaryIO", self.rfile)
        self._json(self.agent.replication.write(address, path, self._offset(), count, source))

    def _files_state(self, address: str) -> None:
        self._json(self.agent.replication.files_state(address))

    def _manifest(self, address: str) -> None:
        self._json(self.agent.replication.manifest(address))

    def _give_file(self, address: str, path: str) -> None:
        self.agent.replication.manifest(address)  # what is still arriving is not shown
        self._file(self.agent.replication.files.root / address, path)

    def _take_secrets(self, job: str) -> None:
        script = self._json_body(job_secrets.script, "the secrets of a job", job_secrets.MAX_BYTES)
        self._json(self.agent.replication.put_secrets(job, script))

    def _secrets_state(self, job: str) -> None:
        self._json(self.agent.replication.secrets_state(job))

    def _give_secrets(self, job: str) -> None:
        self._bytes(self.agent.replication.secrets_of(job).encode(), {"Content-Type": "text/plain"})

    def _file(self, root: Path, path: str) -> None:
        with _disk_errors(ErrorCode.CONFLICT):
            file = open_below(root, path)
        with file:
            self._send(file, self._span(file))

    # -- checkpoints: a file that cannot be read is UNREADABLE, as far as that is known before the bytes begin ----

    def _inventory(self) -> None:
        inventory = self.agent.checkpoint_store.inventory(without=self._without())
        self._json({"rank": self.agent.state.own.rank, **inventory})

    def _without(self) -> Optional[Set[int]]:
        """Of `once` the ranks; None where each folder is to be listed."""
        query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if "once" not in query:
            return None
        ranks = [number(text) for text in query["once"].split(",") if text]
        if None in ranks:
            raise ApiError(ErrorCode.BAD_REQUEST, f"once is a list of ranks, not {query['once'][:40]!r}")
        return {rank for rank in ranks if rank is not None}

    def _remove_checkpoint(self, root: str, path: str) -> None:
        with _disk_errors(ErrorCode.CONFLICT):  # EACCES, EROFS, EBUSY: the volume does not let this node
            self.agent.checkpoint_store.remove(root, path)
        self._json({"removed": path})

    def _checkpoint_ranges(self, root: str, path: str) -> None:
        ranges = self._json_body(parse_ranges, "a list of ranges")
        with self._open_checkpoint(root, path) as file, _disk_errors(ErrorCode.UNREADABLE):
            pieces = [os.pread(file.fileno(), length, offset) for offset, length in ranges]
            size = os.fstat(file.fileno()).st_size
        if [len(piece) for piece in pieces] != [length for _, length in ranges]:
            raise ApiError(ErrorCode.BAD_RANGE, f"the file has {size} bytes, and a range is outside it")
        self._bytes(b"".join(pieces))

    def _checkpoint_file(self, root: str, path: str) -> None:
        query = self._query()
        with self._open_checkpoint(root, path) as file:
            with _disk_errors(ErrorCode.UNREADABLE):
                span = self._span(file)
            if "cast" in query:
                self._cast(file, span, query["cast"])
            elif "crc32" in query:
                if "sync" in query:
                    with _disk_errors(ErrorCode.UNREADABLE):
                        os.fsync(file.fileno())
                self._crc32(file, span, number(query["crc32"]))
            else:
                with _disk_errors(ErrorCode.UNREADABLE):
                    os.pread(file.fileno(), 1, span.first)  # after the head nothing can be said any more
                self._send(file, span)

    def _open_checkpoint(self, root: str, path: str) -> BinaryIO:
        with _disk_errors(ErrorCode.CONFLICT):
            return self.agent.checkpoint_store.open(root, path)

    def _crc32(self, file: BinaryIO, span: Span, start: Optional[int]) -> None:
        if start is None:
            raise ApiError(ErrorCode.BAD_REQUEST, "crc32 is the sum of what stands before the range, or 0")
        child = self.agent.checkpoint_store.child
        with _disk_errors(ErrorCode.UNREADABLE):
            sums = child.crc32(file, offset=span.first, count=span.length, start=start)
        self._json(sums)

    def _cast(self, file: BinaryIO, span: Span, types: str) -> None:
        stored, _, wanted = types.partition(",")
        width, child = CASTS.get((stored, wanted)), self.agent.checkpoint_store.child
        if width is None or span.first + span.length > span.size or span.length % width:
            reason = f"{types[:40]!r} is not a cast of whole values that can be done here"
            raise ApiError(ErrorCode.BAD_REQUEST, reason)
        if not child.can_cast:
            reason = "this node's Python has no numpy; read the values as they are"
            raise ApiError(ErrorCode.UNSUPPORTED, reason)
        with _disk_errors(ErrorCode.UNREADABLE):  # as long as it can be said
            child.crc32(file, offset=span.first, count=1)
        count = span.length // width
        self._head(200, {**BYTES, routes.CAST_HEADER: types, "Content-Length": str(count * 2)})
        try:
            sent = child.cast(file, self.connection, offset=span.first, count=count, wanted=wanted)
        except ShardWorkerFailed:
            sent = 0  # whoever asked has gone, or asks again and gets another child
        if sent != count * 2:
            self.close_connection = True


@contextlib.contextmanager
def _disk_errors(code: ErrorCode) -> Iterator[None]:
    """Refuse with `code` what the disk does not do; for a client UNREADABLE is final, CONFLICT may pass."""
    try:
        yield
    except Refused:
        reason = "only regular files and steps below the folder are shown"
        raise ApiError(ErrorCode.FORBIDDEN, reason) from None
    except FileNotFoundError:
        raise ApiError(ErrorCode.NOT_FOUND, "there is no such file") from None
    except ShardUnreadable as error:
        raise ApiError(ErrorCode.UNREADABLE, str(error)) from error
    except ShardWorkerFailed as error:
        raise ApiError(ErrorCode.WORKER_FAILED, str(error)) from error
    except OSError as error:
        raise ApiError(code, error.strerror or str(error)) from error
