"""The entry of the agent's file: the agent of a node, or one of its children.

Each child imports what it needs and no more: a node has no compiled files, and to compile all of the agent takes half a
second.
"""

from __future__ import annotations

import os
import sys
from typing import Optional, Sequence


def main(argv: Optional[Sequence[str]] = None) -> int:
    """`run ...` is the agent, the other words its children (see the usage). Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else ""
    if command == "run":
        from cloudrl.node.run import run

        return run(words[1:], os.environ)
    if command == "shards":
        from cloudrl.node import shard_worker

        return shard_worker.main(words[1:])
    if command == "mirror":
        from cloudrl.node import arrow_worker

        return arrow_worker.main(words[1:])
    if command == "guard":
        from cloudrl.node import guard

        return guard.main(words[1:])
    from cloudrl.node import subcommands

    if command in subcommands.WORK:
        return subcommands.main(words)
    print(f"usage: cloudrl-node.pyz run|shards|mirror|guard|{'|'.join(subcommands.WORK)} ...", file=sys.stderr)
    return 2
