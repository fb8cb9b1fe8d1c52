"""Files that a job was sent with, on every node again after a node has come back with an empty disk."""

from __future__ import annotations

import http.client
import json
import re
from typing import Callable, Optional, Sequence

from cloudrl.node.replication import ReplicationHub, pull_files
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.failures import ApiError, ErrorCode
from cloudrl.protocol.folders import USER_FILES
from cloudrl.protocol.report import NodeReport

_NOT_FOUND = ErrorCode.NOT_FOUND.status
_ADDRESS = re.compile(rf"{USER_FILES}/([0-9a-f]{{32}})")


class JobFiles:
    """Rank 0's: it takes what it lacks from another node, and announces it to those that lack it.

    Args:
        hub: of rank 0.
        reports: of all nodes, the newest.
        agent: the client of a node's agent, given its report.
    """

    def __init__(
        self,
        hub: ReplicationHub,
        reports: Callable[[], Sequence[NodeReport]],
        agent: Callable[[NodeReport], AgentClient],
    ) -> None:
        self._hub, self._reports, self._agent = hub, reports, agent

    def missing(self, job: DurableJob) -> str:
        """What no node has of it; "" if rank 0 has all now.

        Raises:
            ApiError, OSError, ValueError, http.client.HTTPException: a node that may have it does not answer, or the
                disk of rank 0 does not take it.
        """
        for address in addresses_of(job):
            if self._hub.files.manifest(address) is None and not self._fetch(address):
                return "its package" if address == job.package else "a file that was sent with it"
        return ""

    def waits_for(self, job: DurableJob) -> str:
        """Which nodes have not got all of it yet, once rank 0 has it; "" if all have."""
        for address in addresses_of(job):
            nodes = self._hub.files_state(address)["nodes"]
            for rank, replica in nodes.items():
                if not replica.complete:
                    return f"its files are copied to node {rank}" + (f": {replica.error}" if replica.error else "")
        return ""

    def _fetch(self, address: str) -> bool:
        """Take it from the first node that has it; a node without it says so, and any other may have it."""
        failed: Optional[Exception] = None
        for report in self._reports():
            if report.rank:
                try:
                    pull_files(self._hub, self._agent(report), f"files/{address}", address)
                except (ApiError, OSError, ValueError, http.client.HTTPException) as error:
                    failed = failed if getattr(error, "status", None) == _NOT_FOUND else error
                else:
                    return True
        if failed is not None:
            raise failed
        return False


def addresses_of(job: DurableJob) -> "tuple[str, ...]":
    """The addresses of its package and of all files that its request names."""
    found = _ADDRESS.findall(json.dumps(job.request))
    return tuple(dict.fromkeys([*([job.package] if job.package else []), *found]))
