"""The merge on the head: `python3 -m cloudrl.checkpoints.remote_merge_main --to DIR --dtype bf16`, as a Ray job.

Runs under the image's Python, with its numpy and without our other packages. What to merge stands in
`checkpoint.json` beside it; shards on the head's own disk are read there, others through the agents. It says how far it
is, and what came of it, in lines of JSON after a mark (`cloudrl.checkpoints.remote_merge` reads them).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl.checkpoints.agent_files import READ_TIMEOUT_S, RangeClient
from cloudrl.checkpoints.merge import merge
from cloudrl.checkpoints.merge_inputs import merge_inputs
from cloudrl.checkpoints.remote import AHEAD_BYTES, RemoteShard
from cloudrl.errors import CloudrlError
from cloudrl.protocol.client import AgentClient
from cloudrl.saves.inventory import Checkpoint, FileCopy, Location
from cloudrl.saves.records import SaveRecord
from cloudrl.shards.merge import Tuning
from cloudrl.shards.source import LocalShard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloudrl.shards.source import ShardSource

MARK = "cloudrl-merge "
TOKEN = "CLOUDRL_AGENT_TOKEN"  # noqa: S105  the name of a variable
FILE = "checkpoint.json"
_SAY_EVERY_S = 1.0


class HeadFileOpener:
    """Opens files as the head sees them."""

    def __init__(self, client: RangeClient) -> None:
        self._client = client

    def open(
        self, file: FileCopy, *, label: str | None = None, ahead_bytes: int = AHEAD_BYTES
    ) -> ShardSource:
        """From this disk if the head shares the folder, else from the node that has it."""
        if 0 in file.location.ranks:
            return LocalShard(Path(file.location.folder) / file.path, label=label or file.label)
        return RemoteShard(self._client, file, label=label, ahead_bytes=ahead_bytes)


def main(argv: Sequence[str] | None = None) -> int:
    """Merge and say so; the exit code is that of the error."""
    parser = argparse.ArgumentParser(prog="python3 -m cloudrl.checkpoints.remote_merge_main")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--sync", action="store_true")
    args = parser.parse_args(argv)
    said = [0.0]

    def progress(done_bytes: int, total_bytes: int) -> None:
        if done_bytes >= total_bytes or time.monotonic() - said[0] > _SAY_EVERY_S:
            said[0] = time.monotonic()
            _say(done=done_bytes, total=total_bytes)

    given = json.loads(Path(FILE).read_text(encoding="utf-8"))
    agent = AgentClient(given["agent_url"], os.environ[TOKEN], timeout_s=READ_TIMEOUT_S)
    client = RangeClient(agent, on_break=lambda sentence: _say(note=sentence))
    try:
        inputs = merge_inputs(checkpoint_from_json(given["checkpoint"]), HeadFileOpener(client))
        tuning = Tuning(threads=8, sync=args.sync)
        merged = merge(inputs, args.to, dtype=args.dtype, tuning=tuning, on_progress=progress)
    except CloudrlError as error:
        _say(error=error.message, hint=error.hint)
        return error.exit_code
    _say(
        merged={
            "path": str(merged.path), "tensors": merged.tensors, "parameters": merged.parameters,
            "size_bytes": merged.size_bytes, "warnings": list(merged.warnings),
        }
    )  # fmt: skip
    return 0


def checkpoint_to_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """All of it; each location once."""
    locations: dict[Location, int] = {}
    files = {
        name: [
            [
                locations.setdefault(copy.location, len(locations)),
                copy.path,
                copy.size_bytes,
                copy.modified_at,
            ]
            for copy in copies
        ]
        for name, copies in checkpoint.files.items()
    }
    return {
        "run": checkpoint.run, "step": checkpoint.step, "role": checkpoint.role, "world_size": checkpoint.world_size,
        "locations": [asdict(location) for location in locations], "files": files,
        "records": [record.to_json() for record in checkpoint.records.values()],
    }  # fmt: skip


def checkpoint_from_json(value: Mapping[str, Any]) -> Checkpoint:
    """Read what `checkpoint_to_json` wrote."""
    locations = [
        Location(tuple(each["ranks"]), tuple(each["addresses"]), each["root"], each["folder"])
        for each in value["locations"]
    ]
    files = {
        name: tuple(
            FileCopy(locations[index], path, size, modified_at) for index, path, size, modified_at in copies
        )
        for name, copies in value["files"].items()
    }
    records = {each["rank"]: SaveRecord.from_json(each) for each in value["records"]}
    return Checkpoint(value["run"], value["step"], value["role"], value["world_size"], files, records)


def _say(**what: Any) -> None:
    sys.stdout.write(MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
