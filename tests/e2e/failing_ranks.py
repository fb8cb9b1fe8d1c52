"""A job of two ranks on two nodes that fails in one way: `python3 failing_ranks.py WAY`.

It prints what each rank is: `PLACE {"rank": 0, "pid": 42, "node": "..."}`. Rank 1 is the one to blame.
"""

import contextlib
import ctypes
import datetime as dt
import json
import os
import resource
import socket
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

RANKS = 2


def join_group(rank: int, store: str, timeout_s: float = 5.0, world_size: int = RANKS) -> None:
    import torch.distributed as dist

    timeout = dt.timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=timeout)


def barrier(rank: int, store: str) -> None:
    import torch.distributed as dist

    join_group(rank, store, timeout_s=10)
    if rank == 1:
        time.sleep(60)  # says nothing: the other one waits in vain
    dist.all_reduce(dist.torch.zeros(1))


def killed(rank: int, store: str) -> None:
    import torch.distributed as dist

    join_group(rank, store, timeout_s=20)
    if rank == 1:
        os.kill(os.getpid(), 9)
    dist.all_reduce(dist.torch.zeros(1))


def raises(rank: int, _store: str) -> None:
    time.sleep(1.5 * (1 - rank))
    raise ValueError(f"rank {rank} has no more \x1b]0;pwned\x07\x1b[31mrows\x1b[0m")


def port_taken(rank: int, store: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        if rank == 1:
            join_group(0, f"tcp://127.0.0.1:{held.getsockname()[1]}")
        join_group(rank, store, timeout_s=20)


def rank_missing(rank: int, store: str) -> None:
    join_group(rank, store, world_size=RANKS + 1)


def out_of_memory(rank: int, _store: str) -> None:
    import torch

    torch.empty(1 << 50 if rank == 1 else 1)
    time.sleep(60)


def nan(rank: int, _store: str) -> None:
    import torch

    torch.multinomial(torch.full((4,), float("nan") if rank == 1 else 1.0), 1)
    time.sleep(60)


def too_many_files(rank: int, _store: str) -> None:
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        with contextlib.ExitStack() as held:  # closed at once: Ray's own threads need some, or the process dies of it
            for _ in range(1000):
                held.enter_context(open("/dev/null"))
    time.sleep(60)


def segmentation_fault(rank: int, _store: str) -> None:
    if rank == 1:
        ctypes.string_at(0)
    time.sleep(60)


def disk_full(rank: int, _store: str) -> None:
    if rank == 1:
        Path("/dev/full").write_bytes(bytes(1 << 20))
    time.sleep(60)


def shards_missing(rank: int, _store: str) -> None:
    if rank == 1:
        Path(f"/nowhere/global_step_10/actor/model_world_size_4_rank_{rank}.pt").read_bytes()
    time.sleep(60)


def waits(_rank: int, _store: str) -> None:
    """Until somebody kills it."""
    while True:
        time.sleep(60)


def takes_all_memory(rank: int, _store: str) -> None:
    """Ray's own watch of memory has to be off."""
    held = []
    while rank == 1:
        held.append(b"x" * (64 << 20))
    time.sleep(60)


def exits(rank: int, _store: str) -> None:
    if rank == 1:
        os._exit(3)
    time.sleep(60)


WAYS = {each.__name__: each for each in (
    barrier, killed, raises, port_taken, rank_missing, out_of_memory, nan, too_many_files, segmentation_fault,
    disk_full, shards_missing, takes_all_memory, exits, waits,
)}  # fmt: skip


JOINING = ("barrier", "killed", "port_taken", "rank_missing")


@ray.remote(num_cpus=1)
class Rank:
    def place(self, way: str) -> tuple[int, str]:
        if way in JOINING:  # both import it before either waits for the other
            import_module("torch.distributed")
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def train(self, way: str, rank: int, store: str) -> None:
        WAYS[way](rank, store)


@ray.remote(num_cpus=0)
class Runner:
    """As verl's TaskRunner: an actor that drives the ranks, and through which their errors pass."""

    def start(self, way: str) -> list[tuple[int, str]]:
        group = placement_group([{"CPU": 1.0}] * RANKS, strategy="STRICT_SPREAD")
        ray.get(group.ready(), timeout=120)
        actor: Any = Rank
        self.ranks = [
            actor.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank)).remote()
            for rank in range(RANKS)
        ]
        places: list[tuple[int, str]] = ray.get([each.place.remote(way) for each in self.ranks])
        return places

    def run(self, way: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            store = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        waiting = [each.train.remote(way, rank, store) for rank, each in enumerate(self.ranks)]
        while waiting:
            done, waiting = ray.wait(waiting)
            ray.get(done)


def infeasible() -> None:
    group = placement_group([{"CPU": 100.0}] * RANKS, strategy="STRICT_SPREAD")
    ray.get(group.ready(), timeout=10)


def main(way: str) -> None:
    ray.init()
    if way == "infeasible":
        infeasible()
    actor: Any = Runner
    runner = actor.remote()
    for rank, (pid, node) in enumerate(ray.get(runner.start.remote(way))):
        # by the driver itself: what actors print may come too late for the log of a job that fails at once
        print("PLACE", json.dumps({"rank": rank, "pid": pid, "node": node}), flush=True)
    ray.get(runner.run.remote(way))


if __name__ == "__main__":
    main(sys.argv[1])
