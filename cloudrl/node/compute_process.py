"""One GPU computes, alone and then with those of all nodes. Forked from the child that has imported torch.

Each process writes what it has found into a file of its own, which the agent reads; a process that hangs inside a
driver can then be named.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from cloudrl.child_process import die_with
from cloudrl.node.failure import describe
from cloudrl.private_files import write_file
from cloudrl.protocol.compute import ComputeStep, Member, Rendezvous
from cloudrl.protocol.wire import from_json, to_json

ASK, RENDEZVOUS = "ask.json", "rendezvous.json"
BEAT_S = 0.5
_POLL_S = 0.05
_CONNECT_S = 5.0
_GANG_S = 40.0
_LINGER_S = 1.0
"""Until the others have read what this process has sent last."""
_SIDE = {"gpu": 8192, "cpu": 512}
"""Of the square matrices; 8192 is exact in bf16, and takes an H100 two milliseconds."""
_TRIES = 5
_PROBE_BYTES = 1 << 20
_SLOW_PROBE_S = 0.1
"""For as many bytes: 10 MB/s. 64 times as many would take seconds."""
_LINK_BYTES = {"gpu": 64 << 20, "cpu": 16 << 20}
_AT_ONCE = 32


@dataclass(frozen=True)
class Ask:
    """What a node is asked to check.

    Attributes:
        rank: of this node.
        ip: of this node in the cluster's network.
        device: "gpu" or "cpu".
        processes: how many there are, one a GPU.
        is_gang: whether the nodes are tried together.
    """

    rank: int
    ip: str
    device: str
    processes: int
    is_gang: bool


@dataclass(frozen=True)
class Found:
    """What one process has found so far; fields as in `NodeCheck`."""

    step: ComputeStep = ComputeStep.COMPUTE
    error: str = ""
    port: int = 0
    tflops: float = 0.0
    received_gb_per_s: Optional[float] = None
    unreachable: Tuple[int, ...] = ()
    versions: Dict[str, str] = field(default_factory=dict)


def fork_all(folder: Path) -> List[int]:
    """Start the processes, once torch is imported and before anything has touched a GPU; returns their ids.

    Args:
        folder: has what is asked for, and gets what is found.
    """
    ask = from_json(Ask, json.loads((folder / ASK).read_text()))
    sys.stdout.flush()
    tie, pids = die_with(os.getpid()), []
    for index in range(ask.processes):
        if (pid := os.fork()) == 0:
            try:
                tie()
                _Process(ask, folder, index).run()
            finally:
                os._exit(0)  # nothing of the parent's is to be cleaned up here
        pids.append(pid)
    return pids


class _Process:
    def __init__(self, ask: Ask, folder: Path, index: int) -> None:
        self._ask, self._folder, self._index = ask, folder, index
        self._file = folder / f"{index}.json"
        self._found = Found()
        self._torch: Any = sys.modules["torch"]
        self._listener: Optional[socket.socket] = None

    def run(self) -> None:
        """All steps; what goes wrong is in the file."""
        self._tell(versions=_versions(self._torch) if self._ask.device == "gpu" else {})
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            self._compute()
            if self._ask.is_gang:
                self._meet(self._await_rendezvous())
        except Exception as error:  # noqa: BLE001  torch raises what it likes, and the agent has to learn of it
            traceback.print_exc()  # first: a failure has the last lines of this log
            self._tell(error=describe(error))
        time.sleep(_LINGER_S if self._ask.is_gang else 0)

    def _tell(self, **changes: Any) -> None:
        self._found = replace(self._found, **changes)
        write_file(self._file, json.dumps(to_json(self._found)))

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with contextlib.suppress(OSError):
                os.utime(self._file)

    # -- alone --------------------------------------------------------------------------------------------------

    def _compute(self) -> None:
        torch, on_gpu = self._torch, self._ask.device == "gpu"
        if on_gpu:
            torch.cuda.init()  # raises in the driver's own words, where the count is 0 without a reason
            seen = torch.cuda.device_count()
            if seen < self._ask.processes:
                raise RuntimeError(f"torch sees {seen} GPUs of {self._ask.processes}")
            torch.cuda.set_device(self._index)
        tflops = self._multiply()
        if on_gpu and self._ask.processes > 1:
            self._copy(f"cuda:{(self._index + 1) % self._ask.processes}")
        if self._ask.is_gang and self._index == 0:
            self._listener = socket.create_server((self._ask.ip, 0), backlog=128)
        port = self._listener.getsockname()[1] if self._listener is not None else 0
        self._tell(step=ComputeStep.READY, tflops=tflops, port=port)

    @property
    def _device(self) -> str:
        return f"cuda:{self._index}" if self._ask.device == "gpu" else "cpu"

    def _multiply(self) -> float:
        """TFLOP/s of the best of some products of matrices of ones, which have one right result."""
        torch, side = self._torch, _SIDE[self._ask.device]
        dtype = torch.bfloat16 if self._ask.device == "gpu" else torch.float32
        ones = torch.ones((side, side), device=self._device, dtype=dtype)
        shortest_s = float("inf")
        for _ in range(_TRIES):
            began = time.perf_counter()
            product = ones @ ones
            self._synchronize()
            shortest_s = min(shortest_s, time.perf_counter() - began)
        if float(product.min()) != side or float(product.max()) != side:
            raise RuntimeError("a matrix product has a wrong result")
        return round(2 * side**3 / shortest_s / 1e12, 3)

    def _copy(self, other: str) -> None:
        """What arrives on another GPU is what was sent: a broken NVLink or IOMMU may hang, or lose it."""
        there = self._torch.arange(1 << 20, device=self._device).to(other)
        self._synchronize()
        if int(there.sum()) != ((1 << 20) - 1) << 19:
            raise RuntimeError(f"a copy from {self._device} to {other} has not arrived whole")

    def _synchronize(self) -> None:
        if self._ask.device == "gpu":
            self._torch.cuda.synchronize()

    # -- with the others ----------------------------------------------------------------------------------------

    def _await_rendezvous(self) -> Rendezvous:
        file = self._folder / RENDEZVOUS
        while not file.exists():
            time.sleep(_POLL_S)
        return from_json(Rendezvous, json.loads(file.read_text()))

    def _meet(self, rendezvous: Rendezvous) -> None:
        """Reach every member, then exchange with all of them."""
        members = rendezvous.members
        if rendezvous.before(self._ask.rank) is None:
            return
        self._tell(step=ComputeStep.CONNECT)
        if self._index == 0:
            others = [member for member in members if member.rank != self._ask.rank]
            missing = unreachable(others)
            if missing:
                self._tell(unreachable=missing)
                return
        self._join(members)
        self._tell(step=ComputeStep.EXCHANGE)
        self._try_collectives()
        gb_per_s = self._measure_link(members)
        self._torch.distributed.barrier()
        self._tell(step=ComputeStep.DONE, received_gb_per_s=gb_per_s)

    def _join(self, members: Tuple[Member, ...]) -> None:
        """Make the process group, with the members' processes in the order of ranks."""
        dist, limit = self._torch.distributed, timedelta(seconds=_GANG_S)
        place = [member.rank for member in members].index(self._ask.rank)
        number = sum(member.processes for member in members[:place]) + self._index
        world = sum(member.processes for member in members)
        first, more = members[0], {}
        if number == 0 and self._listener is not None:
            more = {"master_listen_fd": self._listener.detach()}  # not one of its own, which listens at any address
        store = dist.TCPStore(
            first.ip, first.port, world, is_master=number == 0, timeout=limit, wait_for_workers=False, **more
        )
        backend = "nccl" if self._ask.device == "gpu" else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=world, timeout=limit)

    def _try_collectives(self) -> None:
        """An all-gather and an all-to-all, as training does them, with results that are known."""
        torch, dist = self._torch, self._torch.distributed
        rank, world = dist.get_rank(), dist.get_world_size()
        own = torch.full((1024,), float(rank), device=self._device)
        gathered = [torch.zeros(1024, device=self._device) for _ in range(world)]
        dist.all_gather(gathered, own)
        exchanged = torch.zeros(world, device=self._device)
        dist.all_to_all_single(exchanged, torch.full((world,), float(rank), device=self._device))
        expected = [float(number) for number in range(world)]
        if [float(each.max()) for each in gathered] != expected or exchanged.tolist() != expected:
            raise RuntimeError("a collective has a wrong result")

    def _measure_link(self, members: Tuple[Member, ...]) -> float:
        """GB/s that arrive from the node before, at the GPU of the same number, while all nodes send at once."""
        ranks = [member.rank for member in members]
        place, starts = ranks.index(self._ask.rank), [0]
        for member in members:
            starts.append(starts[-1] + member.processes)
        around = [at % len(members) for at in (place - 1, place + 1)]
        peers = [starts[at] + self._index for at in around]
        if len({member.processes for member in members}) > 1:
            return 0.0
        probe_s = self._exchange(_PROBE_BYTES, peers)
        slowest = self._torch.tensor([probe_s], device=self._device)
        self._torch.distributed.all_reduce(slowest, op=self._torch.distributed.ReduceOp.MAX)
        if float(slowest[0]) > _SLOW_PROBE_S:
            return _PROBE_BYTES / probe_s / 1e9
        size = _LINK_BYTES[self._ask.device]
        return size / self._exchange(size, peers) / 1e9

    def _exchange(self, size: int, peers: List[int]) -> float:
        """Seconds until so many bytes have come from the first peer, while as many go to the second."""
        torch, dist = self._torch, self._torch.distributed
        coming, going = (torch.zeros(size, dtype=torch.uint8, device=self._device) for _ in range(2))
        dist.barrier()
        began = time.perf_counter()
        operations = [dist.P2POp(dist.irecv, coming, peers[0]), dist.P2POp(dist.isend, going, peers[1])]
        works = dist.batch_isend_irecv(operations)
        works[0].wait()
        self._synchronize()
        seconds = time.perf_counter() - began
        for work in works[1:]:
            work.wait()
        return seconds


def unreachable(members: List[Member], *, timeout_s: float = _CONNECT_S) -> Tuple[int, ...]:
    """Ranks whose port cannot be reached, all of them tried at once."""

    def is_closed(member: Member) -> bool:
        try:
            socket.create_connection((member.ip, member.port), timeout_s).close()
        except OSError:
            return True
        return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        closed = list(pool.map(is_closed, members))
    return tuple(member.rank for member, is_shut in zip(members, closed) if is_shut)  # noqa: B905  Python 3.9


def _versions(torch: Any) -> Dict[str, str]:
    """Of CUDA or ROCm and NCCL or RCCL, as torch was built with them; asking touches no GPU."""
    hip = getattr(torch.version, "hip", None)
    versions = {"ROCm" if hip else "CUDA": str(hip or torch.version.cuda)}
    with contextlib.suppress(Exception):  # a build without it
        version = torch.cuda.nccl.version()
        number = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
        versions["RCCL" if hip else "NCCL"] = number
    return versions
