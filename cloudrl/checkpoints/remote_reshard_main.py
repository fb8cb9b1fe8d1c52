"""A step cut for another number of ranks on the head, as a Ray job.

`python3 -m cloudrl.checkpoints.remote_reshard_main '{"step": 10, ...}'` runs under the image's Python. Shards on the
head's own disk are read there, others through the agents; the new ones are written to the head's disk. It reports as
`cloudrl.checkpoints.head_side` does.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cloudrl.checkpoints.head_side import TOKEN, HeadSource, report, report_bytes
from cloudrl.checkpoints.reshard_beside import reshard_beside
from cloudrl.errors import CheckpointError, CloudrlError
from cloudrl.saves.inventory import LIST_CHECKPOINTS
from cloudrl.shards.signals import undone_by_signals


@dataclass(frozen=True)
class HeadReshard:
    """The step, the ranks that saved it and those that are to resume from it; the folder of checkpoints of the head."""

    agent_url: str
    run: str
    step: int
    world_size: int
    goal: int
    checkpoint_dir: str
    give_up_s: float


def main(wanted: HeadReshard) -> int:
    """Cut it, and say so; the exit code is that of the error."""
    source = HeadSource(wanted.agent_url, os.environ[TOKEN], wanted.give_up_s)
    key = (wanted.run, wanted.step, wanted.world_size)
    try:
        roles = [one for one in source.inventory().checkpoints if (one.run, one.step, one.world_size) == key]
        if not roles:
            raise CheckpointError(f"step {wanted.step} of {wanted.run} is not there any more", hint=LIST_CHECKPOINTS)
        root = Path(wanted.checkpoint_dir)
        done = reshard_beside(roles, source.open, root, wanted.goal, torch=_torch(), on_progress=report_bytes())
        report(resharded=done.to_json())
    except CloudrlError as error:
        report(error=error.message, hint=error.hint)
        return error.exit_code
    return 0


def _torch() -> str | None:
    """Of the image, which is going to load the shards."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    with undone_by_signals():  # the end of a Ray job is SIGTERM
        sys.exit(main(HeadReshard(**json.loads(sys.argv[1]))))
