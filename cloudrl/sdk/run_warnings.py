"""What goes wrong with the machines of a training that runs, by one look: the warnings of `cloudrl watch`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from cloudrl.errors import CloudrlError
from cloudrl.jobs.events import EventReader, Progress
from cloudrl.jobs.evidence import Evidence
from cloudrl.jobs.handle import JobHandle
from cloudrl.jobs.machine_warnings import find_machine_warnings
from cloudrl.jobs.node_warnings import interruption_notice
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.report import NodeReport, Usage
from cloudrl.providers.model import Status
from cloudrl.sdk.find import find_job
from cloudrl.transport.log_stream import split_lines
from cloudrl.verl.metrics import Step

_LOG_BYTES = 256 << 10
"""Of the end of a driver's log: some fifty steps, of which the last ones count."""


def machine_warnings(cluster: Status) -> tuple[Notice, ...]:
    """What is wrong with them; nothing while no job runs.

    Without an open way to the cluster, only what its nodes say now is looked at.
    """
    if cluster.job is None:
        return ()
    evidence = Evidence(usage=_joined(cluster.nodes, {}))
    if cluster.dashboard_url is not None:
        with suppress(CloudrlError):  # agents of an older release, or no answer
            evidence = _asked(cluster, cluster.job.submission_id)
    return tuple(Notice(warning.seen, warning.remedy) for warning in find_machine_warnings(evidence))


def taken_back(job: JobHandle) -> Notice | None:
    """Which machines of the cluster of a job are about to be taken back; None without a notice or an answer."""
    with suppress(CloudrlError):
        if (agent := job.connection.agent()) is not None:
            return interruption_notice(agent.status().nodes, time.time())
    return None


def _asked(cluster: Status, submission_id: str) -> Evidence:
    job = find_job(submission_id, f"{cluster.ref}")
    agent = job.connection.agent()
    if agent is None:
        return Evidence()
    steps, left_s = [], None
    for event in EventReader(job.total_steps).read(_log_end(job, agent)):
        if isinstance(event, Step):
            steps.append(event)
        elif isinstance(event, Progress):
            left_s = event.eta_s
    return Evidence(steps, _joined(cluster.nodes, agent.usage("hour")), left_s=left_s)


def _log_end(job: JobHandle, agent: AgentClient) -> Iterator[str]:
    """The last lines of the log of a driver on the head, each whole; nothing of one elsewhere."""
    found = agent.job_log(job.submission_id)
    if found is not None:
        start = max(0, found[1] - _LOG_BYTES)
        lines = split_lines(job.log_bytes(start))
        yield from islice(lines, 1 if start else 0, None)


def _joined(nodes: Sequence[NodeReport], hour: Mapping[int, Sequence[Usage]]) -> dict[int, tuple[Usage, ...]]:
    """Rank -> samples, oldest first: those of the last hour, and what the node says now."""
    joined = {}
    for node in nodes:
        samples = tuple(hour.get(node.rank, ()))
        is_new = node.usage is not None and (not samples or samples[-1].sampled_at < node.usage.sampled_at)
        joined[node.rank] = (*samples, node.usage) if is_new and node.usage is not None else samples
    return joined
