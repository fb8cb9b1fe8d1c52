"""Checks a checkpoint as far as a machine can tell: structure, ranks, cut, step, and every byte's CRC."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudrl.errors import CheckpointError
from cloudrl.shards.cancellation import Cancelled, check, workers
from cloudrl.shards.progress import Meter, OnProgress, silent
from cloudrl.shards.report import Finding, Report
from cloudrl.shards.torch_zip import damaged
from cloudrl.shards.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.shards.shard import Shard
    from cloudrl.shards.source import ShardSource, Sidecars

_THREADS = 4


def verify(
    shards: Mapping[int, ShardSource],
    *,
    world_size: int | None = None,
    sidecars: Mapping[int, Sidecars] | None = None,
    read_all: bool = True,
    on_progress: OnProgress = silent,
) -> Report:
    """Check the model shards of one role of one step. Nothing is written, and nothing found is an exception.

    Args:
        shards: The model file of each rank.
        world_size: Ranks of the run, from `fsdp_config.json`; without it, what the files say.
        sidecars: What else lies there of each rank, to tell the step.
        read_all: Also check the CRC-32 of every storage, where its file lies.
        on_progress: Called with bytes.
    """
    validated = validate(shards, world_size=world_size, sidecars=sidecars or {})
    if not read_all:
        return validated.report
    meter = Meter(sum(_bytes(shard) for shard in validated.shards.values()), on_progress)
    with workers(_THREADS, threading.Event(), "cloudrl-verify") as threads:
        rotten = list(threads.map(lambda shard: _rotten(shard, meter), validated.shards.values()))
    meter.finish()
    findings = (*validated.report.findings, *(finding for each in rotten for finding in each))
    return replace(validated.report, findings=findings)


def _bytes(shard: Shard) -> int:
    return sum(member.size_bytes for member in shard.archive.members.values())


def _rotten(shard: Shard, meter: Meter) -> list[Finding]:
    source, found = shard.archive.source, []
    for name, member in shard.archive.members.items():
        check()
        try:
            crc = source.crc32(member.offset, member.size_bytes)
        except Cancelled:
            raise
        except CheckpointError as error:
            found.append(Finding(f"{name} cannot be read: {error.message}", shard.rank, source.label))
        else:
            if crc != member.crc32:
                message = damaged(source, name, member.crc32, crc).message
                found.append(Finding(message, shard.rank, source.label))
        meter.add(member.size_bytes)
    return found
