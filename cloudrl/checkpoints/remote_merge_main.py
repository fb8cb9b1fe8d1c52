"""The merge on the head: `python3 -m cloudrl.checkpoints.remote_merge_main --step N ...`, as a Ray job.

Runs under the image's Python, with its numpy and without our other packages. Shards on the head's own disk are read
there, others through the agents. It says how far it is, and what came of it, in lines of JSON after a mark
(`cloudrl.checkpoints.remote_merge` reads them).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cloudrl.checkpoints.merge import merge, merge_inputs
from cloudrl.checkpoints.remote import READ_TIMEOUT_S, RangeClient, RemoteShard
from cloudrl.errors import CheckpointError, CloudrlError
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.client import AgentClient
from cloudrl.saves.aggregate import cluster_inventory
from cloudrl.saves.inventory import Checkpoint, FileCopy, Inventory
from cloudrl.shards.source import LocalShard, ShardSource

MARK = "cloudrl-merge "
TOKEN = "CLOUDRL_AGENT_TOKEN"  # noqa: S105  the name of a variable
_REPORT_EVERY_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Merge and say so; the exit code is that of the error."""
    parser = argparse.ArgumentParser(prog="python3 -m cloudrl.checkpoints.remote_merge_main")
    parser.add_argument("--agent-url", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--give-up-s", type=float, default=Backoff().give_up_s)
    args = parser.parse_args(argv)
    reported_at = 0.0

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal reported_at
        if done_bytes >= total_bytes or time.monotonic() - reported_at > _REPORT_EVERY_S:
            reported_at = time.monotonic()
            _report(done=done_bytes, total=total_bytes)

    def open_file(file: FileCopy) -> ShardSource:
        """From this disk if the head shares the folder, else from the node that has it."""
        if 0 in file.location.ranks:
            return LocalShard(Path(file.location.folder) / file.path, label=file.label)
        return RemoteShard(client, file)

    agent = AgentClient(args.agent_url, os.environ[TOKEN], timeout_s=READ_TIMEOUT_S)
    backoff = Backoff(give_up_s=args.give_up_s)
    client = RangeClient(agent, backoff=backoff, on_break=lambda sentence: _report(note=sentence))
    try:
        inputs = merge_inputs(_find(agent, args, backoff), open_file)
        merged = merge(inputs, args.to, dtype=args.dtype, sync=args.sync, on_progress=progress)
    except CloudrlError as error:
        _report(error=error.message, hint=error.hint)
        return error.exit_code
    _report(merged=merged.to_json())
    return 0


def _find(
    agent: AgentClient,
    args: argparse.Namespace,
    backoff: Backoff | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Checkpoint:
    """What is to be merged, as all nodes say now; one that is silent for a moment is waited for.

    Raises:
        CheckpointError: It is not there any more.
        ConnectionFailed: A node stays silent: it may have newer copies than the others.
    """

    def ask() -> Inventory:
        inventory = cluster_inventory(agent.status().nodes, agent.inventory)
        inventory.refuse_silent("it may have newer files of this step", "Try again when it answers")
        return inventory

    inventory = retry(ask, backoff, on_break=lambda failure: _report(note=failure.message), sleep=sleep)
    wanted = (args.run, args.step, args.role, args.world_size)
    for each in inventory.checkpoints:
        if (each.run, each.step, each.role, each.world_size) == wanted:
            return each
    raise CheckpointError(f"step {args.step} of {args.run} is not there any more", hint="cloudrl checkpoints list")


def _report(**what: Any) -> None:
    sys.stdout.write(MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
