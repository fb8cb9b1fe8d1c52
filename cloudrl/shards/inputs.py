"""What a merge and a check take: the files of one role of one step, wherever each of them lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudrl.saves.records import SaveRecord
from cloudrl.shards.source import ShardSource


@dataclass(frozen=True)
class Sidecars:
    """What lies beside a rank's model shard and tells which step it is from; any of it may be missing."""

    optim: ShardSource | None = None
    extra: ShardSource | None = None
    record: SaveRecord | None = None


@dataclass(frozen=True)
class MergeInputs:
    """The files of one role (actor, critic) of one step.

    Attributes:
        shards: The model file of each rank; with replicas (HSDP), at least one rank of each part.
        config_files: What lies in `huggingface/`, by its path in there.
        world_size: Ranks of the run; without it, what the files say.
        sidecars: What else is there of each rank, to make sure that all are from one step.
    """

    shards: Mapping[int, ShardSource]
    config_files: Mapping[str, bytes] = field(default_factory=dict)
    world_size: int | None = None
    sidecars: Mapping[int, Sidecars] = field(default_factory=dict)
