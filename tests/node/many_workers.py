"""Hundreds of workers in one program: each speaks with a real rank 0 as `cloudrl.node.worker` does.

A connection for each heartbeat, the next one 0.2 s after the answer, 1 s once the cluster is READY. A worker has an
address of its own on the loopback interface, where it listens for rank 0's probes, and joins the stand-in for Ray.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from node_harness import IP, KEY, Nodes
from quiet_ports import free_ports

from cloudrl.protocol import routes
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import GpuUsage, HeartbeatReply, NodeReport, Replica, Usage
from cloudrl.protocol.tokens import derive
from cloudrl.protocol.wire import from_json, to_json

BEAT_S, BEAT_WHEN_READY_S = 0.2, 1.0
ANSWER_S = 10.0
_GPUS = tuple(GpuUsage(index, "NVIDIA H100 80GB HBM3", 97.0, 61234, 81559, 612.3, 61.0) for index in range(8))
_USAGE = Usage(1.0, 33.3, 10**12, 2 * 10**12, 10**12, 10**13, 1e8, 1e8, _GPUS)


def ip_of(rank: int) -> str:
    """Any address of 127.0.0.0/8 is this machine's."""
    return f"127.{10 + rank // 62500}.{rank // 250 % 250}.{rank % 250 + 1}"


@dataclass
class Worker:
    """One rank.

    Attributes:
        reply: the newest answer of rank 0.
        lost: beats that were not answered, by why.
        over: it ends; `asyncio.wait_for` of Python 3.11 forgets a cancellation that comes together with its result.
    """

    report: NodeReport
    reply: HeartbeatReply = field(default_factory=HeartbeatReply)
    beats: int = 0
    largest_bytes: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    over: bool = False
    task: asyncio.Task[None] | None = None
    listener: asyncio.Server | None = None


class Workers:
    """All ranks but 0 of a cluster of agents; use it as a context manager.

    Args:
        cluster: its rank 0 has been started.
    """

    def __init__(self, cluster: Nodes) -> None:
        self._cluster = cluster
        self._head, self._token = cluster[0].port, derive(KEY).agent
        [self._port] = free_ports(1)
        usage = replace(_USAGE, sampled_at=time.time())
        self.all = [
            Worker(NodeReport(rank, ip_of(rank), f"node-{rank}", self._port, Phase.RAY, gpus=1, cpus=8, usage=usage))
            for rank in range(1, cluster.count)
        ]

    async def __aenter__(self) -> Workers:
        for worker in self.all:
            worker.listener = await asyncio.start_server(_hang_up, worker.report.ip, self._port)
        self._began = [asyncio.create_task(self._live(worker)) for worker in self.all]
        for worker, task in zip(self.all, self._began, strict=True):
            worker.task = task
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill(self.all)

    async def kill(self, workers: Sequence[Worker]) -> None:
        """From now on no process listens at their addresses."""
        ending = [worker.task for worker in workers if worker.task is not None]
        for worker in workers:
            if worker.task is not None and worker.listener is not None:
                worker.over = True
                worker.listener.close()
                worker.task.cancel()
        await asyncio.wait(ending)

    async def ready(self, timeout_s: float) -> None:
        """Wait until all have been told that the cluster is."""
        deadline = time.monotonic() + timeout_s
        while not all(worker.reply.ready for worker in self.all):
            away = [worker.report.rank for worker in self.all if not worker.reply.ready]
            assert self._cluster[0].process.poll() is None, self._cluster.texts()
            assert time.monotonic() < deadline, f"{len(away)} of {len(self.all)} are not ready; lost: {self.lost}"
            await asyncio.sleep(0.05)

    @property
    def lost(self) -> Counter[str]:
        """Heartbeats that were not answered."""
        return sum((worker.lost for worker in self.all), Counter())

    async def _live(self, worker: Worker) -> None:
        _, writer = await self._beat_until_ray(worker)
        try:
            while not worker.over:
                await self._beat(worker)
        finally:
            writer.close()

    async def _beat_until_ray(self, worker: Worker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while worker.reply.session_name is None and not worker.over:
            await self._beat(worker)
        reader, writer = await asyncio.open_connection(IP, self._cluster.gcs_port)
        writer.write(b"join\n")
        assert await reader.readline() == b"welcome\n"
        seconds = dict.fromkeys(("setup", "preflight", "ray", "files", "fetch"), 12.345)
        worker.report = replace(
            worker.report, phase=Phase.BARRIER, ray_up=True, fetched=True, seconds=seconds,
            ray_version=worker.reply.ray_version, python_version=worker.reply.python_version or "",
        )  # fmt: skip
        return reader, writer

    async def _beat(self, worker: Worker) -> None:
        try:
            worker.reply = await asyncio.wait_for(self._answer(worker), ANSWER_S)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            worker.lost[f"{type(error).__name__}: {error}"] += 1
        else:
            worker.beats += 1
        if worker.reply.failure is not None:
            await asyncio.Event().wait()  # told, and gone
        if worker.reply.ready:
            worker.report = replace(worker.report, phase=Phase.READY)
        replicas = dict.fromkeys(worker.reply.announced, Replica(complete=True))
        worker.report = replace(worker.report, replicas=replicas)
        await asyncio.sleep(BEAT_WHEN_READY_S if worker.reply.ready else BEAT_S)

    async def _answer(self, worker: Worker) -> HeartbeatReply:
        body = json.dumps(to_json(worker.report)).encode()
        reader, writer = await asyncio.open_connection(IP, self._head, local_addr=(worker.report.ip, 0))
        try:
            writer.write("\r\n".join(self._request_head(len(body))).encode() + body)
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
        if not head.startswith(b"HTTP/1.1 200"):
            raise EOFError(head[:40].decode() or "the connection was cut")
        worker.largest_bytes = max(worker.largest_bytes, len(answer))
        return from_json(HeartbeatReply, json.loads(answer))

    def _request_head(self, length: int) -> Iterator[str]:
        yield f"{routes.HEARTBEAT.method} {routes.HEARTBEAT.template} HTTP/1.1"
        yield f"Host: {IP}:{self._head}"
        yield f"Authorization: Bearer {self._token}"
        yield f"Content-Length: {length}"
        yield "Connection: close\r\n\r\n"


async def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
