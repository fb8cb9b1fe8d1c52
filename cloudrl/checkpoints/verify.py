"""Checks a checkpoint as far as a machine can tell: structure, ranks, cut, step, and every byte's CRC."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudrl.checkpoints.archive import damaged
from cloudrl.checkpoints.examine import examine
from cloudrl.checkpoints.progress import Meter, OnProgress, silent
from cloudrl.checkpoints.report import Finding, Report
from cloudrl.checkpoints.stopping import Stopped, check, workers
from cloudrl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.checkpoints.shard import Shard
    from cloudrl.checkpoints.source import Companions, ShardSource

_THREADS = 4


def verify(
    shards: Mapping[int, ShardSource],
    *,
    world_size: int | None = None,
    companions: Mapping[int, Companions] | None = None,
    read_all: bool = True,
    on_progress: OnProgress = silent,
) -> Report:
    """Check the model shards of one role of one step. Nothing is written, and nothing found is an exception.

    Args:
        shards: The model file of each rank.
        world_size: Ranks of the run, from `fsdp_config.json`; without it, what the files say.
        companions: What else lies there of each rank, to tell the step.
        read_all: Also check the CRC-32 of every storage, where its file lies.
        on_progress: Called with bytes.
    """
    examined = examine(shards, world_size=world_size, companions=companions or {})
    if not read_all:
        return examined.report
    meter = Meter(sum(_bytes(shard) for shard in examined.shards.values()), on_progress)
    with workers(_THREADS, threading.Event(), "cloudrl-verify") as threads:
        rotten = list(threads.map(lambda shard: _rotten(shard, meter), examined.shards.values()))
    meter.finish()
    findings = (*examined.report.findings, *(finding for each in rotten for finding in each))
    return replace(examined.report, findings=findings)


def _bytes(shard: Shard) -> int:
    return sum(member.size_bytes for member in shard.archive.members.values())


def _rotten(shard: Shard, meter: Meter) -> list[Finding]:
    source, found = shard.archive.source, []
    for name, member in shard.archive.members.items():
        check()
        try:
            crc = source.crc32(member.offset, member.size_bytes)
        except Stopped:
            raise
        except CheckpointError as error:
            found.append(Finding(f"{name} cannot be read: {error.message}", shard.rank, source.label))
        else:
            if crc != member.crc32:
                message = damaged(source, name, member.crc32, crc).message
                found.append(Finding(message, shard.rank, source.label))
        meter.add(member.size_bytes)
    return found
