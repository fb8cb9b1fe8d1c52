"""What `cloudrl up NAME --on local --nodes 2` does, with a few words of the agents' command lines changed.

A process of its own, as the command is one. The plan, the start of the agents and the wait for READY are
cloudrl's; the last line of stdout is how long `up` itself took, in seconds, without the start of Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

from cloudrl.providers.local.provider import LocalProvider
from cloudrl.spec import Cluster


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--agent", help="another agent file than cloudrl's own")
    parser.add_argument("--no-files", action="store_true", help="no data set and no model; the default has both")
    parser.add_argument("--disks", type=Path, help="folder of node-0 and node-1, where each has its checkpoints")
    args = parser.parse_args()
    began = time.monotonic()
    cluster = Cluster(name=args.name, nodes=2, data=["addition"], models=["tiny-qwen2"])
    plan = LocalProvider().plan(cluster)
    commands = tuple(_changed(command, args.agent, no_files=args.no_files) for command in plan.commands)
    if args.disks:
        commands = tuple((*words, f"--checkpoints={args.disks}/node-{rank}") for rank, words in enumerate(commands))
    LocalProvider().up(dataclasses.replace(plan, commands=commands), timeout_s=300.0)
    print(time.monotonic() - began)


def _changed(command: tuple[str, ...], agent: str | None, *, no_files: bool) -> tuple[str, ...]:
    python, own_agent, *words = command
    kept = [word for word in words if not (no_files and word.startswith(("--data=", "--model=")))]
    return (python, agent or own_agent, *kept)


if __name__ == "__main__":
    main()
