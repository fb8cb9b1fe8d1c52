"""Calls to an agent about jobs that outlive their machines: of a client, and of rank 0 to the other nodes."""

from __future__ import annotations

import json
from functools import partial
from operator import itemgetter
from typing import Any, Tuple, Union

from cloudrl.errors import InputError
from cloudrl.protocol import routes
from cloudrl.protocol.client import CHECK_TIMEOUT_S, LISTING_TIMEOUT_S, REFUSALS, AgentClient
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.exchange import Request
from cloudrl.protocol.failures import ErrorCode
from cloudrl.protocol.mirrors import MirrorCheck, MirroredStep, UploadOrder, UploadState
from cloudrl.protocol.step_copies import ClearOrder, CopyOrder, CopyState
from cloudrl.protocol.wire import from_json, to_json


def submit_job(agent: AgentClient, job: DurableJob) -> DurableJob:
    """Leave a job with rank 0; returns it as recorded. The same call once more changes nothing.

    Raises:
        InputError: its id is taken, or it cannot be recorded.
        ConnectionFailed: no answer; it may be there.
    """
    timeout_s = CHECK_TIMEOUT_S if job.mirror else LISTING_TIMEOUT_S
    request = agent.request(routes.SUBMIT_JOB, job=job.job_id, body=_body(job), timeout_s=timeout_s)
    return agent.call(request, partial(from_json, DurableJob), (*REFUSALS, ErrorCode.CONFLICT))


def list_jobs(agent: AgentClient) -> Tuple[DurableJob, ...]:
    """The jobs that were left with rank 0, in the order of its queue.

    Raises:
        InputError: the agent is of a release that takes none.
        ConnectionFailed: no answer.
    """
    return agent.call(agent.request(routes.JOBS, timeout_s=LISTING_TIMEOUT_S), _jobs)


def stop_job(agent: AgentClient, job_id: str) -> bool:
    """Have one of them end for good, by its id or that of an attempt; False for a job that was not left with rank 0.

    Raises:
        ConnectionFailed: no answer.
    """
    try:
        return bool(agent.call(agent.request(routes.STOP_JOB, job=job_id), itemgetter("stopped")))
    except InputError:
        return False


def read_journal(agent: AgentClient, rank: int) -> Tuple[DurableJob, ...]:
    """What the volume of one rank remembers of such jobs.

    Raises:
        InputError, ConnectionFailed: no answer, or none that counts.
    """
    return agent.call(agent.request(routes.JOURNAL, rank=rank, timeout_s=LISTING_TIMEOUT_S), _jobs)


def record_job(agent: AgentClient, rank: int, job: DurableJob, *, timeout_s: float) -> None:
    """Write a job to the volume of a rank.

    Raises:
        InputError, ConnectionFailed: it is not there.
    """
    request = agent.request(routes.RECORD_JOB, rank=rank, job=job.job_id, body=_body(job), timeout_s=timeout_s)
    agent.call(request, itemgetter("recorded"), (*REFUSALS, ErrorCode.CONFLICT))


def set_aside(agent: AgentClient, rank: int, path: str) -> None:
    """Rename `RUN/global_step_10` below a rank's folder of checkpoints, so that it does not count any more.

    Raises:
        InputError: the volume does not let the node do it.
        ConnectionFailed: no answer.
    """
    request = agent.request(routes.SET_ASIDE, rank=rank, path=path, timeout_s=LISTING_TIMEOUT_S)
    agent.call(request, itemgetter("aside"), (*REFUSALS, ErrorCode.FORBIDDEN, ErrorCode.CONFLICT))


def order_copies(agent: AgentClient, order: CopyOrder) -> CopyState:
    """Have a node copy files of a step from another one; the same order once more changes nothing.

    Raises:
        InputError: it names other files than those of a step.
        ConnectionFailed: no answer.
    """
    return agent.call(_ordered(agent, routes.COPY_STEP, order), partial(from_json, CopyState))


def clear_copies(agent: AgentClient, order: ClearOrder) -> int:
    """Have a node remove copies that it has made itself; returns how many bytes it has freed.

    Raises:
        InputError: it cannot remove them.
        ConnectionFailed: no answer.
    """
    request = _ordered(agent, routes.CLEAR_COPIES, order)
    return agent.call(request, lambda value: int(value["freed_bytes"]), (*REFUSALS, ErrorCode.CONFLICT))


def order_upload(agent: AgentClient, order: UploadOrder) -> UploadState:
    """Have a node copy files of a step to a mirror; the same order once more changes nothing.

    Raises:
        InputError: it names other files than those of a step.
        ConnectionFailed: no answer.
    """
    return agent.call(_ordered(agent, routes.UPLOAD_STEP, order), partial(from_json, UploadState))


def check_mirror(agent: AgentClient, rank: int, mirror: str, token: str) -> MirrorCheck:
    """Have a node look whether it can use a mirror, rank 0 before the others.

    Raises:
        InputError: the agents are of a release that has no mirrors.
        ConnectionFailed: no answer.
    """
    body = json.dumps({"mirror": mirror, "token": token}).encode()
    request = agent.request(routes.CHECK_MIRROR, rank=rank, body=body, timeout_s=CHECK_TIMEOUT_S)
    return agent.call(request, partial(from_json, MirrorCheck))


def jobs_in_mirror(agent: AgentClient, mirror: str) -> Tuple[DurableJob, ...]:
    """The jobs that a mirror remembers, as rank 0 sees it.

    Raises:
        InputError: the mirror cannot be read.
        ConnectionFailed: no answer.
    """
    body = json.dumps({"mirror": mirror}).encode()
    request = agent.request(routes.JOBS_IN_MIRROR, body=body, timeout_s=CHECK_TIMEOUT_S)
    return agent.call(request, _jobs, (*REFUSALS, ErrorCode.CONFLICT))


def mirrored_steps(agent: AgentClient) -> Tuple[MirroredStep, ...]:
    """The steps that the mirrors of a cluster's jobs have; none of agents of a release without mirrors.

    Raises:
        ConnectionFailed: no answer.
    """
    try:
        rows = agent.call(agent.request(routes.MIRRORED), itemgetter("steps"))
    except InputError:
        return ()
    return tuple(from_json(MirroredStep, row) for row in rows)


def _ordered(agent: AgentClient, route: routes.Route, order: Union[CopyOrder, ClearOrder, UploadOrder]) -> Request:
    """The request that gives an order to the node that it names."""
    body = json.dumps(to_json(order)).encode()
    return agent.request(route, rank=order.rank, path=order.folder, body=body, timeout_s=LISTING_TIMEOUT_S)


def _body(job: DurableJob) -> bytes:
    return json.dumps(to_json(job)).encode()


def _jobs(value: Any) -> Tuple[DurableJob, ...]:
    return tuple(from_json(DurableJob, row) for row in value["jobs"])
