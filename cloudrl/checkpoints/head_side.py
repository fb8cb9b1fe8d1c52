"""What a job on the head does whatever its work is: it reads files of all nodes, and reports in lines of JSON.

Files on the head's own disk are read there, others through the agents. It runs under the image's Python, without our
other packages.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudrl.checkpoints.remote import READ_TIMEOUT_S, RangeClient, RemoteShard
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.client import AgentClient
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.places import FileCopy
from cloudrl.saves.survey import cluster_inventory
from cloudrl.shards.progress import OnProgress
from cloudrl.shards.source import LocalShard, ShardSource

MARK = "cloudrl-merge "
TOKEN = "CLOUDRL_AGENT_TOKEN"  # noqa: S105  the name of a variable
RESULTS = frozenset({"merged", "published", "resharded"})
"""Keys of the message with the result of a job."""
_REPORT_EVERY_S = 1.0


class HeadSource:
    """The checkpoints of the cluster whose head this is.

    Args:
        agent_url: Of the head's agent.
        token: That the agent wants.
        give_up_s: How long to wait for a node that stays silent.
        sleep: Waits that many seconds.
    """

    def __init__(
        self, agent_url: str, token: str, give_up_s: float, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._agent, self._sleep = AgentClient(agent_url, token, timeout_s=READ_TIMEOUT_S), sleep
        self._backoff = Backoff(give_up_s=give_up_s)
        self._client = RangeClient(self._agent, backoff=self._backoff, on_break=lambda sentence: report(note=sentence))

    def open(self, file: FileCopy) -> ShardSource:
        """The bytes of a file: from this disk if the head has it, else from the node that has it."""
        if 0 in file.location.ranks:
            return LocalShard(Path(file.location.folder) / file.path, label=file.label)
        return RemoteShard(self._client, file)

    def inventory(self) -> Inventory:
        """All that there is, as all nodes say now; one that is silent for a moment is waited for.

        Raises:
            ConnectionFailed: A node stays silent: it may have newer files than the others.
        """

        def ask() -> Inventory:
            inventory = cluster_inventory(self._agent.status().nodes, self._agent.inventory)
            inventory.refuse_silent("it may have newer files of this step", "Try again when it answers")
            return inventory

        return retry(ask, self._backoff, on_break=lambda failure: report(note=failure.message), sleep=self._sleep)


def report(**what: Any) -> None:
    """Print a message for whoever follows the job."""
    sys.stdout.write(MARK + json.dumps(what) + "\n")
    sys.stdout.flush()


def report_bytes() -> OnProgress:
    """What reports bytes that are done, once a second and at the end."""
    reported_at = 0.0

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal reported_at
        if done_bytes >= total_bytes or time.monotonic() - reported_at > _REPORT_EVERY_S:
            reported_at = time.monotonic()
            report(done=done_bytes, total=total_bytes)

    return progress
