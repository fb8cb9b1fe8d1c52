"""A checkpoint engine of verl's over gloo: how weights get from training nodes to rollout nodes of their own.

verl's own engines need cupy, nixl, mooncake or an Ascend device. verl imports the module that
`actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module` names in its controller and in each training and
rollout worker, before it looks up `backend` (verl 0.9.1, checkpoint_engine/base.py, workers/engine_workers.py):

    actor_rollout_ref.rollout.checkpoint_engine.backend=gloo
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=cloudrl.verl_cpu.checkpoint_engine
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import ray
import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

_TIMEOUT = timedelta(minutes=5)
"""For a rank to join, and for one message: verl's engines wait without a limit."""
_SIZE = torch.int64


class _Described(NamedTuple):
    """What a rollout worker needs to know of a tensor before its bytes come."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Its name in torch, such as `bfloat16`."""
    nbytes: int


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    """The first training rank broadcasts all weights to all rollout workers; the other ranks only help to gather them.

    The group is made anew for each update, as replicas may have come or gone in between.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        """See verl's `CheckpointEngine`.

        Args:
            bucket_size: Bytes from which on collected tensors are sent.
            is_master: Whether this is the first training rank.
        """
        self._bucket_size = bucket_size
        self._is_master = is_master
        self._store: dist.TCPStore | None = None
        self._group: Any = None
        self._rank = -1
        self._update = 0

    def prepare(self) -> tuple[str, int] | None:
        """Open the store where all ranks meet, once; return its address and port, or None on other ranks."""
        if not self._is_master:
            return None
        address = ray.util.get_node_ip_address()
        if self._store is None:
            self._store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        return address, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Rank 0 is the first training worker, then come the rollout workers; other training workers have rank -1."""
        size, master = rollout_world_size + 1, metadata[0]

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world_size": [size] * len(ranks), "master": [master] * len(ranks)}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, world_size: int, master: tuple[str, int]) -> None:
        """Join the group of this update, with arguments of `build_topology`."""
        self._rank, self._update = rank, self._update + 1
        if rank < 0:
            return
        if self._store is None:
            self._store = dist.TCPStore(*master, is_master=False, timeout=_TIMEOUT)
        store = dist.PrefixStore(f"update-{master[1]}-{self._update}", self._store)
        self._group = dist.ProcessGroupGloo(store, rank, world_size, _TIMEOUT)

    def finalize(self) -> None:
        """Leave the group."""
        self._group = None

    async def send_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,  # noqa: ARG002  verl's interface, as below
    ) -> dict[str, Any]:
        """Walk through all weights, which gathers them, and send them if this is the first training rank."""
        bucket: list[tuple[str, torch.Tensor]] = []
        size = 0
        for name, tensor in weights:
            if self._rank != 0:
                continue
            bucket.append((name, tensor.detach().cpu().contiguous()))
            size += bucket[-1][1].nbytes
            if size >= self._bucket_size:
                self._send(bucket)
                bucket, size = [], 0
        if self._rank == 0:
            if bucket:
                self._send(bucket)
            self._send([])
        return {}

    async def receive_weights(
        self,
        global_steps: int | None = None,  # noqa: ARG002
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield each weight by its name, as a tensor on the CPU, until the sender has no more."""
        while described := self._receive_described():
            data, start = self._receive(sum(each.nbytes for each in described)), 0
            for name, shape, dtype, nbytes in described:
                part = data[start : start + nbytes].clone()  # a view would begin where its type may not
                yield name, part.view(getattr(torch, dtype)).view(shape)
                start += nbytes

    def _send(self, bucket: list[tuple[str, torch.Tensor]]) -> None:
        """Send what the tensors are, and then their bytes; an empty bucket is the end."""
        described = [
            _Described(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.nbytes)
            for name, tensor in bucket
        ]
        text = json.dumps(described).encode()
        self._broadcast(torch.tensor([len(text)], dtype=_SIZE).view(torch.uint8))
        self._broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        if bucket:
            self._broadcast(torch.cat([tensor.view(-1).view(torch.uint8) for _, tensor in bucket]))

    def _receive_described(self) -> list[_Described]:
        size = int(self._receive(_SIZE.itemsize).view(_SIZE)[0])
        rows = json.loads(self._receive(size).numpy().tobytes())
        return [_Described(name, tuple(shape), dtype, nbytes) for name, shape, dtype, nbytes in rows]

    def _receive(self, nbytes: int) -> torch.Tensor:
        return self._broadcast(torch.empty(nbytes, dtype=torch.uint8))

    def _broadcast(self, data: torch.Tensor) -> torch.Tensor:
        """Send (rank 0) or fill (other ranks) a tensor of bytes."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([data], options).wait()
        return data
